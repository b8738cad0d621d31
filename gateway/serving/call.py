"""One inference on its way through the gateway.

Callbacks and no task: a task, its future and their turns of the event loop would cost as much as the rest of the way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from gateway.errors import DeadlineExceeded, GatewayError, ModelNotReady
from gateway.inference.request import InferRequest, InferResponse
from gateway.inference.validation import walk
from gateway.lifecycle.served import Served, Ticket
from gateway.lifecycle.state import VersionState
from gateway.serving.lane import Lane, Work
from gateway.workers.channel import Channel, Reply, Sent
from gateway.workers.replica import Replica

log = logging.getLogger("tensorgate.serving")

Outcome = InferResponse | GatewayError

_READ: Final = "Request timeout expired: its tensors were still being read when its time was up"
_WAITED: Final = "Request timeout expired: it waited for a free worker until its time was up"
_RAN: Final = "Request timeout expired: the model had not answered in time"


class Call(Protocol):
    """What is under way for a client."""

    def cancel(self) -> None:
        """The client is gone: nobody wants the answer any more. Does nothing once there is one."""


#: Gets the outcome. A transport that needs a while for the answer returns what is under way then.
Done = Callable[[Outcome], Call | None]


class Inference:
    """validate -> wait for a replica with room -> send -> account. ``done`` gets the outcome unless it is cancelled.

    What ``done`` returns belongs to the call: ``cancel`` cancels it.
    """

    __slots__ = (
        "_after",
        "_began",
        "_channel",
        "_deadline",
        "_done",
        "_lane",
        "_reading",
        "_request",
        "_sent",
        "_served",
        "_ticket",
        "_timer",
        "_waited",
    )

    def __init__(self, served: Served, request: InferRequest, done: Done, lane: Lane) -> None:
        self._began = time.monotonic_ns()
        self._deadline = self._began + request.timeout_us * 1000 if request.timeout_us else 0
        self._served = served
        self._request = request
        self._done: Done | None = done
        self._after: Call | None = None
        self._lane = lane
        self._reading: Work | None = None
        self._channel: Channel | None = None
        self._sent: Sent | None = None
        self._ticket: Ticket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waited = 0  # nanoseconds for a replica with room

    def start(self) -> None:
        """Send the request, or queue it. Raises ``GatewayError``; ``done`` is not called then."""
        served, request = self._served, self._request
        served.enter()
        try:
            assert served.validator is not None  # READY
            large = served.validator.check(request.inputs, request.outputs)
            if large:
                self._reading = self._lane.enter(walk(large), self._read, sum(len(tensor.data) for tensor in large))
            else:
                self._admit()
        except GatewayError:
            self._close(failed=True)
            raise
        if self._deadline:
            self._timer = asyncio.get_running_loop().call_later(request.timeout_us / 1e6, self._expire)

    def cancel(self) -> None:
        """The client is gone."""
        if self._done is not None:
            self._withdraw()
            self._close(failed=True)
        elif self._after is not None:
            self._after.cancel()

    def _read(self, fault: GatewayError | None) -> None:
        """The elements of large tensors are checked."""
        self._reading = None
        served = self._served
        if fault is None and served.state not in (VersionState.READY, VersionState.DRAINING):
            fault = served.not_ready()  # it was when the reading began
        if fault is not None:
            self._fail(fault)
            return
        try:
            self._admit()
        except GatewayError as error:
            self._fail(error)

    def _admit(self) -> None:
        served = self._served
        replica = served.pick() if not served.waiting else None
        if replica is None:
            self._ticket = served.queue(self._got_room)
        else:
            self._send(replica)

    def _send(self, replica: Replica) -> None:
        process = replica.process
        if process is None:
            raise ModelNotReady(f"worker {replica.id} has just gone; try again", retry_after_s=1.0)
        request, deadline = self._request, self._deadline
        timeout_us = max(1, (deadline - time.monotonic_ns()) // 1000) if deadline else 0
        self._channel = process.channel
        self._sent = process.channel.submit(
            request.inputs,
            request.outputs,
            self._replied,
            timeout_us,
            request.priority,
            request.parameters,
            request.trace,
        )

    def _got_room(self, replica: Replica | GatewayError) -> None:
        """The waiting is over."""
        self._ticket = None
        self._waited = time.monotonic_ns() - self._began
        if isinstance(replica, GatewayError):
            self._fail(replica)
            return
        try:
            self._send(replica)
        except GatewayError as error:
            self._fail(error)

    def _replied(self, reply: Reply | GatewayError) -> None:
        if isinstance(reply, GatewayError):
            self._fail(reply)
            return
        served, request, batch = self._served, self._request, reply.batch
        rows = request.inputs[0].shape[0] if served.signature.max_batch_size else 1
        total, queued = time.monotonic_ns() - self._began, self._waited + reply.queue_ns
        served.statistics.record_success(total, queued, batch.input_ns, batch.infer_ns, batch.output_ns, rows)
        self._end(InferResponse(request.model, str(served.record.number), reply.tensors, reply.release, request.id))

    def _expire(self) -> None:
        """The client's time is up, whatever the worker does."""
        text = _READ if self._reading is not None else _WAITED if self._ticket is not None else _RAN
        self._withdraw()
        self._fail(DeadlineExceeded(text))

    def _withdraw(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        elif self._ticket is not None:
            self._served.withdraw(self._ticket)
        elif self._channel is not None and self._sent is not None:
            self._channel.abandon(self._sent)

    def _fail(self, error: GatewayError) -> None:
        self._end(error, failed=True)

    def _end(self, outcome: Outcome, failed: bool = False) -> None:
        done, served = self._done, self._served
        self._close(failed)
        try:
            if done is not None:
                self._after = done(outcome)
        except Exception:  # a fault of ours must not end the worker that answered
            log.exception("the answer to a request for %s could not be passed on", served.label)
        if served.waiting:
            served.freed()

    def _close(self, failed: bool) -> None:
        self._done = self._sent = None  # each leads back here: a cycle would be left to the garbage collector
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if failed:
            self._served.statistics.record_failure(time.monotonic_ns() - self._began)
        self._served.leave()
