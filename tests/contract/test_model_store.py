"""What every model store keeps to: registering and changing versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from registry.errors import InvalidName, ModelNotFound, VersionConflict, VersionNotFound
from registry.names import MAX_NUMBER
from registry.record import ModelVersion, Source
from registry.sql import SqlModelStore
from registry.store import ModelStore
from support.versions import SIGNATURE, new, numbers


async def test_a_fresh_store_is_empty(store: ModelStore) -> None:
    assert await store.models() == []
    assert await store.revision() == 0


async def test_everything_about_a_version_is_kept(store: ModelStore) -> None:
    config = {"max_batch_size": 8, "parameters": {"é": "\u2028'\"", "none": None}, "shape": [1, -1], "rate": 0.5}
    before = datetime.now(UTC)
    added = await store.add_version(new("mñ 1:ü", config=config, size_bytes=2**40, desired=False, signature=SIGNATURE))
    assert added.created_at.utcoffset() == timedelta(0)
    assert before <= added.created_at <= datetime.now(UTC)
    assert added == ModelVersion(
        model="mñ 1:ü",
        number=1,
        framework="onnx",
        artifact="/models/a",
        path="/models/a",
        digest="sha256:aaaaaaaa",
        size_bytes=2**40,
        source=Source.REGISTERED,
        desired=False,
        created_at=added.created_at,
        config=config,
        signature=SIGNATURE,
    )
    model = await store.model("mñ 1:ü")
    assert model.versions == (added,)
    assert await store.models() == [model]


async def test_models_come_by_name_and_versions_by_number(store: ModelStore) -> None:
    for name, number in [("b", 10), ("B", 1), ("é", 1), ("a", 1), ("b", 9)]:
        await store.add_version(new(name, number))
    assert list((await numbers(store)).items()) == [("B", [1]), ("a", [1]), ("b", [9, 10]), ("é", [1])]


async def test_without_a_number_the_same_content_is_a_new_version(store: ModelStore) -> None:
    first, second = await store.add_version(new()), await store.add_version(new())
    assert (first.number, second.number) == (1, 2)


async def test_a_given_number_moves_the_next_free_one_but_a_gap_stays_free(store: ModelStore) -> None:
    given = [await store.add_version(new(number=number)) for number in (7, 3, None, 4, None)]
    assert [version.number for version in given] == [7, 3, 8, 4, 9]


async def test_many_registrations_at_once_get_a_number_each(store: ModelStore) -> None:
    added = await asyncio.gather(*[store.add_version(new(content=letter)) for letter in "abcdefghijklmnopqrst"])
    assert sorted(version.number for version in added) == list(range(1, 21))
    assert {version.digest for version in (await store.model("resnet")).versions} == {v.digest for v in added}
    assert await store.revision() == 20


async def test_two_stores_on_one_database_share_numbers_and_see_each_other(store: ModelStore, url: str) -> None:
    other = SqlModelStore(url)
    await other.open()
    added = await asyncio.gather(*[each.add_version(new()) for each in (store, other) * 10])
    assert sorted(version.number for version in added) == list(range(1, 21))
    assert await other.models() == await store.models()
    assert await other.revision() == await store.revision() == 20
    await other.close()


async def test_the_same_again_is_answered_with_what_exists_and_changes_nothing(store: ModelStore) -> None:
    first = await store.add_version(new(number=2, config={"a": (1, 2)}))
    assert await store.add_version(new(number=2, config={"a": [1, 2]}, desired=False)) == first
    assert await store.revision() == 1


async def test_the_same_again_may_ask_to_run_it_and_may_tell_its_signature(store: ModelStore) -> None:
    await store.add_version(new(number=1, desired=False))
    again = await store.add_version(new(number=1, signature=SIGNATURE))
    assert (again.desired, again.signature) == (True, SIGNATURE)
    assert await store.revision() == 2


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"content": "b"}, "the artifact is /models/a (sha256:aaaaaaaa) there and /models/b (sha256:bbbbbbbb) here"),
        ({"framework": "echo"}, "framework is onnx there and echo here"),
        ({"config": {"max_batch_size": 1}}, "config.max_batch_size is unset there and 1 here"),
    ],
    ids=["content", "framework", "config"],
)
async def test_a_number_with_other_content_is_refused_with_what_differs_and_a_free_number(
    store: ModelStore, other: dict[str, Any], said: str
) -> None:
    first = await store.add_version(new(number=4))
    with pytest.raises(VersionConflict, match="next free number, 5") as caught:
        await store.add_version(new(number=4, **other))
    assert f"version 4 of model 'resnet' exists and differs: {said}. " in str(caught.value)
    assert (await store.model("resnet")).versions == (first,)
    assert await store.revision() == 1


async def test_content_that_has_moved_is_found_in_its_new_place(store: ModelStore) -> None:
    await store.add_version(new(number=1, signature=SIGNATURE, desired=False))
    moved = await store.add_version(new(number=1, artifact="pkg://a/b", path="/elsewhere/b", desired=False))
    assert (moved.artifact, moved.path, moved.signature) == ("pkg://a/b", "/elsewhere/b", SIGNATURE)
    assert not moved.desired
    assert (await store.model("resnet")).versions == (moved,)


@pytest.mark.parametrize(
    "name",
    ["", "x" * 129, "a/b", "a\\b", ".", "..", " a", "a\t", "a\nb", "a\0b", "\x7f", "\ud800", "a\u2028b", "a\u00a0"],
)
async def test_a_name_that_no_url_could_carry_is_refused(store: ModelStore, name: str) -> None:
    with pytest.raises(InvalidName, match="model name"):
        await store.add_version(new(name))
    with pytest.raises(ModelNotFound):
        await store.model(name)
    with pytest.raises(ModelNotFound):
        await store.set_desired(name, 1, True)
    assert await store.revision() == 0


@pytest.mark.parametrize("name", ["x" * 128, "...", "a b", "模型", "a:1@b", "%2F", "'; DROP TABLE model; --"])
async def test_any_other_name_is_taken(store: ModelStore, name: str) -> None:
    await store.add_version(new(name))
    assert (await store.model(name)).name == name


@pytest.mark.parametrize("number", [0, -1, MAX_NUMBER + 1, 2**70])
async def test_a_number_out_of_range_is_refused(store: ModelStore, number: int) -> None:
    with pytest.raises(InvalidName, match=str(MAX_NUMBER)):
        await store.add_version(new(number=number))
    await store.add_version(new())
    with pytest.raises(VersionNotFound):
        await store.set_desired("resnet", number, False)


async def test_after_the_last_number_there_is_no_next_one(store: ModelStore) -> None:
    await store.add_version(new(number=MAX_NUMBER))
    with pytest.raises(InvalidName, match=str(MAX_NUMBER)):
        await store.add_version(new())
    assert await numbers(store) == {"resnet": [MAX_NUMBER]}


async def test_a_config_that_json_cannot_hold_is_refused_before_anything_is_written(store: ModelStore) -> None:
    with pytest.raises(ValueError, match="JSON"):
        await store.add_version(new(config={"rate": float("nan")}))
    assert await store.models() == []


async def test_desired_is_set_and_only_a_change_moves_the_revision(store: ModelStore) -> None:
    added = await store.add_version(new())
    assert await store.set_desired("resnet", 1, False) == msgspec.structs.replace(added, desired=False)
    assert await store.set_desired("resnet", 1, False) == (await store.model("resnet")).versions[0]
    assert await store.revision() == 2


async def test_a_signature_is_written_once(store: ModelStore) -> None:
    await store.add_version(new())
    await store.set_signature("resnet", 1, SIGNATURE)
    await store.set_signature("resnet", 1, SIGNATURE)
    with pytest.raises(VersionConflict, match="signature"):
        await store.set_signature("resnet", 1, msgspec.structs.replace(SIGNATURE, max_batch_size=0))
    assert (await store.model("resnet")).versions[0].signature == SIGNATURE
    assert await store.revision() == 2


@pytest.mark.parametrize(
    "change",
    [lambda s, name, number: s.set_desired(name, number, True), lambda s, name, n: s.set_signature(name, n, SIGNATURE)],
    ids=["desired", "signature"],
)
async def test_what_is_not_there_is_not_changed(store: ModelStore, change: Callable[..., Any]) -> None:
    with pytest.raises(ModelNotFound, match="resnet"):
        await change(store, "resnet", 1)
    await store.add_version(new(number=3))
    await store.add_version(new(number=5))
    with pytest.raises(VersionNotFound, match=r"no version 4; it has 3, 5"):
        await change(store, "resnet", 4)
