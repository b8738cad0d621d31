"""The table in which every request's model and version are looked up."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from backends.spec import ModelSpec
from gateway.errors import GatewayError, ModelNotReady, NotFound
from gateway.inference.request import InferRequest
from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.repository import Problem
from gateway.lifecycle.served import Served
from gateway.lifecycle.state import VersionState
from gateway.proto.model_config_pb2 import ModelConfig
from gateway.telemetry.statistics import ModelStatistics
from gateway.workers.replica import Replica, WorkerLimits
from registry.record import Model, ModelVersion, Source
from registry.traffic import Arm, Traffic, TrafficRevision, settled

WAY = {
    VersionState.LOADING: [],
    VersionState.READY: [VersionState.READY],
    VersionState.RESTARTING: [VersionState.READY, VersionState.RESTARTING],
    VersionState.DRAINING: [VersionState.READY, VersionState.DRAINING],
    VersionState.FAILED: [VersionState.FAILED],
}
NOT_READY = [state for state in WAY if state is not VersionState.READY]


def served(model: str, number: int, state: VersionState = VersionState.READY, reason: str = "") -> Served:
    record = ModelVersion(
        model, number, "echo", "echo:", "", "sha256:0", 0, Source.REGISTERED, True, datetime(2026, 1, 1, tzinfo=UTC)
    )
    spec = ModelSpec(model, number, "echo", "")
    version = Served(record, spec, ModelConfig(), ModelStatistics(model, str(number)), 4)
    for step in WAY[state]:
        version.move(step, reason)
    version.reason = reason
    return version


def catalog(*versions: Served) -> Catalog:
    made = Catalog()
    for version in versions:
        made.add(version)
        numbers = made.registered.get(version.record.model, frozenset())
        made.registered[version.record.model] = numbers | {version.record.number}
    return made


def test_without_a_version_the_greatest_ready_one_is_meant_by_number_and_not_by_text() -> None:
    versions = [served("m", number) for number in (9, 10, 2)]
    made = catalog(*versions, served("m", 11, VersionState.LOADING), served("m", 12, VersionState.FAILED))
    assert made.resolve("m", "").record.number == 10
    assert made.find("m", "").record.number == 10


def test_the_default_follows_every_change_of_state() -> None:
    old, new = served("m", 1), served("m", 2, VersionState.LOADING)
    made = catalog(old, new)
    assert made.resolve("m", "") is old
    new.move(VersionState.READY)
    made.refresh("m")
    assert made.resolve("m", "") is new
    new.move(VersionState.RESTARTING)
    made.refresh("m")
    assert made.resolve("m", "") is old
    old.move(VersionState.DRAINING)
    made.refresh("m")
    with pytest.raises(ModelNotReady, match="'m' version 2, which is not at ready state but restarting"):
        made.resolve("m", "")


def test_models_do_not_see_each_other() -> None:
    made = catalog(served("a", 1), served("b", 2))
    assert made.resolve("a", "").record.model == "a"
    with pytest.raises(NotFound):
        made.resolve("a", "2")


@pytest.mark.parametrize("version", ["", "3"])
@pytest.mark.parametrize("state", NOT_READY)
def test_a_version_that_is_not_ready_is_found_but_takes_no_request(version: str, state: VersionState) -> None:
    made = catalog(served("m", 3, state, "because of that"))
    assert made.find("m", version).state is state
    with pytest.raises(ModelNotReady, match=f"'m' version 3, which is not at ready state but {state}: because of that"):
        made.resolve("m", version)


@pytest.mark.parametrize("version", ["1", "01", "0000000000000000001"])
def test_a_version_is_named_by_its_number(version: str) -> None:
    assert catalog(served("m", 1), served("m", 10)).resolve("m", version).record.number == 1


ODD = ["0", "-1", "+1", " 1", "1 ", "1.0", "1e0", "0x1", "1_0", "one", "١", "²", "1\x00", "\ud800", "%31"]


@pytest.mark.parametrize("version", [*ODD, "9" * 20, "1" * 5000, "0" * 5000 + "1"], ids=lambda text: ascii(text)[:24])
def test_whatever_else_is_written_as_a_version_is_not_found(version: str) -> None:
    made = catalog(served("m", 1), served("m", 10))
    for lookup in (made.find, made.resolve):
        with pytest.raises(NotFound, match=r"is not found \(versions: 1, 10\)$"):
            lookup("m", version)


def test_the_largest_number_that_the_registry_gives_can_be_asked_for() -> None:
    number = 2**63 - 2
    assert catalog(served("m", number)).resolve("m", str(number)).record.number == number


@pytest.mark.parametrize("version", ["", "1", "x"])
@pytest.mark.parametrize("model", ["", "M", "m ", "other", "m/1"])
def test_an_unknown_model_is_not_found_whatever_the_version(model: str, version: str) -> None:
    with pytest.raises(NotFound, match=f"'{model}' is not found"):
        catalog(served("m", 1)).resolve(model, version)


def test_an_unknown_model_is_told_which_models_there_are_and_of_many_the_first_ten() -> None:
    made = catalog(served("b", 1), served("a", 1))
    made.registered["idle"] = frozenset({1})
    with pytest.raises(NotFound, match=r"'other' is not found \(models: a, b, idle\)$"):
        made.resolve("other", "")
    with pytest.raises(NotFound, match=r"\(models: none\)$"):
        catalog().resolve("other", "")
    many = catalog(*(served(f"m{number:02}", 1) for number in range(12)))
    with pytest.raises(NotFound, match=r"\(models: m00, .*, m09, and 2 more\)$"):
        many.resolve("other", "")


def test_of_many_versions_the_first_ten_are_named() -> None:
    many = catalog(*(served("m", number) for number in range(1, 14)))
    with pytest.raises(NotFound, match=r"\(versions: 1, 2, .*, 10, and 3 more\)$"):
        many.resolve("m", "99")


def test_what_is_registered_and_not_loaded_is_not_ready_and_what_is_not_registered_is_not_found() -> None:
    made = catalog(served("m", 1))
    made.registered = {"m": frozenset({1, 2}), "idle": frozenset({7})}
    with pytest.raises(ModelNotReady, match="'m' version 2, which is not loaded"):
        made.resolve("m", "2")
    with pytest.raises(ModelNotReady, match="'idle', which has no available versions"):
        made.resolve("idle", "")
    with pytest.raises(NotFound, match=r"version 3 is not found \(versions: 1, 2\)"):
        made.resolve("m", "3")


def test_a_model_whose_last_version_is_removed_is_gone_and_can_come_back() -> None:
    first, second = served("m", 1), served("m", 2)
    made = catalog(first, second)
    made.remove(second)
    assert made.resolve("m", "") is first
    made.remove(first)
    assert made.all() == []
    with pytest.raises(GatewayError):
        made.resolve("m", "")
    made.add(second)
    assert made.resolve("m", "2") is made.resolve("m", "") is second


def test_everything_is_listed_by_name_and_number() -> None:
    made = catalog(served("b", 2), served("a", 10), served("a", 9), served("b", 1, VersionState.FAILED))
    assert [(v.record.model, v.record.number) for v in made.all()] == [("a", 9), ("a", 10), ("b", 1), ("b", 2)]


def test_what_ought_to_run_and_does_not_yet_is_awaited() -> None:
    made = catalog(served("m", 1), served("m", 2, VersionState.FAILED))
    made.desired = frozenset({("m", 1), ("m", 2), ("m", 10), ("m", 9), ("a", 1)})
    assert made.awaited() == [("a", 1), ("m", 9), ("m", 10)]


def test_a_model_that_could_not_even_be_registered_says_why() -> None:
    made = catalog(served("m", 1))
    made.problems = (Problem("broken", None, "its config is no config"),)
    with pytest.raises(ModelNotReady, match="'broken', which cannot be served: its config is no config"):
        made.resolve("broken", "")
    with pytest.raises(NotFound):
        made.resolve("other", "")


async def test_an_unloaded_version_has_no_signature() -> None:
    with pytest.raises(ModelNotReady, match="'m' version 1"):
        _ = served("m", 1, VersionState.LOADING).signature


def test_while_a_server_starts_an_unknown_model_may_yet_come() -> None:
    made = catalog(served("m", 1))
    made.is_read = False
    with pytest.raises(ModelNotReady, match="'other', and the server has yet to read its models"):
        made.resolve("other", "")
    assert made.resolve("m", "").record.number == 1


@pytest.mark.parametrize(
    ("state", "due_in_s", "at_least", "at_most"),
    [
        (VersionState.LOADING, None, 1, 1),
        (VersionState.RESTARTING, None, 1, 1),
        (VersionState.RESTARTING, -5, 1, 1),
        (VersionState.RESTARTING, 6.4, 1, 6.4),
        (VersionState.FAILED, 30, 1, 30),
        (VersionState.FAILED, None, None, None),
        (VersionState.DRAINING, 30, None, None),
    ],
)
def test_a_version_that_will_be_tried_again_says_when(
    state: VersionState, due_in_s: float | None, at_least: float | None, at_most: float | None
) -> None:
    version = served("m", 1, state)
    replica = Replica("m:1-0", version.spec, "python", WorkerLimits(), lambda: None)
    replica.retry_at = 0.0 if due_in_s is None else time.monotonic() + due_in_s
    version.replicas.append(replica)
    for number in ("", "1"):
        with pytest.raises(ModelNotReady) as caught:
            catalog(version).resolve("m", number)
        after = caught.value.retry_after_s
        if at_least is None or at_most is None:
            assert after is None
        else:
            assert after is not None
            assert at_least <= after <= at_most


@pytest.mark.parametrize(("desired", "after"), [({("m", 2), ("idle", 7)}, 1.0), (set(), None)])
def test_what_waits_for_its_turn_can_be_asked_again_and_what_is_unloaded_not(
    desired: set[tuple[str, int]], after: float | None
) -> None:
    made = catalog(served("m", 1))
    made.registered = {"m": frozenset({1, 2}), "idle": frozenset({7})}
    made.desired = frozenset(desired)
    for model, number in (("m", "2"), ("idle", "")):
        with pytest.raises(ModelNotReady) as caught:
            made.resolve(model, number)
        assert caught.value.retry_after_s == after


def model(revision: int, traffic: Traffic | None, **aliases: int) -> Model:
    """As the registry has it."""
    made = datetime(2026, 1, 1, tzinfo=UTC)
    versions = tuple(served("m", number).record for number in (1, 2))
    return Model("m", made, versions, aliases, TrafficRevision("m", revision, traffic, "", "", made))


def all_to(number: int) -> Traffic:
    return settled(Traffic((Arm(number, 1),)), None)


def test_a_split_and_aliases_hold_from_the_next_request_on() -> None:
    made = catalog(served("m", 1), served("m", 2))
    request = InferRequest("m", "", [])
    assert made.route(request).record.number == 2
    for revision, number in enumerate((1, 2, 1), 1):
        made.take_one(model(revision, all_to(number), stable=number))
        assert made.route(request).record.number == number
        assert made.resolve("m", "").record.number == number
        assert made.resolve("m", "stable").record.number == number
    made.take([model(4, None)])
    assert made.route(request).record.number == 2
    with pytest.raises(NotFound):
        made.resolve("m", "stable")


def test_who_gets_all_requests_is_not_replaced_by_a_version_outside_of_the_split() -> None:
    first = served("m", 1)
    made = catalog(first, served("m", 2))
    made.take_one(model(1, all_to(1)))
    assert made.serves("m")
    first.move(VersionState.RESTARTING)
    made.refresh("m")
    assert not made.serves("m"), "version 2 is ready, and takes no part"
    with pytest.raises(ModelNotReady, match="version 1"):
        made.route(InferRequest("m", "", []))
