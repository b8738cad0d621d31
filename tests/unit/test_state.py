"""The states of a version, and the moves between them."""

from __future__ import annotations

import itertools

import pytest

from gateway.lifecycle.state import VersionState, transition

MOVES = {
    ("loading", "ready"),
    ("loading", "failed"),
    ("loading", "draining"),
    ("ready", "restarting"),
    ("ready", "draining"),
    ("restarting", "ready"),
    ("restarting", "failed"),
    ("restarting", "draining"),
    ("failed", "ready"),
    ("failed", "draining"),
    ("draining", "unloaded"),
}


@pytest.mark.parametrize(("current", "target"), [*itertools.product(VersionState, VersionState)])
def test_a_move_is_made_if_it_is_legal_and_refused_otherwise(current: VersionState, target: VersionState) -> None:
    if (current.value, target.value) in MOVES:
        assert transition(current, target) is target
    else:
        with pytest.raises(ValueError, match=f"a version cannot go from {current} to {target}"):
            transition(current, target)


def legal_targets(state: VersionState) -> list[VersionState]:
    return [target for target in VersionState if (state.value, target.value) in MOVES]


def reachable(start: VersionState) -> set[VersionState]:
    seen, front = {start}, [start]
    while front:
        front = [target for state in front for target in legal_targets(state) if target not in seen]
        seen.update(front)
    return seen


def test_every_state_is_reached_from_loading_and_every_one_leads_to_unloaded() -> None:
    assert reachable(VersionState.LOADING) == set(VersionState)
    for state in VersionState:
        assert VersionState.UNLOADED in reachable(state)


def test_unloaded_is_the_end() -> None:
    assert legal_targets(VersionState.UNLOADED) == []


def test_a_version_that_is_leaving_does_not_come_back() -> None:
    assert reachable(VersionState.DRAINING) == {VersionState.DRAINING, VersionState.UNLOADED}
