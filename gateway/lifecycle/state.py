"""The states of a version in this gateway, and the one place that changes them."""

from __future__ import annotations

import enum

import msgspec


class VersionState(enum.StrEnum):
    """``READY`` is the only state in which requests are taken."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # it was ready, its worker died, a new one is on its way
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


_LEGAL: dict[VersionState, frozenset[VersionState]] = {
    VersionState.LOADING: frozenset({VersionState.READY, VersionState.FAILED, VersionState.DRAINING}),
    VersionState.READY: frozenset({VersionState.RESTARTING, VersionState.DRAINING}),
    VersionState.RESTARTING: frozenset({VersionState.READY, VersionState.FAILED, VersionState.DRAINING}),
    VersionState.FAILED: frozenset({VersionState.READY, VersionState.DRAINING}),  # it is tried again now and then
    VersionState.DRAINING: frozenset({VersionState.UNLOADED}),
    VersionState.UNLOADED: frozenset(),
}


def transition(current: VersionState, target: VersionState) -> VersionState:
    """``target``, if the move is legal. Raises ``ValueError``: a fault of ours, never of a client."""
    if target not in _LEGAL[current]:
        raise ValueError(f"a version cannot go from {current} to {target}")
    return target


class LoadStatus(msgspec.Struct, frozen=True):
    """What the worker's last load took, in seconds and bytes.

    ``memory_bytes`` was resident when it was ready; ``model_bytes`` of that came after the framework was imported, with
    the model; ``peak_bytes`` was the most on the way.
    """

    total_s: float
    import_s: float
    read_s: float
    warmup_s: float
    memory_bytes: int
    model_bytes: int
    peak_bytes: int


class WorkerStatus(msgspec.Struct, frozen=True):
    """A snapshot of one worker. ``started_at`` is Unix time in seconds, 0 if it does not run."""

    id: str
    model: str
    number: int
    framework: str
    pid: int | None
    state: str
    restarts: int
    rss_bytes: int
    started_at: float
    reason: str
    device: str = "cpu"
    load: LoadStatus | None = None


class VersionStatus(msgspec.Struct, frozen=True):
    """A snapshot of one version."""

    model: str
    number: int
    state: VersionState
    reason: str
    workers: tuple[WorkerStatus, ...] = ()
