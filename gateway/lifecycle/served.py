"""A version as this gateway serves it: its replicas, its waiting requests, and who uses it now."""

from __future__ import annotations

import asyncio
import collections
import logging
import random
import time

from backends.spec import ModelSpec, Signature
from gateway.errors import ModelNotReady, Overloaded
from gateway.inference.validation import Validator
from gateway.lifecycle.state import VersionState, VersionStatus, WorkerStatus, transition
from gateway.proto.model_config_pb2 import ModelConfig
from gateway.telemetry.statistics import ModelStatistics
from gateway.workers.replica import Replica
from registry.record import ModelVersion

log = logging.getLogger("tensorgate.lifecycle")


class Served:
    """One version being served. Requests hold it (``enter``/``leave``); it is unloaded when nobody does."""

    def __init__(
        self, record: ModelVersion, spec: ModelSpec, config: ModelConfig, statistics: ModelStatistics, max_waiting: int
    ) -> None:
        self.record = record
        self.spec = spec
        self.config = config  # as declared; complete once the signature is known
        self.validator: Validator | None = None  # set with the signature, before the first READY
        self.statistics = statistics
        self.state = VersionState.LOADING
        self.reason = ""
        self.changed_at = time.time()
        self.replicas: list[Replica] = []
        self._max_waiting = max_waiting
        self._waiting: collections.deque[asyncio.Future[Replica]] = collections.deque()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def signature(self) -> Signature:
        """What the loaded model takes and gives; there is one from the first READY on."""
        if self.validator is None:
            raise ModelNotReady(self.not_ready_text())
        return self.validator.signature

    @property
    def label(self) -> str:
        """How logs and errors call it."""
        return f"{self.record.model}:{self.record.number}"

    def move(self, target: VersionState, reason: str = "") -> None:
        """Change the state (the only place that does)."""
        if target is self.state:
            self.reason = reason
            return
        self.state = transition(self.state, target)
        self.reason = reason
        self.changed_at = time.time()
        (log.error if target is VersionState.FAILED else log.info)(
            "%s is %s%s", self.label, target, f": {reason}" if reason else ""
        )
        if target not in (VersionState.READY, VersionState.DRAINING):  # draining, it serves those whom it let in
            self._dismiss_waiting()

    def status(self) -> VersionStatus:
        """A snapshot for people."""
        workers = tuple(self._worker_status(replica) for replica in self.replicas)
        return VersionStatus(self.record.model, self.record.number, self.state, self.reason, workers)

    # --- requests ---

    def enter(self) -> None:
        """A request begins to use this version."""
        self._in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request is done with it."""
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request uses it."""
        await self._idle.wait()

    def pick(self) -> Replica | None:
        """A replica with room: the less busy of two random ones. None if all are full (or requests wait already)."""
        replicas = self.replicas
        if len(replicas) == 1:
            return replicas[0] if replicas[0].has_room else None
        free = [replica for replica in replicas if replica.has_room]
        if not free:
            return None
        return min(random.sample(free, min(2, len(free))), key=lambda replica: replica.outstanding)

    async def wait_for_room(self) -> Replica:
        """A replica with room, in the order of asking. Raises ``Overloaded`` if too many wait, ``ModelNotReady``."""
        if len(self._waiting) >= self._max_waiting:
            raise Overloaded(
                f"Exceeds maximum queue size: {self._max_waiting} requests wait for model {self.label} already "
                "(setting max_waiting); try again later"
            )
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().promised -= 1  # given in the same turn in which the client left: pass it on
                self.freed()
            elif future in self._waiting:
                self._waiting.remove(future)  # who has left takes no place in the queue
            raise

    def freed(self) -> None:
        """A replica may have room: hand it to those who wait."""
        waiting = self._waiting
        while waiting:
            if waiting[0].done():
                waiting.popleft()  # cancelled, or out of time
                continue
            replica = self.pick()
            if replica is None:
                return
            replica.promised += 1
            waiting.popleft().set_result(replica)

    @property
    def waiting(self) -> int:
        """Requests that wait for a replica."""
        return len(self._waiting)

    def _dismiss_waiting(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ModelNotReady(self.not_ready_text()))

    def not_ready_text(self) -> str:
        """Why no request can be taken now."""
        reason = f": {self.reason}" if self.reason else ""
        model, number = self.record.model, self.record.number
        return f"Request for model '{model}' version {number}, which is not at ready state but {self.state}{reason}"

    def _worker_status(self, replica: Replica) -> WorkerStatus:
        state = "ready" if replica.ready else "failed" if replica.failed else "starting"
        return WorkerStatus(
            id=replica.id,
            model=self.record.model,
            number=self.record.number,
            framework=self.spec.framework,
            pid=replica.process.pid if replica.process else None,
            state=state,
            restarts=replica.restarts,
            rss_bytes=replica.rss_bytes,
            started_at=replica.started_at,
            reason=replica.reason,
        )
