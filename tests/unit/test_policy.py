"""What is loaded and unloaded next. Small worlds are tried in full, larger ones by example."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lifecycle.policy import Key, Load, Shortage, Unload, Wait, failed_successors, next_action
from gateway.lifecycle.state import VersionState

LOADING, READY, RESTARTING, DRAINING, UNLOADED, FAILED = (
    VersionState.LOADING,
    VersionState.READY,
    VersionState.RESTARTING,
    VersionState.DRAINING,
    VersionState.UNLOADED,
    VersionState.FAILED,
)
KEYS: list[Key] = [("a", 1), ("a", 2), ("b", 1)]
Snapshot = tuple[frozenset[Key], dict[Key, VersionState]]


def snapshots() -> Iterator[Snapshot]:
    """Every world of two versions of one model and one of another."""
    for wanted in itertools.product((False, True), repeat=len(KEYS)):
        desired = frozenset(key for key, want in zip(KEYS, wanted, strict=True) if want)
        for states in itertools.product((None, *VersionState), repeat=len(KEYS)):
            yield desired, {key: state for key, state in zip(KEYS, states, strict=True) if state is not None}


def of(model: str, keys: frozenset[Key]) -> list[Key]:
    return sorted(key for key in keys if key[0] == model)


@pytest.mark.parametrize("max_loading", [1, 2])
def test_only_what_is_wanted_and_absent_is_loaded_and_never_too_much_at_a_time(max_loading: int) -> None:
    for desired, actual in snapshots():
        action = next_action(desired, actual, max_loading)
        if isinstance(action, Load):
            assert action.key in desired
            assert action.key not in actual
            assert list(actual.values()).count(LOADING) < max_loading


def test_only_what_is_not_wanted_and_still_here_is_unloaded() -> None:
    for desired, actual in snapshots():
        action = next_action(desired, actual, 2)
        if isinstance(action, Unload):
            assert action.key not in desired
            assert actual[action.key] not in (DRAINING, UNLOADED)


def test_a_version_in_service_leaves_only_when_another_has_taken_over_or_none_is_wanted() -> None:
    seen = 0
    for desired, actual in snapshots():
        action = next_action(desired, actual, 2)
        if isinstance(action, Unload) and actual[action.key] is READY and (wanted := of(action.key[0], desired)):
            seen += 1
            assert READY in [actual.get(key) for key in wanted]
            assert all(actual.get(key) in (READY, FAILED, RESTARTING) for key in wanted)
    assert seen


def test_nothing_is_done_only_when_everything_is_as_it_ought_to_be_or_waits_for_something_under_way() -> None:
    for desired, actual in snapshots():
        if next_action(desired, actual, 1) is not None:
            continue
        assert all(key in actual for key in desired) or LOADING in actual.values()
        for key in actual.keys() - desired:
            wanted = [actual.get(other) for other in of(key[0], desired)]
            waits = READY not in wanted or any(state in (None, LOADING, DRAINING, UNLOADED) for state in wanted)
            assert actual[key] in (DRAINING, UNLOADED) or (wanted and waits and actual[key] is not FAILED)


@pytest.mark.parametrize(
    ("desired", "actual", "action"),
    [
        ({2}, {1: READY}, Load(("m", 2))),
        ({2}, {1: READY, 2: LOADING}, None),
        ({2}, {1: READY, 2: READY}, Unload(("m", 1))),
        ({2}, {1: READY, 2: RESTARTING}, None),
        ({2}, {1: READY, 2: FAILED}, None),
        ({2}, {1: FAILED, 2: FAILED}, Unload(("m", 1))),
        ({2}, {1: FAILED, 2: LOADING}, Unload(("m", 1))),
        ({2}, {1: LOADING, 2: READY}, Unload(("m", 1))),
        ({2, 3}, {1: READY, 2: READY, 3: LOADING}, None),
        ({2, 3}, {1: READY, 2: READY, 3: FAILED}, Unload(("m", 1))),
        ({2, 3}, {1: READY, 2: FAILED, 3: FAILED}, None),
        (set(), {1: READY}, Unload(("m", 1))),
        (set(), {1: LOADING}, Unload(("m", 1))),
        (set(), {1: RESTARTING}, Unload(("m", 1))),
        (set(), {1: DRAINING}, None),
        ({1}, {1: DRAINING}, None),
        ({1}, {1: UNLOADED}, None),
        ({1}, {1: FAILED}, None),
        ({1}, {}, Load(("m", 1))),
        (set(), {}, None),
    ],
)
def test_one_model(desired: set[int], actual: dict[int, VersionState], action: Load | Unload | None) -> None:
    keys = frozenset(("m", number) for number in desired)
    assert next_action(keys, {("m", number): state for number, state in actual.items()}, 2) == action


def test_what_another_model_does_keeps_nothing_from_leaving() -> None:
    assert next_action(frozenset({("b", 1)}), {("a", 1): READY, ("b", 1): LOADING}, 1) == Unload(("a", 1))


def test_a_version_kept_because_its_successors_failed_names_them() -> None:
    desired = frozenset({("m", 2), ("m", 3), ("n", 9)})
    kept: dict[Key, VersionState] = {("m", 1): READY, ("m", 2): FAILED, ("m", 3): FAILED, ("n", 9): FAILED}
    assert failed_successors(("m", 1), desired, kept) == [2, 3]
    assert failed_successors(("m", 2), desired, kept) == []  # it ought to run itself
    assert failed_successors(("m", 1), desired, kept | {("m", 3): LOADING}) == []
    assert failed_successors(("m", 1), desired, kept | {("m", 1): FAILED}) == []
    assert failed_successors(("m", 7), desired, kept) == []  # it does not run
    assert failed_successors(("m", 1), frozenset({("n", 9)}), kept) == []


def test_a_version_is_kept_exactly_when_nothing_will_be_done_about_it() -> None:
    for desired, actual in snapshots():
        for key in actual:
            if failed_successors(key, desired, actual):
                assert next_action(desired, actual, 9) != Unload(key)


# --- a whole change, step by step ---

worlds = st.sets(st.sampled_from([("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]))


def carry_out(desired: frozenset[Key], actual: dict[Key, VersionState], succeeds: Mapping[Key, bool]) -> Iterator[None]:
    """Do what the policy says, one action at a time, and let what is under way end; after each step, yield."""
    while True:
        action = next_action(desired, actual, 2)
        pending = [key for key, state in sorted(actual.items()) if state in (LOADING, RESTARTING, DRAINING)]
        match action:
            case Load(key=key):
                actual[key] = LOADING
            case Unload(key=key):
                actual[key] = DRAINING
            case None if not pending:
                return
            case None if actual[pending[0]] is DRAINING:
                del actual[pending[0]]
            case None:
                actual[pending[0]] = READY if succeeds[pending[0]] else FAILED
        yield


@given(start=worlds, wanted=worlds, broken=worlds)
def test_every_change_comes_to_an_end_and_no_model_is_without_a_version_on_the_way(
    start: set[Key], wanted: set[Key], broken: set[Key]
) -> None:
    desired = frozenset(wanted)
    actual = dict.fromkeys(start, READY)
    succeeds = {key: key not in broken for key in start | wanted}
    for _ in carry_out(desired, actual, succeeds):
        for model in {model for model, _ in start} & {model for model, _ in wanted}:
            assert any(state is READY for key, state in actual.items() if key[0] == model)
    assert desired <= actual.keys()
    for key in actual.keys() - desired:
        assert failed_successors(key, desired, actual)
    assert all(actual[key] is (READY if succeeds[key] or key in start else FAILED) for key in desired)


# --- something is lacking ---

A, B, C = KEYS
WANTED = frozenset(KEYS)


def test_what_lacks_something_waits_while_another_loads_and_lets_others_pass() -> None:
    lacks = {A: "too large"}
    assert next_action(WANTED, {B: LOADING}, 2, Shortage(lacks)) == Wait(A, "too large")
    assert next_action(WANTED, {A: LOADING, B: LOADING}, 2, Shortage(lacks, frozenset({A}))) == Load(C)


def test_who_waits_takes_no_place_of_those_that_load() -> None:
    actual = {A: LOADING, B: LOADING}
    assert next_action(WANTED, actual, 1, Shortage({A: "too large"}, frozenset({A}))) is None  # B loads
    assert next_action(WANTED, {A: LOADING}, 1, Shortage({A: "too large"}, frozenset({A}), insists=True)) == Load(B)


def test_when_nothing_loads_a_version_is_tried_whatever_is_lacking() -> None:
    assert next_action(WANTED, {}, 2, Shortage(dict.fromkeys(KEYS, "too large"))) == Load(A)
    waiting = Shortage(dict.fromkeys(KEYS, "too large"), frozenset({B}))
    assert next_action(WANTED, {A: READY, B: LOADING}, 2, waiting) == Load(B)


def test_a_reserve_is_kept_even_when_nothing_loads() -> None:
    lacking = dict.fromkeys(KEYS, "too large")
    assert next_action(WANTED, {}, 2, Shortage(lacking, insists=True)) == Wait(A, "too large")
    everyone = Shortage(lacking, WANTED, insists=True)
    assert next_action(WANTED, dict.fromkeys(KEYS, LOADING), 2, everyone) is None


def test_who_waits_loads_once_nothing_is_lacking() -> None:
    shortage = Shortage({}, frozenset({A}), insists=True)
    assert next_action(WANTED, {A: LOADING, B: READY, C: READY}, 1, shortage) == Load(A)


def test_who_waits_and_is_not_wanted_any_more_leaves() -> None:
    assert next_action(frozenset(), {A: LOADING}, 2, Shortage({}, frozenset({A}))) == Unload(A)


@pytest.mark.parametrize("insists", [False, True])
def test_without_a_reserve_there_is_always_something_that_loads_until_all_have(insists: bool) -> None:
    for lacking in itertools.product((False, True), repeat=len(KEYS)):
        lacks = {key: "x" for key, lack in zip(KEYS, lacking, strict=True) if lack}
        loading: set[Key] = set()
        waiting: set[Key] = set()
        for _ in range(len(KEYS) + 1):
            actual = dict.fromkeys(loading | waiting, LOADING)
            match next_action(WANTED, actual, 9, Shortage(lacks, frozenset(waiting), insists)):
                case Load(key=key):
                    waiting.discard(key)
                    loading.add(key)
                case Wait(key=key):
                    waiting.add(key)
        assert loading | waiting == set(KEYS)
        assert loading or insists
        assert waiting <= lacks.keys()
