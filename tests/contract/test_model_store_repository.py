"""What every model store keeps to: the versions of a model repository."""

from __future__ import annotations

import msgspec
import pytest

from registry.errors import ModelNotFound, VersionConflict
from registry.store import ModelStore
from support.versions import SIGNATURE, folder, new, numbers


async def test_a_repository_is_mirrored_in_one_change(store: ModelStore) -> None:
    await store.sync_repository([folder("a", 1), folder("a", 2, "b", desired=False), folder("b", 1)])
    assert await numbers(store) == {"a": [1, 2], "b": [1]}
    assert [version.desired for version in (await store.model("a")).versions] == [True, False]
    assert await store.revision() == 1


async def test_the_same_repository_again_changes_nothing(store: ModelStore) -> None:
    await store.sync_repository([folder("a", 1), folder("b", 1)])
    before = await store.models()
    await store.sync_repository([folder("b", 1), folder("a", 1)])
    assert await store.models() == before
    assert await store.revision() == 1


async def test_what_left_the_repository_goes_and_its_number_is_not_given_again(store: ModelStore) -> None:
    await store.add_version(new("mine"))
    await store.sync_repository([folder("a", 5), folder("b", 1)])
    await store.sync_repository([folder("b", 1)])
    assert await numbers(store) == {"b": [1], "mine": [1]}
    with pytest.raises(ModelNotFound):
        await store.model("a")
    assert (await store.add_version(new("a"))).number == 6


async def test_changed_content_replaces_the_old_under_its_number(store: ModelStore) -> None:
    await store.sync_repository([folder("a", 1, "a", signature=SIGNATURE), folder("a", 2)])
    await store.sync_repository([folder("a", 1, "b"), folder("a", 2)])
    one, two = (await store.model("a")).versions
    assert (one.digest, one.signature) == ("sha256:bbbbbbbb", None)
    assert two.digest == "sha256:aaaaaaaa"


async def test_a_repository_that_moved_keeps_its_signatures_and_wishes_are_followed(store: ModelStore) -> None:
    await store.sync_repository([folder("a", 1)])
    await store.set_signature("a", 1, SIGNATURE)
    await store.sync_repository([folder("a", 1, path="/other/a", desired=False)])
    (version,) = (await store.model("a")).versions
    assert (version.path, version.desired, version.signature) == ("/other/a", False, SIGNATURE)


async def test_a_registered_version_outlives_the_repository_that_holds_it_too(store: ModelStore) -> None:
    registered = await store.add_version(new("a", 1))
    await store.sync_repository([folder("a", 1, desired=False)])
    assert (await store.model("a")).versions == (registered,)
    await store.sync_repository([])
    assert (await store.model("a")).versions == (registered,)


async def test_adding_a_repository_s_version_does_not_loosen_a_registered_one(store: ModelStore) -> None:
    registered = await store.add_version(new("a", 1))
    assert await store.add_version(folder("a", 1, path="/elsewhere")) == registered
    await store.sync_repository([])
    assert (await store.model("a")).versions == (registered,)


async def test_registering_a_version_of_the_repository_keeps_it_for_good(store: ModelStore) -> None:
    await store.sync_repository([folder("a", 1)])
    await store.add_version(new("a", 1))
    await store.sync_repository([])
    assert await numbers(store) == {"a": [1]}


async def test_clashes_with_registered_versions_are_named_and_nothing_changes(store: ModelStore) -> None:
    await store.add_version(new("a", 1, "a"))
    await store.add_version(new("b", 2, "b"))
    with pytest.raises(VersionConflict) as caught:
        await store.sync_repository([folder("a", 1, "x"), folder("b", 2, "y"), folder("c", 1)])
    assert "'a' exists and differs: the artifact is" in str(caught.value)
    assert "'b' exists and differs: the artifact is" in str(caught.value)
    assert await numbers(store) == {"a": [1], "b": [2]}
    assert await store.revision() == 2


async def test_a_number_that_a_repository_holds_twice_is_refused_with_both_places(store: ModelStore) -> None:
    with pytest.raises(VersionConflict, match="/m/1 and in /m/01"):
        await store.sync_repository([folder("a", 1, path="/m/1"), folder("a", 1, path="/m/01")])
    with pytest.raises(ValueError, match="number"):
        await store.sync_repository([msgspec.structs.replace(folder("a", 1), number=None)])
    assert await store.revision() == 0
