"""What administrators ask about traffic: splits, aliases, rollbacks, and who changed what.

A version is loaded before it gets requests, unless that is to be forced. What is changed holds for the next request:
the registry's transaction is followed by the catalog of this gateway at once, and then by the answer.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime

import msgspec

from gateway import errors
from gateway.lifecycle.manager import Manager
from gateway.lifecycle.state import VersionState
from gateway.serving.shadow import Shadows, ShadowStatistics
from gateway.serving.told import told
from registry.audit import AuditEntry, Author
from registry.record import Model
from registry.store import ModelStore
from registry.traffic import Rule, Shadow, Traffic, TrafficRevision, check_traffic

log = logging.getLogger("tensorgate.traffic")


class Share(msgspec.Struct, frozen=True):
    """A version of a split: its weight, and what that is of all requests."""

    version: int
    weight: float
    percent: float


class TrafficInfo(msgspec.Struct, frozen=True):
    """A revision of a model's split. Revision 0, or no shares: requests go to the greatest version that is ready."""

    model: str
    revision: int
    shares: tuple[Share, ...]
    sticky: str
    rules: tuple[Rule, ...]
    shadows: tuple[Shadow, ...]
    author: str
    note: str
    created_at: datetime | None


class ShadowInfo(msgspec.Struct, frozen=True):
    """What came of the copies for a version, since this gateway started. Times are means, of what was compared."""

    version: int
    percent: float
    equal: int
    different: int
    incomparable: int
    failed: int
    dropped: int
    original_ms: float | None
    copy_ms: float | None


class TrafficPlane:
    """Raises ``gateway.errors`` only: ``NotFound``, ``Conflict``, ``Outdated``, ``InvalidRequest``, ``Unavailable``."""

    def __init__(self, store: ModelStore, manager: Manager, shadows: Shadows) -> None:
        self._shadows = shadows
        self._store = store
        self._manager = manager

    async def show(self, name: str) -> TrafficInfo:
        """The split in force."""
        with told():
            return _info(name, (await self._store.model(name)).traffic)

    async def shadows(self, name: str) -> list[ShadowInfo]:
        """How the answers of shadows compare with those that clients got."""
        traffic = await self.show(name)
        return [_shadow_info(shadow, self._shadows.of(name, shadow.version)) for shadow in traffic.shadows]

    async def history(self, name: str, limit: int, before: int | None) -> list[TrafficInfo]:
        """Newest first."""
        with told():
            return [_info(name, revision) for revision in await self._store.traffic_history(name, limit, before)]

    async def set(
        self,
        name: str,
        traffic: Traffic | None,
        by: Author,
        *,
        expected: int | None = None,
        note: str = "",
        force: bool = False,
        wait_s: float = 0.0,
    ) -> TrafficInfo:
        """Share requests anew, once every version that gets some is ready (``force``: whether or not)."""
        with told():
            if traffic is not None and not force:
                model = await self._store.model(name)
                check_traffic(name, traffic, {version.number for version in model.versions})
                await self._make_ready(name, traffic, by, wait_s)
            changed = await self._store.set_traffic(name, traffic, expected, by, note)
        return self._in_force(changed)

    async def roll_back(
        self,
        name: str,
        to: int | None,
        by: Author,
        *,
        expected: int | None = None,
        force: bool = False,
        wait_s: float = 0.0,
    ) -> TrafficInfo:
        """Share requests as an earlier revision did, by default the one before."""
        with told():
            target = None if force else await self._store.rollback_target(name, to)
            if target is not None:
                await self._make_ready(name, target, by, wait_s)
            changed = await self._store.roll_back(name, to, expected, by)
        log.warning("%s was rolled back by %s", name, by.name)
        return self._in_force(changed)

    async def set_alias(self, name: str, alias: str, number: int | None, by: Author) -> dict[str, int]:
        """All aliases of the model, as they are afterwards."""
        with told():
            changed = await self._store.set_alias(name, alias, number, by)
        self._in_force(changed)
        return changed.aliases

    async def delete(self, name: str, number: int, by: Author) -> None:
        """Remove a version that nobody needs."""
        with told():
            await self._store.delete_version(name, number, by)
        self._manager.poke()

    async def audit(self, limit: int, before: int | None, subject: str) -> list[AuditEntry]:
        """Newest first."""
        with told():
            return await self._store.audit(limit, before, subject)

    def _in_force(self, model: Model) -> TrafficInfo:
        self._manager.catalog.take_one(model)
        self._manager.poke()
        return _info(model.name, model.traffic)

    async def _make_ready(self, name: str, traffic: Traffic, by: Author, wait_s: float) -> None:
        """Load what the split needs, and wait for it. Raises ``Conflict`` if that fails or takes too long."""
        needed = sorted(traffic.versions())
        for number in needed:
            await self._store.set_desired(name, number, True, by)
        self._manager.poke()
        deadline = time.monotonic() + wait_s
        for number in needed:
            left_s = max(0.0, deadline - time.monotonic())
            status = await self._manager.wait_settled(name, number, left_s)
            if status.state is not VersionState.READY:
                raise errors.Conflict(_not_ready(name, number, status.state, status.reason, wait_s))


def _not_ready(name: str, number: int, state: VersionState, reason: str, wait_s: float) -> str:
    why = f" ({reason})" if reason else ""
    if state is VersionState.FAILED:
        return (
            f"version {number} of model {name!r} failed to load{why}, so nothing was changed: mend it, or leave it out"
        )
    return (
        f"version {number} of model {name!r} is {state}{why} after {wait_s:g} s, so nothing was changed: it goes on "
        "loading; try again with a longer wait, or force the change (requests then wait for nothing, and are shared "
        "among the versions that are ready)"
    )


def _shadow_info(shadow: Shadow, found: ShadowStatistics) -> ShadowInfo:
    count = found.copy.count
    return ShadowInfo(
        version=shadow.version,
        percent=shadow.percent,
        equal=found.equal,
        different=found.different,
        incomparable=found.incomparable,
        failed=found.failed,
        dropped=found.dropped,
        original_ms=found.original.ns / count / 1e6 if count else None,
        copy_ms=found.copy.ns / count / 1e6 if count else None,
    )


def _info(name: str, revision: TrafficRevision | None) -> TrafficInfo:
    traffic = revision.traffic if revision else None
    arms = traffic.arms if traffic else ()
    total = sum(arm.weight for arm in arms)
    return TrafficInfo(
        model=name,
        revision=revision.revision if revision else 0,
        shares=tuple(Share(arm.version, arm.weight, 100 * arm.weight / total) for arm in arms),
        sticky=traffic.sticky if traffic else "",
        rules=traffic.rules if traffic else (),
        shadows=traffic.shadows if traffic else (),
        author=revision.author if revision else "",
        note=revision.note if revision else "",
        created_at=revision.created_at if revision else None,
    )
