"""A version as this gateway serves it: its replicas, its waiting requests, and who uses it now."""

from __future__ import annotations

import asyncio
import collections
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from backends.messages import LoadReport
from backends.spec import ModelSpec, Signature
from gateway.errors import GatewayError, ModelNotReady, Overloaded
from gateway.inference.validation import Validator
from gateway.lifecycle.state import LoadStatus, VersionState, VersionStatus, WorkerStatus, transition
from gateway.modelconfig.parse import ConfigError, from_dict
from gateway.modelconfig.spec import to_spec
from gateway.proto.model_config_pb2 import ModelConfig
from gateway.telemetry.events import STATE
from gateway.telemetry.statistics import ModelStatistics
from gateway.workers.replica import Replica, Tell, to_nobody
from registry.record import ModelVersion

log = logging.getLogger("tensorgate.lifecycle")

#: What an operator waits for the end of.
_ON_THE_WAY: Final = (VersionState.LOADING, VersionState.RESTARTING, VersionState.DRAINING)
#: The least seconds after which a client is told to try again.
_LEAST_RETRY_S: Final = 1.0
#: A place in the queue of a version.
Ticket = int
#: Gets the replica with room, or why there will be none.
OnRoom = Callable[[Replica | GatewayError], None]


class Served:
    """One version being served. Requests hold it (``enter``/``leave``); it is unloaded when nobody does."""

    def __init__(
        self,
        record: ModelVersion,
        spec: ModelSpec,
        config: ModelConfig,
        statistics: ModelStatistics,
        max_waiting: int,
        tell: Tell = to_nobody,
    ) -> None:
        self.record = record
        self.spec = spec
        self.config = config  # as declared; complete once the signature is known
        self.validator: Validator | None = None  # set with the signature, before the first READY
        self.statistics = statistics
        self.state = VersionState.LOADING
        self.reason = ""
        self._since = time.monotonic()  # of the state
        self.replicas: list[Replica] = []
        self._max_waiting = max_waiting
        # OrderedDict and not dict: the oldest entry of a dict is found in O(n) after removals at its front
        self._waiting: collections.OrderedDict[Ticket, OnRoom] = collections.OrderedDict()
        self._next_ticket = 0
        self._handing_out = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tell = tell
        self._tell_state()

    @property
    def signature(self) -> Signature:
        """What the loaded model takes and gives; there is one from the first READY on."""
        if self.validator is None:
            raise self.not_ready()
        return self.validator.signature

    @property
    def label(self) -> str:
        """How logs and errors call it."""
        return f"{self.record.model}:{self.record.number}"

    def move(self, target: VersionState, reason: str = "") -> None:
        """Change the state (the only place that does)."""
        if target is self.state:
            if reason != self.reason:
                self.reason = reason
                self._tell_state()
            return
        after_s = time.monotonic() - self._since
        before, self.state = self.state, transition(self.state, target)
        self.reason = reason
        self._since = time.monotonic()
        self._tell_state()
        (log.error if target is VersionState.FAILED else log.info)(
            "%s is %s%s%s",
            self.label,
            target,
            f" after {after_s:.2f} s of {before}" if before in _ON_THE_WAY else "",
            f": {reason}" if reason else "",
        )
        if target not in (VersionState.READY, VersionState.DRAINING):  # draining, it serves those whom it let in
            self._dismiss_waiting()

    @property
    def waits_to_load(self) -> bool:
        """Whether it is its turn to load, and something is lacking for it."""
        return self.state is VersionState.LOADING and not self.replicas

    def _tell_state(self) -> None:
        self._tell(STATE, {"state": self.state.value, "reason": self.reason})

    @property
    def doing(self) -> str:
        """The reason of the state; without one, what a load under way is at."""
        return self.reason or next((replica.doing for replica in self.replicas if replica.doing), "")

    def status(self) -> VersionStatus:
        """A snapshot for people."""
        workers = tuple(self._worker_status(replica) for replica in self.replicas)
        return VersionStatus(self.record.model, self.record.number, self.state, self.doing, workers)

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

    def queue(self, on_room: OnRoom) -> Ticket:
        """Wait for a replica with room; ``on_room`` gets it, in the order of asking, or ``ModelNotReady``.

        Raises ``Overloaded`` if too many wait.
        """
        if len(self._waiting) >= self._max_waiting:
            raise Overloaded(
                f"Exceeds maximum queue size: {self._max_waiting} requests wait for model {self.label} already "
                "(setting max_waiting); try again later"
            )
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = on_room
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Who has left takes no place in the queue."""
        self._waiting.pop(ticket, None)

    def freed(self) -> None:
        """A replica may have room: hand it to those who wait. They use it, or end, before ``on_room`` returns."""
        if self._handing_out:
            return  # called by one of them: the loop below goes on anyway
        self._handing_out = True
        try:
            while self._waiting and (replica := self.pick()) is not None:
                self._waiting.popitem(last=False)[1](replica)
        finally:
            self._handing_out = False

    @property
    def waiting(self) -> int:
        """Requests that wait for a replica."""
        return len(self._waiting)

    def _dismiss_waiting(self) -> None:
        while self._waiting:
            self._waiting.popitem(last=False)[1](self.not_ready())

    def not_ready(self) -> ModelNotReady:
        """Why no request can be taken now, and when to try again."""
        reason = f": {self.doing}" if self.doing else ""
        model, number = self.record.model, self.record.number
        text = f"Request for model '{model}' version {number}, which is not at ready state but {self.state}{reason}"
        return ModelNotReady(text, self._retry_after_s())

    def _retry_after_s(self) -> float | None:
        """Until a replica starts next, at least a second; ``None`` if none will by itself."""
        now = time.monotonic()
        due = [replica.retry_at - now for replica in self.replicas if replica.retry_at]
        on_its_way = self.state in (VersionState.LOADING, VersionState.RESTARTING)
        tried_again = self.state is VersionState.FAILED and due
        return max(_LEAST_RETRY_S, min(due, default=0.0)) if on_its_way or tried_again else None

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
            reason=replica.reason or replica.doing,
            device=replica.spec.device,
            load=_load_status(replica.ready.load) if replica.ready else None,
        )


def begin(record: ModelVersion, max_waiting: int, tell: Tell) -> Served:
    """A version that is to be loaded; one whose configuration makes no sense has failed already."""
    statistics = ModelStatistics(record.model, str(record.number))
    config, fault = ModelConfig(), ""
    spec = ModelSpec(record.model, record.number, record.framework, record.path)
    try:
        config = from_dict(record.config)
        spec = to_spec(config, name=record.model, version=record.number, path=record.path, framework=record.framework)
    except ConfigError as error:
        fault = str(error)
    served = Served(record, spec, config, statistics, max_waiting, tell)
    if fault:
        served.move(VersionState.FAILED, fault)
    return served


def _load_status(load: LoadReport) -> LoadStatus:
    return LoadStatus(
        total_s=round(load.total_ns / 1e9, 3),
        import_s=round(load.import_ns / 1e9, 3),
        read_s=round(load.read_ns / 1e9, 3),
        warmup_s=round(load.warmup_ns / 1e9, 3),
        memory_bytes=load.rss_bytes,
        model_bytes=load.model_bytes,
        peak_bytes=load.peak_bytes,
    )
