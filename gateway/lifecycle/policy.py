"""What to do next, given what ought to run and what runs. Pure: a snapshot in, at most one action out.

Availability first: a version that ought not to run any more leaves when those of its model that ought to have settled,
and one of them is ready. So a new version is ready before the old one leaves, and if the new one fails the old one
stays. The manager asks again until there is nothing left to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

import msgspec

from gateway.lifecycle.state import VersionState

Key = tuple[str, int]  # model, version number

_SETTLED = frozenset({VersionState.READY, VersionState.FAILED, VersionState.RESTARTING})
_LEAVING = frozenset({VersionState.DRAINING, VersionState.UNLOADED})


class Load(msgspec.Struct, frozen=True):
    """Start serving a version."""

    key: Key


class Wait(msgspec.Struct, frozen=True):
    """A version's turn to load has come, and something is lacking: let it wait, for that reason."""

    key: Key
    reason: str


class Unload(msgspec.Struct, frozen=True):
    """Stop serving a version."""

    key: Key


class Shortage(msgspec.Struct, frozen=True):
    """What keeps versions from loading now.

    ``lacks``: version -> what is lacking; ``waiting``: those that are ``LOADING`` and wait, without a worker.
    ``insists``: none is loaded while something is lacking. Otherwise a version is tried all the same when nothing else
    loads: what is known of its needs may be a guess, and nothing may ever become free by itself.
    """

    lacks: Mapping[Key, str] = MappingProxyType({})
    waiting: AbstractSet[Key] = frozenset()
    insists: bool = False


NO_SHORTAGE: Final = Shortage()


def next_action(
    desired: frozenset[Key], actual: dict[Key, VersionState], max_loading: int, shortage: Shortage = NO_SHORTAGE
) -> Load | Wait | Unload | None:
    """The next action, or None when all is as it ought to be, or has to wait for something under way."""
    for key in sorted(actual):
        if key not in desired and actual[key] not in _LEAVING and _may_leave(key, desired, actual):
            return Unload(key)
    loading = sum(state is VersionState.LOADING for state in actual.values()) - len(shortage.waiting)
    if loading >= max_loading:
        return None
    for key in candidates(desired, actual, shortage.waiting):
        if key not in shortage.lacks or (not loading and not shortage.insists):
            return Load(key)
        if key not in shortage.waiting:
            return Wait(key, shortage.lacks[key])
    return None


def candidates(desired: AbstractSet[Key], actual: Mapping[Key, VersionState], waiting: AbstractSet[Key]) -> list[Key]:
    """The versions that could be loaded next, in order."""
    return sorted(key for key in desired if key not in actual or key in waiting)


def failed_successors(key: Key, desired: frozenset[Key], actual: dict[Key, VersionState]) -> list[int]:
    """The versions whose failure keeps this one, which ought not to run, in service; empty if nothing does."""
    if key in desired or actual.get(key) is not VersionState.READY:
        return []
    wanted = [other for other in desired if other[0] == key[0]]
    if all(actual.get(other) is VersionState.FAILED for other in wanted):
        return sorted(number for _, number in wanted)
    return []


def _may_leave(key: Key, desired: frozenset[Key], actual: dict[Key, VersionState]) -> bool:
    """Whether nothing is lost when this version goes: it serves nothing, none is wanted, or others have taken over."""
    if actual[key] is VersionState.FAILED:
        return True
    states = [actual.get(other) for other in desired if other[0] == key[0]]
    return not states or (all(state in _SETTLED for state in states) and VersionState.READY in states)
