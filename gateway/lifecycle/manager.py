"""Turns what ought to run (the registry) into what runs (workers): one loop of single, logged actions."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
import uuid
from contextlib import suppress
from typing import Final

import msgspec

from backends.errors import LoadFailed
from backends.spec import ModelSpec, Signature
from gateway.errors import NotFound
from gateway.inference.validation import Validator
from gateway.lifecycle import content, policy
from gateway.lifecycle.background import in_background
from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.following import RETRY_S, follow
from gateway.lifecycle.readiness import Readiness
from gateway.lifecycle.room import Room
from gateway.lifecycle.served import Served, begin
from gateway.lifecycle.state import VersionState, VersionStatus, WorkerStatus
from gateway.telemetry.events import EventLog
from gateway.workers.replica import NotLoaded, Replica, Tell, WorkerLimits
from registry.errors import StoreError
from registry.record import ModelVersion
from registry.store import ModelStore

log = logging.getLogger("tensorgate.lifecycle")

#: How often to look whether memory has become free, while a version waits for it.
_MEMORY_LOOK_S: Final = 1.0
#: What a worker gets in any case to leave in order.
_LEAST_DRAIN_S: Final = 1.0


class Manager:
    """Loads and unloads versions so that the gateway serves what the registry says; keeps their workers running."""

    def __init__(
        self,
        store: ModelStore,
        catalog: Catalog,
        limits: WorkerLimits,
        interpreters: dict[str, str],
        *,
        max_waiting: int,
        strict_readiness: bool = True,
        max_loading: int = 2,
        events: EventLog | None = None,
        room: Room | None = None,
    ) -> None:
        self._store = store
        self.catalog = catalog
        self.catalog.is_read = False
        self.events = events or EventLog()
        self.room = room or Room(catalog)
        self._limits = limits
        self._interpreters = interpreters
        self._max_waiting = max_waiting
        self._max_loading = max_loading
        self._changed = asyncio.Event()  # there may be something to do
        self._pokes = 0  # how often that was said, and
        self._pokes_heard = -1  # how often when the registry was last read
        self._next_change = asyncio.Event()  # set, and replaced, on every change: for those who wait for a state
        self._desired: dict[policy.Key, ModelVersion] = {}
        self._readiness = Readiness(catalog, strict=strict_readiness)
        self._tasks: asyncio.TaskGroup | None = None
        self._drain_deadline = math.inf
        self._replica_tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Reconcile until cancelled, then drain every worker, for ``drain_timeout_s`` at most (see ``drain_by``)."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(follow(self._store, self.poke), name="registry")
                while True:
                    self._changed.clear()
                    again_s = await self._try_to_reconcile()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), again_s)
        finally:
            await self._stop_all()

    def drain_by(self, deadline: float) -> None:
        """When the workers have to be gone, by ``time.monotonic``: the requests may have used up most of the time."""
        self._drain_deadline = deadline

    def poke(self) -> None:
        """Desired or actual state changed: look again soon."""
        self._pokes += 1
        self._changed.set()
        self._announce()

    def retry(self, model: str, number: int) -> None:
        """Load a version again that has failed."""
        served = self.catalog.versions.get(model, {}).get(number)
        if served is not None and served.state is VersionState.FAILED:
            self._forget(served)
        self.poke()

    # --- what others ask ---

    def ready(self) -> bool:
        """Whether every model that has to be served can be (see ``Readiness``)."""
        return bool(self._readiness)

    def status(self, model: str, number: int) -> VersionStatus:
        """The version's state here; ``UNLOADED`` if it does not run."""
        served = self.catalog.versions.get(model, {}).get(number)
        if served is None:
            return VersionStatus(model, number, VersionState.UNLOADED, "")
        status, kept_for = served.status(), self._failed_successors(model, number)
        if kept_for:
            numbers = ", ".join(map(str, kept_for))
            return msgspec.structs.replace(status, reason=f"kept in service, because version {numbers} failed")
        return status

    async def wait_settled(self, model: str, number: int, timeout_s: float) -> VersionStatus:
        """Wait until the version is ready or failed (or gone, if it ought not to run); what it is after that time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_settled(model, number):
                    await self._next_change.wait()
        except TimeoutError:
            log.info("%s:%d did not settle within %.1f s", model, number, timeout_s)
        return self.status(model, number)

    def workers(self) -> list[WorkerStatus]:
        """All workers."""
        return [worker for served in self.catalog.all() for worker in served.status().workers]

    async def restart_worker(self, id: str) -> None:
        """End a worker; its replica starts a new one. Raises ``NotFound``."""
        for served in self.catalog.all():
            for replica in served.replicas:
                if replica.id == id:
                    if served.state is VersionState.FAILED:
                        self.retry(served.record.model, served.record.number)
                    else:
                        replica.kill()
                    return
        raise NotFound(f"there is no worker {id!r}")

    async def probe(self, spec: ModelSpec) -> Signature:
        """Load a model in a worker of its own, only to learn its signature. Raises ``LoadFailed`` with the reason."""
        replica = Replica(
            f"probe-{uuid.uuid4().hex[:8]}",
            self.room.placed(spec, 0),
            self._interpreter(spec),
            self._limits,
            on_change=lambda: None,
            tell=self._teller(spec.name, spec.version),
        )
        try:
            ready = await replica.load_once()
        except NotLoaded as error:
            raise LoadFailed(str(error)) from error
        finally:
            await replica.stop()
        self.room.record((spec.name, spec.version), ready.load)
        return ready.signature

    # --- reconciling ---

    async def _try_to_reconcile(self) -> float | None:
        """Seconds after which to try again; None if there is no need to."""
        try:
            waiting = await self._reconcile()
        except StoreError as error:
            log.warning("the registry cannot be read, what runs goes on as it is: %s", error)
            return RETRY_S
        return _MEMORY_LOOK_S if waiting else None

    async def _reconcile(self) -> bool:
        """Whether a version waits for memory, which nobody announces."""
        await self._read_desired()
        while True:
            shortage = self.room.shortage(self._desired)
            match policy.next_action(frozenset(self._desired), self._actual(), self._max_loading, shortage):
                case policy.Load(key=key):
                    self._load(self._desired[key])
                case policy.Wait(key=key, reason=reason):
                    self._wait(self._desired[key], reason)
                case policy.Unload(key=(model, number)):
                    self._unload(self.catalog.versions[model][number])
                case None:
                    self._announce()
                    return bool(shortage.waiting)

    def _announce(self) -> None:
        self._next_change.set()
        self._next_change = asyncio.Event()

    def _actual(self) -> dict[policy.Key, VersionState]:
        return {(s.record.model, s.record.number): s.state for s in self.catalog.all()}

    async def _read_desired(self) -> None:
        pokes = self._pokes
        changes = -1
        while changes != self.catalog.changes:  # a change that came meanwhile is in the catalog already
            changes = self.catalog.changes
            models = await self._store.models()
        self._pokes_heard = pokes
        self.catalog.take(models)
        self._desired = {(m.name, v.number): v for m in models for v in m.versions if v.desired}
        self._readiness.want(self.catalog.desired)

    def _load(self, record: ModelVersion) -> None:
        served = self._begin(record)
        if served.state is VersionState.LOADING:
            served.move(VersionState.LOADING)  # whatever it waited for is there
            log.info("loading %s (%s) from %s", served.label, record.framework, record.path)
            self._start_replica(served, f"{served.label}-0")

    def _wait(self, record: ModelVersion, reason: str) -> None:
        served = self._begin(record)
        if served.state is VersionState.LOADING:
            log.info("%s %s", served.label, reason)
            served.move(VersionState.LOADING, reason)

    def _begin(self, record: ModelVersion) -> Served:
        """The version in the catalog, there already or from now on."""
        served = self.catalog.versions.get(record.model, {}).get(record.number)
        if served is None:
            served = begin(record, self._max_waiting, self._teller(record.model, record.number))
            self.catalog.add(served)
        return served

    def _start_replica(self, served: Served, id: str) -> None:
        assert self._tasks is not None
        interpreter = self._interpreter(served.spec)
        replica = Replica(
            id,
            self.room.placed(served.spec, served.record.size_bytes),
            interpreter,
            self._limits,
            on_change=lambda: self._changed_in(served),
            on_batch=served.statistics.record_execution,
            on_room=served.freed,
            verify=lambda: self._verify(served.record),
            tell=self._teller(served.record.model, served.record.number),
        )
        served.replicas.append(replica)
        self._replica_tasks[id] = self._tasks.create_task(replica.run(), name=f"replica {id}")

    def _teller(self, model: str, number: int) -> Tell:
        return lambda kind, fields: self.events.publish(kind, model, number, **fields)

    async def _verify(self, record: ModelVersion) -> None:
        """A version is immutable: nothing but the content that was registered is loaded, now or after a death."""
        trouble = await in_background(content.trouble, record)
        if trouble:
            raise NotLoaded(trouble, final=True)

    def _changed_in(self, served: Served) -> None:
        """A replica of it changed: derive the version's state."""
        if served.state in (VersionState.DRAINING, VersionState.UNLOADED):
            served.freed()  # those whom it let in wait for the new worker
            return
        ready = next((replica.ready for replica in served.replicas if replica.ready), None)
        reason = next((replica.reason for replica in served.replicas if replica.reason), "")
        if ready is not None:
            self.room.record((served.record.model, served.record.number), ready.load)
            served.validator = Validator(served.record.model, ready.signature)
            self._keep_signature(served.record, ready.signature)
            served.move(VersionState.READY)
            served.freed()
            self._readiness.was_ready(served.record.model)
        elif all(replica.failed for replica in served.replicas):
            served.move(VersionState.FAILED, reason)
        else:
            served.move(
                VersionState.LOADING if served.state is VersionState.LOADING else VersionState.RESTARTING, reason
            )
        self.catalog.refresh(served.record.model)
        self.poke()

    def _keep_signature(self, record: ModelVersion, signature: Signature) -> None:
        """What a repository's model says of itself is known only now: the registry keeps it."""
        if record.signature is None and self._tasks is not None and (record.model, record.number) in self._desired:
            self._tasks.create_task(self._store_signature(record, signature), name=f"signature of {record.model}")

    async def _store_signature(self, record: ModelVersion, signature: Signature) -> None:
        try:
            await self._store.set_signature(record.model, record.number, signature)
        except Exception:  # serving goes on without
            log.exception("the signature of %s:%d is not kept in the registry", record.model, record.number)

    def _unload(self, served: Served) -> None:
        assert self._tasks is not None
        served.move(VersionState.DRAINING)
        self.catalog.refresh(served.record.model)
        self._tasks.create_task(self._drain(served), name=f"drain {served.label}")

    async def _drain(self, served: Served) -> None:
        try:
            await asyncio.wait_for(served.wait_idle(), self._limits.drain_timeout_s)
        except TimeoutError:
            log.warning("%s: requests still run after %.0f s; ending it", served.label, self._limits.drain_timeout_s)
        await self._end(served)
        self.poke()

    async def _end(self, served: Served) -> None:
        """Stop its replicas, and forget it."""
        for replica in served.replicas:
            left_s = self._drain_deadline - time.monotonic()
            await replica.stop(min(self._limits.drain_timeout_s, max(left_s, _LEAST_DRAIN_S)))
            task = self._replica_tasks.pop(replica.id, None)
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        served.move(VersionState.UNLOADED)
        self.catalog.remove(served)

    def _forget(self, served: Served) -> None:
        self.catalog.remove(served)
        for replica in served.replicas:
            self._replica_tasks.pop(replica.id, None)

    async def _stop_all(self) -> None:
        for served in self.catalog.all():
            if served.state is not VersionState.DRAINING:
                served.move(VersionState.DRAINING)
                self.catalog.refresh(served.record.model)
        await asyncio.gather(*(self._end(served) for served in self.catalog.all()))

    def _is_settled(self, model: str, number: int) -> bool:
        if self._pokes_heard < self._pokes:
            return False  # what ought to run may be something else by now
        served = self.catalog.versions.get(model, {}).get(number)
        if (model, number) not in self._desired:
            return served is None or bool(self._failed_successors(model, number))
        return served is not None and served.state in (VersionState.READY, VersionState.FAILED)

    def _failed_successors(self, model: str, number: int) -> list[int]:
        if (model, number) in self._desired:
            return []
        return policy.failed_successors((model, number), frozenset(self._desired), self._actual())

    def _interpreter(self, spec: ModelSpec) -> str:
        return self._interpreters.get(spec.framework, sys.executable)
