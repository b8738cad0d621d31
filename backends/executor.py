"""The worker's work: take what has arrived, form a batch, run it, answer.

Every instance is a thread and they take turns as the one that looks for work (leader and followers): the leader reads
the socket and forms a batch, hands the turn on, and runs the batch itself. So a request crosses no queue between
threads, and whatever arrived while all were busy is the next batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt

from backends.batching import Batch, Batcher, Pending, QueueFull, batch_key
from backends.contract import Arrays, Backend
from backends.errors import BackendError, InferenceFailed
from backends.lookout import Lookout
from backends.messages import Cancel, Drain, Infer, Refusal, Release, ToWorker
from backends.padding import Padding
from backends.port import Disconnected, Port, sendable
from backends.rows import join, split
from backends.spec import ModelSpec, Signature
from backends.tensor import NUMPY_DTYPE, Tensor, from_numpy
from backends.turns import Turns
from backends.wire import WireError

_CREDITS_FLOOR = 8
#: Where requests have to be here for a rule of the queue to see them. What comes on top waits in the gateway, in order.
_CREDITS_TO_WAIT = 4096
#: Where nothing joins a waiting batch, looking at the socket before each one would cost as much as a small batch.
_LOOK_NS = 200_000


class Executor:
    """Runs one loaded model's requests on ``spec.instances`` threads."""

    def __init__(self, port: Port, backend: Backend, spec: ModelSpec, signature: Signature) -> None:
        self._port = port
        self._backend = backend
        self._instances = spec.instances
        self._batched = signature.max_batch_size > 0
        self._batcher = Batcher(signature.max_batch_size, signature.batching)
        padding = signature.batching.padding if signature.batching is not None else None
        self._padding = Padding(padding, signature) if padding is not None else None
        self._key = self._padding.key if self._padding is not None else partial(batch_key, batched=self._batched)
        self._all_outputs = tuple(output.name for output in signature.outputs)
        self._outputs = {output.name: output.datatype for output in signature.outputs}
        self._turn = threading.Lock()
        self._turns = Turns() if signature.batching is not None and signature.batching.preserve_ordering else None
        self._draining = False
        self._over = False
        self._fault: BaseException | None = None
        self._running: dict[int, int] = {}  # thread -> start of its batch, for the heartbeat
        self._looked_ns = 0  # when the socket was read last
        self.executions = 0
        self.credits = 2 * spec.instances * max(signature.max_batch_size, _CREDITS_FLOOR)
        self._lookout: Lookout | None = None
        if signature.batching is not None and signature.batching.holds_requests:
            self._lookout = Lookout()
            self.credits = max(self.credits, _CREDITS_TO_WAIT)

    def run(self) -> None:
        """Work until drained. Raises ``Disconnected`` when the gateway is gone, ``WireError`` for rubbish."""
        guarded = partial(self._guarded, self._serve)
        others = [threading.Thread(target=guarded, daemon=True) for _ in range(self._instances - 1)]
        for thread in others:
            thread.start()
        if self._lookout is not None:
            look_out = partial(self._guarded, partial(self._look_out, self._lookout))
            threading.Thread(target=look_out, name="lookout", daemon=True).start()
        guarded()
        for thread in others:
            if self._fault is None:
                thread.join()
        self._over = True
        if self._lookout is not None:
            self._lookout.relieve()
        if self._fault:
            raise self._fault

    @property
    def _looks_out(self) -> bool:
        return self._fault is None and not self._over

    def batch_age_ns(self) -> int:
        """Age of the oldest running batch; 0 if none runs."""
        started = min(self._running.copy().values(), default=0)
        return time.monotonic_ns() - started if started else 0

    def waiting(self) -> int:
        """Requests that wait for a batch."""
        return len(self._batcher)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # handed to the main thread, which ends the worker with it
            self._fault = self._fault or error
            self._port.close()  # the main thread may wait for messages, and none may ever come

    def _serve(self) -> None:
        while True:
            self._acquire_turn()
            try:
                batch = self._next_batch()
                if batch is None:
                    return
                if self._turns is not None:
                    self._turns.take()
            finally:
                self._turn.release()
            self._execute(batch)

    def _acquire_turn(self) -> None:
        if self._turn.acquire(blocking=False):
            return
        if self._lookout is not None:
            self._lookout.relieve()
        self._turn.acquire()
        if self._lookout is not None:
            self._lookout.relieved()

    # --- the leader: looking for work ---

    def _next_batch(self) -> Batch | None:
        """The next batch; waits for one. None when draining and nothing is left."""
        batcher = self._batcher
        while self._fault is None:
            now = time.monotonic_ns()
            if len(batcher) and (batcher.joins or now - self._looked_ns > _LOOK_NS):
                self._take_in(0)
                now = time.monotonic_ns()
            self._refuse_expired(now)
            batch = batcher.take(now)
            if batch is not None:
                return batch
            if self._draining and not len(batcher):
                return None
            wake = batcher.wake_at(now)
            self._take_in(None if wake is None else max(0.0, (wake - now) / 1e9))
        return None

    def _look_out(self, lookout: Lookout) -> None:
        """While every instance computes: take requests in, and refuse those whose time is up or for whom is no room."""
        while self._looks_out:
            lookout.rest()
            with self._turn:
                while not lookout.wanted and self._looks_out:
                    now = time.monotonic_ns()
                    self._refuse_expired(now)
                    until = self._batcher.next_deadline()
                    self._take_in(None if until is None else max(0.0, (until - now) / 1e9), lookout.bell)

    def _take_in(self, timeout_s: float | None, bell: int | None = None) -> None:
        messages = self._port.receive(timeout_s, bell)
        self._looked_ns = time.monotonic_ns()
        for message, payload in messages:
            if type(message) is Infer:
                self._accept(message, payload)
            else:
                self._control(message)

    def _accept(self, message: Infer, payload: memoryview) -> None:
        tensors = self._port.tensors(message.tensors, payload)
        parameters = message.parameters if self._backend.uses_parameters else {}
        now = time.monotonic_ns()
        request = Pending(
            id=message.id,
            tensors=tensors,
            outputs=message.outputs,
            parameters=parameters,
            priority=message.priority,
            arrived_ns=now,
            deadline_ns=now + message.timeout_us * 1000 if message.timeout_us else 0,
            rows=tensors[0].shape[0] if self._batched and tensors and tensors[0].shape else 1,
            key=self._key(tensors, parameters) if self._batcher.joins else None,
        )
        try:
            self._batcher.add(request)
        except QueueFull as error:
            self._refuse(request, "overloaded", str(error), now)
        except ValueError as error:
            raise WireError(str(error)) from error

    def _control(self, message: ToWorker) -> None:
        match message:
            case Cancel(id=id):
                if self._batcher.cancel(id):
                    self._port.send(Refusal(id, "cancelled", "the client is gone"))
            case Release(offsets=offsets):
                self._port.release(offsets)
            case Drain():
                self._draining = True
            case _:
                raise WireError(f"unexpected {type(message).__name__} while serving")

    # --- running a batch ---

    def _execute(self, batch: Batch) -> None:
        thread = threading.get_ident()
        self._running[thread] = time.monotonic_ns()
        try:
            self._run(batch)
        except BackendError as error:
            self._failed(batch, error.kind, str(error))
        except MemoryError as error:
            self._failed(batch, InferenceFailed.kind, f"out of memory: {error}")
        except Disconnected:
            raise
        except (Exception, SystemExit) as error:  # a framework may raise anything; the request's client is told
            self._failed(batch, InferenceFailed.kind, f"{type(error).__name__}: {error}")
        finally:
            del self._running[thread]
            self.executions += 1
        if self._turns is not None:
            self._turns.done()

    def _run(self, batch: Batch) -> None:
        started = time.monotonic_ns()
        inputs = self._padding.join(batch) if self._padding is not None else join(batch)
        wanted = self._wanted(batch)
        joined = time.monotonic_ns()
        arrays = self._backend.infer(inputs, wanted, batch[0].parameters)
        inferred = time.monotonic_ns()
        results = self._results(batch, self._shares(batch, inputs, arrays), wanted, started)
        self._await_turn()
        durations = (joined - started, inferred - joined, time.monotonic_ns() - inferred)
        self._port.answer(results, sum(request.rows for request in batch), durations)

    def _await_turn(self) -> None:
        if self._turns is not None:
            self._turns.wait()

    def _wanted(self, batch: Batch) -> tuple[str, ...]:
        """All outputs that some request of the batch asked for, in the model's order."""
        asked: set[str] = set()
        for request in batch:
            if not request.outputs:
                return self._all_outputs
            asked.update(request.outputs)
        return tuple(name for name in self._all_outputs if name in asked)

    def _shares(self, batch: Batch, inputs: Arrays, outputs: Arrays) -> list[Arrays]:
        if self._padding is not None:
            return self._padding.split(batch, inputs, outputs)
        return split(outputs, [request.rows for request in batch]) if len(batch) > 1 else [outputs]

    def _results(
        self, batch: Batch, shares: list[Arrays], wanted: tuple[str, ...], started: int
    ) -> list[tuple[int, int, list[Tensor]]]:
        return [
            (request.id, started - request.arrived_ns, self._tensors(share, request.outputs or wanted))
            for request, share in zip(batch, shares, strict=True)
        ]

    def _tensors(self, arrays: dict[str, npt.NDArray[Any]], names: tuple[str, ...]) -> list[Tensor]:
        return [self._tensor(name, arrays.get(name), self._outputs[name]) for name in names]

    def _tensor(self, name: str, array: npt.NDArray[Any] | None, datatype: str) -> Tensor:
        if array is None:
            raise InferenceFailed(f"the model gave no output {name!r}")
        if array.dtype != NUMPY_DTYPE[datatype]:
            raise InferenceFailed(f"the model gave output {name!r} as {array.dtype}, its signature says {datatype}")
        return from_numpy(name, array, datatype)

    def _failed(self, batch: Batch, kind: str, text: str) -> None:
        """A batch failed: run each member alone once, so that only those at fault fail."""
        self._await_turn()
        if len(batch) > 1:
            for request in batch:
                self._execute_alone(request)
        else:
            self._refuse(batch[0], kind, text, time.monotonic_ns())

    def _execute_alone(self, request: Pending) -> None:
        try:
            self._run([request])
        except BackendError as error:
            self._refuse(request, error.kind, str(error), time.monotonic_ns())
        except Disconnected:
            raise
        except (Exception, SystemExit) as error:  # as in _execute
            self._refuse(request, InferenceFailed.kind, f"{type(error).__name__}: {error}", time.monotonic_ns())

    def _refuse_expired(self, now: int) -> None:
        for request in self._batcher.expired(now):
            self._refuse_late(request, now)

    def _refuse_late(self, request: Pending, now: int) -> None:
        """Its time ran out while it waited: the client's own, or what the model's configuration grants."""
        if request.deadline_ns and request.deadline_ns <= now:
            self._refuse(request, "deadline", "the request's time ran out while it waited for the model", now)
        else:
            text = (
                "Request timeout expired: it waited longer for the model than its configuration allows; try again later"
            )
            self._refuse(request, "overloaded", text, now)

    def _refuse(self, request: Pending, kind: str, text: str, now: int) -> None:
        self._port.send(Refusal(request.id, kind, sendable(text), now - request.arrived_ns))
