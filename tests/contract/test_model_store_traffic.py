"""What every model store keeps to: splits, aliases, rollback, removal, and the audit log."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from registry.audit import Author
from registry.cohorts import allot
from registry.errors import (
    InUse,
    InvalidTraffic,
    ModelNotFound,
    RevisionConflict,
    RevisionNotFound,
    VersionNotFound,
)
from registry.store import ModelStore
from registry.traffic import MAX_ENTRIES, Arm, Rule, Shadow, Traffic
from support.versions import folder, new

ANNA = Author("anna", "r-1")


def split(**weights: float) -> Traffic:
    """``split(v1=90, v2=10)``."""
    return Traffic(tuple(Arm(int(name[1:]), weight) for name, weight in weights.items()))


async def with_versions(store: ModelStore, count: int = 3, **fields: Any) -> ModelStore:
    for _ in range(count):
        await store.add_version(new("m", **fields))
    return store


# --- splits ----------------------------------------------------------------------------------------------------------


async def test_a_model_begins_without_a_split(store: ModelStore) -> None:
    await with_versions(store)
    model = await store.model("m")
    assert (model.traffic, model.traffic_revision, model.aliases) == (None, 0, {})
    assert await store.traffic_history("m") == []


async def test_everything_about_a_split_is_kept(store: ModelStore) -> None:
    await with_versions(store)
    traffic = Traffic(
        arms=(Arm(1, 90), Arm(2, 0.5), Arm(3, 0)),
        sticky="header:x-user-id",
        rules=(Rule("X-Beta", "yes, ä", 2),),
        shadows=(Shadow(3, 12.5),),
        salt="s",
    )
    model = await store.set_traffic("m", traffic, by=ANNA, note="try it")
    assert model.traffic is not None
    kept = model.traffic.traffic
    assert kept is not None
    assert msgspec.structs.replace(kept, salt="s", cohorts=()) == traffic
    assert kept.cohorts == allot((), traffic.arms)
    assert (model.traffic.revision, model.traffic.author, model.traffic.note) == (1, "anna", "try it")
    assert await store.model("m") == model
    assert await store.models() == [model]
    assert await store.traffic_history("m") == [model.traffic]


async def test_the_newest_revision_is_in_force_and_no_older_one_changes(store: ModelStore) -> None:
    await with_versions(store)
    for weight in range(1, 6):
        await store.set_traffic("m", split(v1=weight, v2=1))
    history = await store.traffic_history("m")
    assert [revision.revision for revision in history] == [5, 4, 3, 2, 1]
    assert [revision.traffic.arms[0].weight for revision in history if revision.traffic] == [5, 4, 3, 2, 1]
    assert await store.traffic_history("m", limit=2, before=4) == history[2:4]
    assert (await store.model("m")).traffic == history[0]


async def test_a_split_keeps_its_salt_while_weights_move(store: ModelStore) -> None:
    await with_versions(store)
    salts = set()
    for weight in (1, 2, 3):
        revision = (await store.set_traffic("m", split(v1=weight, v2=1))).traffic
        assert revision is not None
        assert revision.traffic is not None
        salts.add(revision.traffic.salt)
    assert len(salts) == 1
    assert salts != {""}


async def test_the_split_can_be_taken_away(store: ModelStore) -> None:
    await with_versions(store)
    await store.set_traffic("m", split(v1=1))
    model = await store.set_traffic("m", None)
    assert model.traffic is not None
    assert (model.traffic.revision, model.traffic.traffic) == (2, None)


async def test_versions_that_a_split_needs_ought_to_run(store: ModelStore) -> None:
    await with_versions(store, 5, desired=False)
    traffic = Traffic((Arm(1, 1), Arm(2, 0)), rules=(Rule("a", "b", 3),), shadows=(Shadow(4, 1),))
    model = await store.set_traffic("m", traffic)
    assert [version.number for version in model.versions if version.desired] == [1, 3, 4]


BAD = {
    "no arms": (Traffic(()), "sum to 0"),
    "no weight": (split(v1=0, v2=0), "sum to 0"),
    "a negative weight": (split(v1=2, v2=-1), r"arms\[1\]\.weight is -1"),
    "a weight that is no number": (split(v1=float("nan")), r"arms\[0\]\.weight is nan"),
    "an endless weight": (split(v1=float("inf")), r"arms\[0\]\.weight is inf"),
    "a version twice": (Traffic((Arm(1, 1), Arm(1, 2))), r"arms\[1\]\.version is 1.*named before"),
    "a version that is not there": (split(v1=1, v9=1), r"arms\[1\]\.version is 9.*has 1, 2, 3"),
    "a rule for a version that is not there": (
        Traffic((Arm(1, 1),), rules=(Rule("a", "b", 9),)), r"rules\[0\]\.version is 9"),
    "a rule with no header": (Traffic((Arm(1, 1),), rules=(Rule("a b", "", 1),)), r"rules\[0\]\.header is 'a b'"),
    "a shadow that is not there": (Traffic((Arm(1, 1),), shadows=(Shadow(9, 1),)), r"shadows\[0\]\.version is 9"),
    "more than all": (Traffic((Arm(1, 1),), shadows=(Shadow(2, 101),)), r"shadows\[0\]\.percent is 101"),
    "a shadow twice": (Traffic((Arm(1, 1),), shadows=(Shadow(2, 1),) * 2), r"shadows\[1\]\.version is 2"),
    "sticky by nothing": (Traffic((Arm(1, 1),), sticky="header:"), "sticky is 'header:'"),
    "sticky by something else": (Traffic((Arm(1, 1),), sticky="cookie:a"), "header:NAME, parameter:NAME or key"),
    "too many": (Traffic((Arm(1, 1),), rules=(Rule("a", "b", 1),) * (MAX_ENTRIES + 1)), "rules has 101 entries"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_a_split_that_cannot_be_is_refused_and_changes_nothing(store: ModelStore, case: str) -> None:
    await with_versions(store)
    before = await store.revision()
    traffic, text = BAD[case]
    with pytest.raises(InvalidTraffic, match=text):
        await store.set_traffic("m", traffic)
    assert await store.revision() == before
    assert await store.traffic_history("m") == []


async def test_a_split_of_no_model_is_refused(store: ModelStore) -> None:
    for call in (store.set_traffic("m", split(v1=1)), store.roll_back("m"), store.traffic_history("m")):
        with pytest.raises(ModelNotFound):
            await call


async def test_who_expected_another_revision_is_told_the_present_one(store: ModelStore) -> None:
    await with_versions(store)
    await store.set_traffic("m", split(v1=1), expected=0)
    for call in (
        store.set_traffic("m", split(v2=1), expected=0),
        store.set_traffic("m", split(v2=1), expected=2),
        store.roll_back("m", expected=0),
    ):
        with pytest.raises(RevisionConflict, match=r"has revision 1.*made for revision"):
            await call
    assert (await store.set_traffic("m", split(v2=1), expected=1)).traffic_revision == 2


async def test_of_many_who_expect_the_same_revision_one_wins(store: ModelStore) -> None:
    await with_versions(store)
    tries = [store.set_traffic("m", split(v1=weight), expected=0) for weight in range(1, 11)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(not isinstance(result, BaseException) for result in results) == 1
    assert sum(isinstance(result, RevisionConflict) for result in results) == 9
    assert len(await store.traffic_history("m")) == 1


# --- rollback --------------------------------------------------------------------------------------------------------


async def test_a_rollback_is_a_new_revision_that_says_what_the_old_one_said(store: ModelStore) -> None:
    await with_versions(store)
    for version in (1, 2, 3):
        await store.set_traffic("m", split(**{f"v{version}": 100}))
    history = await store.traffic_history("m")
    model = await store.roll_back("m", by=ANNA)
    assert model.traffic is not None
    assert model.traffic.revision == 4
    assert model.traffic.traffic == history[1].traffic
    assert model.traffic.author == "anna"
    assert "revision 2" in model.traffic.note
    assert (await store.traffic_history("m"))[1:] == history
    again = (await store.roll_back("m", to=1)).traffic
    assert again is not None
    assert (again.revision, again.traffic) == (5, history[2].traffic)


async def test_before_the_first_revision_there_was_no_split(store: ModelStore) -> None:
    await with_versions(store)
    await store.set_traffic("m", split(v1=1))
    model = await store.roll_back("m")
    assert model.traffic is not None
    assert model.traffic.traffic is None
    assert (await store.roll_back("m", to=0)).traffic_revision == 3


async def test_without_any_history_it_goes_to_the_version_before_the_greatest_that_runs(store: ModelStore) -> None:
    await with_versions(store, 4)
    await store.set_desired("m", 3, False)
    model = await store.roll_back("m")
    assert model.traffic is not None
    assert model.traffic.traffic is not None
    assert model.traffic.traffic.arms == (Arm(2, 100),)


async def test_a_rollback_that_leads_nowhere_is_refused(store: ModelStore) -> None:
    await with_versions(store, 1)
    with pytest.raises(InUse, match="no earlier revision"):
        await store.roll_back("m")
    await store.set_traffic("m", split(v1=1))
    with pytest.raises(RevisionNotFound, match="has no revision 7"):
        await store.roll_back("m", to=7)


async def test_what_is_rolled_back_to_ought_to_run_again(store: ModelStore) -> None:
    await with_versions(store)
    await store.set_traffic("m", split(v1=1))
    await store.set_traffic("m", split(v2=1))
    await store.set_desired("m", 1, False)
    model = await store.roll_back("m")
    assert next(version for version in model.versions if version.number == 1).desired


async def test_a_rollback_to_what_was_deleted_is_refused(store: ModelStore) -> None:
    await with_versions(store)
    await store.set_traffic("m", split(v1=1))
    await store.set_traffic("m", split(v2=1))
    await store.set_desired("m", 1, False)
    await store.delete_version("m", 1)
    with pytest.raises(InUse, match="needs version 1, which was deleted"):
        await store.roll_back("m")


# --- removal and unloading -------------------------------------------------------------------------------------------


async def test_what_takes_traffic_is_neither_unloaded_nor_deleted(store: ModelStore) -> None:
    await with_versions(store)
    traffic = Traffic((Arm(1, 1), Arm(2, 0)), rules=(Rule("a", "b", 3),))
    await store.set_traffic("m", traffic)
    for number in (1, 3):
        with pytest.raises(InUse, match=r"takes traffic \(revision 1\)"):
            await store.set_desired("m", number, False)
    await store.set_desired("m", 2, False)
    for number in (1, 2, 3):
        with pytest.raises(InUse, match="is in the traffic's revision 1"):
            await store.delete_version("m", number)


async def test_a_version_that_runs_or_has_an_alias_is_not_deleted(store: ModelStore) -> None:
    await with_versions(store)
    with pytest.raises(InUse, match=r"is in service.*model unload m 1"):
        await store.delete_version("m", 1)
    await store.set_desired("m", 1, False)
    await store.set_alias("m", "old", 1)
    with pytest.raises(InUse, match="alias 'old'"):
        await store.delete_version("m", 1)
    await store.set_alias("m", "old", None)
    await store.delete_version("m", 1)
    assert [version.number for version in (await store.model("m")).versions] == [2, 3]
    with pytest.raises(VersionNotFound):
        await store.delete_version("m", 1)
    assert (await store.add_version(new("m"))).number == 4


async def test_a_version_of_a_repository_is_not_deleted(store: ModelStore) -> None:
    await store.sync_repository([folder("m", 1, desired=False)])
    with pytest.raises(InUse, match="remove its folder"):
        await store.delete_version("m", 1)


async def test_what_leaves_its_repository_leaves_aliases_and_splits_as_well(store: ModelStore) -> None:
    await store.sync_repository([folder("m", 1), folder("m", 2), folder("m", 3)])
    await store.set_alias("m", "one", 1)
    await store.set_alias("m", "two", 2)
    traffic = Traffic((Arm(1, 9), Arm(2, 1)), rules=(Rule("a", "b", 2),), shadows=(Shadow(2, 1), Shadow(3, 1)))
    await store.set_traffic("m", traffic)
    await store.sync_repository([folder("m", 1), folder("m", 3)])
    model = await store.model("m")
    assert model.aliases == {"one": 1}
    assert model.traffic is not None
    assert model.traffic.traffic is not None
    assert model.traffic.traffic.arms == (Arm(1, 9),)
    assert model.traffic.traffic.rules == ()
    assert model.traffic.traffic.shadows == (Shadow(3, 1),)
    await store.sync_repository([folder("m", 3)])
    model = await store.model("m")
    assert model.traffic is not None
    assert (model.traffic.traffic, model.aliases) == (None, {})


async def test_new_content_of_a_repository_keeps_its_place_in_the_split(store: ModelStore) -> None:
    await store.sync_repository([folder("m", 1), folder("m", 2)])
    await store.set_traffic("m", split(v1=1, v2=1))
    await store.sync_repository([folder("m", 1), folder("m", 2, "b")])
    assert len(await store.traffic_history("m")) == 1


# --- aliases ---------------------------------------------------------------------------------------------------------


async def test_an_alias_is_set_moved_and_removed(store: ModelStore) -> None:
    await with_versions(store)
    assert (await store.set_alias("m", "stable", 1)).aliases == {"stable": 1}
    assert (await store.set_alias("m", "canary", 3)).aliases == {"canary": 3, "stable": 1}
    assert (await store.set_alias("m", "stable", 2)).aliases == {"canary": 3, "stable": 2}
    assert (await store.set_alias("m", "canary", None)).aliases == {"stable": 2}
    before = await store.revision()
    await store.set_alias("m", "stable", 2)
    await store.set_alias("m", "never", None)
    assert await store.revision() == before


@pytest.mark.parametrize("alias", ["", "7", "latest", "LATEST", "v2", "V10", "a/b", "a b", "ä", "a" * 129, "-a", "a\n"])
async def test_an_alias_that_could_be_mistaken_is_refused(store: ModelStore, alias: str) -> None:
    await with_versions(store, 1)
    with pytest.raises(InvalidTraffic, match="alias"):
        await store.set_alias("m", alias, 1)


async def test_an_alias_of_no_version_is_refused(store: ModelStore) -> None:
    with pytest.raises(ModelNotFound):
        await store.set_alias("m", "a", 1)
    await with_versions(store, 1)
    with pytest.raises(VersionNotFound):
        await store.set_alias("m", "a", 2)


# --- audit -----------------------------------------------------------------------------------------------------------


async def test_every_change_is_in_the_log_with_its_author_before_and_after(store: ModelStore) -> None:
    await store.add_version(new("m"), by=ANNA)
    await store.add_version(new("m"), by=ANNA)
    await store.set_alias("m", "stable", 1, by=ANNA)
    await store.set_alias("m", "stable", 2, by=ANNA)
    await store.set_traffic("m", split(v2=1), by=ANNA)
    await store.set_desired("m", 1, False, by=ANNA)
    await store.delete_version("m", 1, by=ANNA)
    log = (await store.audit())[::-1]
    assert [(entry.action, entry.subject) for entry in log] == [
        ("version.add", "model/m/version/1"),
        ("version.add", "model/m/version/2"),
        ("alias.set", "model/m/alias/stable"),
        ("alias.set", "model/m/alias/stable"),
        ("traffic.set", "model/m/traffic/1"),
        ("version.desire", "model/m/version/1"),
        ("version.remove", "model/m/version/1"),
    ]
    assert {(entry.actor, entry.request_id) for entry in log} == {("anna", "r-1")}
    assert (log[3].before, log[3].after) == (1, 2)
    assert log[4].before is None
    assert log[4].after["arms"] == [{"version": 2, "weight": 1.0}]
    assert (log[5].before, log[5].after) == ({"desired": True}, {"desired": False})
    assert [entry.id for entry in log] == sorted(entry.id for entry in log)


async def test_the_log_is_read_in_pages_and_by_subject(store: ModelStore) -> None:
    for name in ("m", "m%", "m_x", "mm"):
        await store.add_version(new(name))
    await store.set_alias("m", "stable", 1)
    log = await store.audit()
    assert len(log) == 5
    assert await store.audit(limit=2) == log[:2]
    assert await store.audit(limit=2, before=log[1].id) == log[2:4]
    assert {entry.subject for entry in await store.audit(subject="model/m")} == {
        "model/m/version/1",
        "model/m/alias/stable",
    }
    assert [entry.subject for entry in await store.audit(subject="model/m%")] == ["model/m%/version/1"]
    assert len(await store.audit(subject="model/m/alias/stable")) == 1


async def test_what_changed_nothing_or_failed_is_not_in_the_log(store: ModelStore) -> None:
    await store.add_version(new("m", 1))
    await store.add_version(new("m", 1))
    await store.set_desired("m", 1, True)
    with pytest.raises(InvalidTraffic):
        await store.set_traffic("m", msgspec.structs.replace(split(v1=1), sticky="x"))
    assert len(await store.audit()) == 1
