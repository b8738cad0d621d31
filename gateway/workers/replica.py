"""A replica: one worker at a time, started, watched, and started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from backends.memory import Idleness
from backends.messages import PROTOCOL_VERSION, Failed, Heartbeat, Hello, Load, Progress, Ready, ToGateway
from backends.spec import ALLOW_CODE, CODE_FRAMEWORKS, ModelSpec
from backends.wire import WireError
from gateway.telemetry.events import PROGRESS, WORKER
from gateway.workers import words
from gateway.workers.channel import Channel
from gateway.workers.process import WorkerProcess, launch
from gateway.workers.restart import MAX_DELAY_S, RestartBudget

log = logging.getLogger("tensorgate.worker")

#: The system's words for an interpreter that cannot be one, now or later.
_NO_INTERPRETER: Final = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP})


class WorkerLimits(msgspec.Struct, frozen=True):
    """Times in seconds after which a worker is given up, or trimmed; memory that it may use (0: all there is); arenas'
    size; whether models may bring code."""

    load_timeout_s: float = 300.0
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 30.0
    execution_timeout_s: float = 300.0
    drain_timeout_s: float = 30.0
    memory_bytes: int = 0
    arena_bytes: int = 1 << 30
    idle_trim_s: float = 60.0
    allow_code: bool = False


class NotLoaded(Exception):
    """The model cannot be loaded; ``final`` says that trying again would not help."""

    def __init__(self, text: str, *, final: bool) -> None:
        super().__init__(text)
        self.final = final


#: Gets the kind of an event (``gateway.telemetry.events``) and its fields.
Tell = Callable[[str, Mapping[str, Any]], None]


async def _no_artifact() -> None:
    """There is nothing to verify."""


def to_nobody(kind: str, fields: Mapping[str, Any]) -> None:
    """Nobody follows."""


class Replica:
    """Keeps one worker of a version running.

    ``on_change`` is called whenever ``ready`` or ``reason`` changed; ``on_batch`` with the rows and the input, infer
    and output nanoseconds of each executed batch; ``on_room`` when a request is done that nobody waited for any more;
    ``tell`` with the kind of an event and its fields. ``verify`` is awaited before each start, and raises ``NotLoaded``
    if there must be none.
    """

    def __init__(
        self,
        id: str,
        spec: ModelSpec,
        interpreter: str,
        limits: WorkerLimits,
        on_change: Callable[[], None],
        on_batch: Callable[[int, int, int, int], None] = lambda *_: None,
        on_room: Callable[[], None] = lambda: None,
        verify: Callable[[], Awaitable[None]] = _no_artifact,
        tell: Tell = to_nobody,
    ) -> None:
        self.id = id
        self.spec = spec
        self.ready: Ready | None = None
        self.failed = False
        self.reason = ""
        self.restarts = 0
        self.retry_at = 0.0  # when the next start is (or was) due, by time.monotonic(); 0 before the first death
        self.rss_bytes = 0
        self.started_at = 0.0
        self.process: WorkerProcess | None = None
        self.progress: Progress | None = None  # of a load under way
        self.load_began_at = 0.0  # by time.monotonic(); 0 while there is no worker
        self._interpreter = interpreter
        self._limits = limits
        self._on_change = on_change
        self._on_batch = on_batch
        self._on_room = on_room
        self._verify = verify
        self._tell = tell
        self._stopping = asyncio.Event()
        self._idleness = Idleness(limits.idle_trim_s)
        self._budget = RestartBudget()
        self._was_ready = False
        self._loaded: asyncio.Future[Ready] | None = None

    @property
    def has_room(self) -> bool:
        """Whether it takes another request now."""
        if self.ready is None or self.process is None:
            return False
        channel = self.process.channel
        return channel.is_open and channel.in_flight < self.ready.credits

    @property
    def doing(self) -> str:
        """What a load under way is at, and since when it began; "" if none is."""
        if self.ready is not None or not self.load_began_at:
            return ""
        before = "starting the worker" if self.process is not None else "verifying the artifact"
        stage = self.progress.stage if self.progress is not None else before
        return f"{stage}, {time.monotonic() - self.load_began_at:.1f} s"

    @property
    def outstanding(self) -> int:
        """Requests that the worker holds, also those that nobody waits for any more."""
        return self.process.channel.in_flight if self.process is not None else 0

    async def run(self) -> None:
        """Start the worker, again after each death, until ``stop``; what could never be loaded is left at that."""
        while not self._stopping.is_set():
            hopeless = False
            try:
                await self._load()
                await self._watch()
            except NotLoaded as error:
                hopeless = error.final
                self.failed = self.failed or hopeless
                self._down(str(error))
                if hopeless and not self._was_ready:
                    return
            if not await self._back_off(hopeless):
                return

    async def stop(self, drain_timeout_s: float | None = None) -> None:
        """Drain the worker, for the time given or that of the limits, and end it; ``run`` returns.

        A worker that still loads is ended at once.
        """
        self._stopping.set()
        self.ready = None
        loading = self._loaded is not None and self._loaded.cancel()
        if self.process is not None:
            if loading:
                self.process.kill()
            await self.process.drain(drain_timeout_s or self._limits.drain_timeout_s)

    def kill(self) -> None:
        """End the worker the hard way; it is started again, and this death does not count."""
        self._budget = RestartBudget()
        if self.process is not None:
            self.process.kill()

    async def load_once(self) -> Ready:
        """Load without watching over it afterwards (a probe). Raises ``NotLoaded``; call ``stop`` in any case."""
        await self._load()
        assert self.ready is not None
        return self.ready

    # --- one worker's life ---

    async def _load(self) -> None:
        self.load_began_at = time.monotonic()
        await self._verify()
        self._loaded = asyncio.get_running_loop().create_future()
        try:
            self.process = await launch(
                self.id,
                self._heard,
                self._on_batch,
                self._on_room,
                interpreter=self._interpreter,
                arena_bytes=self._limits.arena_bytes,
                device=self.spec.device,
            )
        except OSError as error:
            final = error.errno in _NO_INTERPRETER  # otherwise it is a shortage, which may pass
            raise NotLoaded(f"cannot start {self._interpreter}: {error}", final=final) from error
        await self._send_load(self.process)
        self.ready = await self._wait_ready(self.process, self._loaded)
        self.started_at = time.time()
        self.rss_bytes = self.ready.load.rss_bytes
        self.reason = ""
        self.failed, self._was_ready = False, True
        self._budget.started(time.monotonic())
        self.progress = None
        log.info("worker %s is ready (pid %d) in %s", self.id, self.process.pid, words.of_load(self.ready.load))
        self._tell(WORKER, {"worker": self.id, "event": "ready", "pid": self.process.pid, "restarts": self.restarts})
        self._on_change()

    async def _send_load(self, process: WorkerProcess) -> None:
        try:
            process.channel.send(Load(self._permitted(), self._limits.heartbeat_s, self._limits.idle_trim_s))
        except WireError as error:  # huge, or a path that is no text
            process.kill()
            await process.wait()
            raise NotLoaded(f"the model's specification cannot be passed to a worker: {error}", final=True) from error

    def _permitted(self) -> ModelSpec:
        """The spec with what the operator allows: only here, so that no configuration can say it by itself."""
        if not self._limits.allow_code or self.spec.framework not in CODE_FRAMEWORKS:
            return self.spec
        return msgspec.structs.replace(self.spec, options={**self.spec.options, ALLOW_CODE: "true"})

    async def _wait_ready(self, process: WorkerProcess, loaded: asyncio.Future[Ready]) -> Ready:
        limit = self._limits.load_timeout_s
        closed = process.channel.closed
        await asyncio.wait((loaded, closed), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if loaded.done() and not loaded.cancelled() and loaded.exception() is None:
            return loaded.result()
        too_slow = not loaded.done() and not closed.done()
        if not closed.done():
            process.kill()
        ended = await process.end()
        if loaded.done() and not loaded.cancelled():
            loaded.result()  # raises what the worker said
        if too_slow:
            text = f"the model was not loaded within {limit:g} s (setting load_timeout_s){words.tail(process)}"
        else:
            text = f"the worker {ended} while it loaded the model{words.because(process)}{words.tail(process)}"
        raise NotLoaded(text, final=False)

    async def _watch(self) -> None:
        """Wait for the worker's end; end it if it stopped answering."""
        assert self.process is not None
        process = self.process
        watchdog = asyncio.create_task(self._watchdog(process), name=f"watchdog of {self.id}")
        try:
            await process.channel.closed
        finally:
            watchdog.cancel()
        self.ready = None
        if not self._stopping.is_set():  # said before the process is reaped: who just lost a request asks now
            self.reason = f"its worker has just ended{words.because(process)}"
            self._on_change()
        ended = await process.end()
        if not self._stopping.is_set():
            self._down(f"the worker {ended}{words.because(process)}{words.tail(process)}")

    async def _watchdog(self, process: WorkerProcess) -> None:
        limit, period = self._limits.heartbeat_timeout_s, self._limits.heartbeat_s
        while True:
            due = time.monotonic() + period
            await asyncio.sleep(period)
            now = time.monotonic()
            if now - due > period:
                continue  # it was this process that slept (suspended, overloaded): what it was sent is not read yet
            if now - process.channel.heard_at > limit:
                process.channel.abort(f"no heartbeat for {limit:g} s (setting heartbeat_timeout_s)")

    def _heard(self, message: ToGateway) -> None:
        loaded = self._loaded
        match message:
            case Hello(protocol=protocol) if protocol != PROTOCOL_VERSION and loaded is not None and not loaded.done():
                text = f"the worker speaks protocol {protocol}, the gateway {PROTOCOL_VERSION}: install one version"
                loaded.set_exception(NotLoaded(text, final=True))
            case Progress() if loaded is not None and not loaded.done():
                self._progressed(message)
            case Ready() if loaded is not None and not loaded.done():
                loaded.set_result(message)
            case Failed(text=text) if loaded is not None and not loaded.done():
                loaded.set_exception(NotLoaded(text, final=True))
            case Heartbeat() if self.process is not None:
                self._beat(message, self.process.channel)

    def _beat(self, heartbeat: Heartbeat, channel: Channel) -> None:
        self.rss_bytes = heartbeat.rss_bytes
        limit = self._limits.execution_timeout_s
        if heartbeat.batch_age_ns > limit * 1e9:
            channel.abort(f"a batch ran for over {limit:g} s (setting execution_timeout_s)")
        elif 0 < self._limits.memory_bytes < heartbeat.rss_bytes:
            channel.abort(words.of_memory(heartbeat.rss_bytes, self._limits.memory_bytes))
        elif self._idleness.is_due(heartbeat.executions, time.monotonic(), busy=channel.in_flight > 0):
            channel.trim()

    def _progressed(self, progress: Progress) -> None:
        self.progress = progress
        level = logging.INFO if progress.number > 1 else logging.DEBUG  # that loading began is in the log already
        log.log(level, "worker %s: %s (%d of %d)", self.id, progress.stage, progress.number, progress.count)
        self._tell(
            PROGRESS,
            {
                "worker": self.id,
                "stage": progress.stage,
                "number": progress.number,
                "count": progress.count,
                "elapsed_s": round(progress.elapsed_ns / 1e9, 3),
            },
        )

    def _down(self, reason: str) -> None:
        self.ready = None
        self.process = None
        self.progress = None
        self.started_at = self.load_began_at = 0.0
        self.rss_bytes = 0
        self.reason = reason
        if not self._stopping.is_set():
            log.error("worker %s: %s", self.id, reason)
            self._tell(WORKER, {"worker": self.id, "event": "died", "reason": reason})
        self._on_change()

    async def _back_off(self, hopeless: bool) -> bool:
        """Wait before the next start, long if there is little hope; False if there is to be none."""
        if self._stopping.is_set():
            return False
        delay = MAX_DELAY_S if hopeless else self._budget.exited(time.monotonic())
        if delay is None:
            self.failed, delay = True, MAX_DELAY_S
            self.reason = f"{self._budget.failures} deaths in a row, tried again every {delay:g} s; {self.reason}"
            log.error("worker %s: %s", self.id, self.reason)
            self._on_change()
        self.retry_at = time.monotonic() + delay
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)
        if self._stopping.is_set():
            return False
        self.restarts += 1
        self._tell(WORKER, {"worker": self.id, "event": "restarting", "restarts": self.restarts})
        return True
