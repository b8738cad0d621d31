"""The gateway's end of a worker's channel: an ``asyncio.Protocol`` between calls and frames.

Frames written in one turn of the loop leave in one system call. Answers look into the worker's arena until ``release``
is called; the block numbers ride back with the next frame.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from backends.arena import Mapping
from backends.errors import InferenceFailed, InvalidInput
from backends.messages import Answers, Cancel, Heartbeat, Infer, Refusal, Release, TensorHead, ToGateway, ToWorker
from backends.tensor import Buffer, Tensor
from backends.wire import FrameReader, TensorReader, TensorWriter, WireError, encode
from gateway.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayError,
    Internal,
    InvalidRequest,
    ModelFailed,
    Overloaded,
    WorkerDied,
)

_REFUSALS: dict[str, type[GatewayError]] = {
    InvalidInput.kind: InvalidRequest,
    InferenceFailed.kind: ModelFailed,
    "cancelled": Cancelled,
    "deadline": DeadlineExceeded,
    "overloaded": Overloaded,
}


class Reply(msgspec.Struct, gc=False):
    """One answered request. ``batch`` holds the durations of the whole batch that it was part of."""

    tensors: list[Tensor]
    release: Callable[[], None]
    queue_ns: int
    batch: Answers


#: Gets the reply, or why there is none.
OnReply = Callable[[Reply | GatewayError], None]


class Sent(msgspec.Struct):
    """A request on its way; ``on_reply`` is None once it was called, or nobody waits for it."""

    id: int
    on_reply: OnReply | None
    heads: list[TensorHead]


def _nothing_to_release() -> None:
    """The answer came inline."""


class Channel(asyncio.Protocol):
    """One worker's channel; ``closed`` is done when the connection is.

    ``on_message`` gets what is no answer to a request; ``on_batch`` the rows and the three durations of each batch;
    ``on_room`` is called when an abandoned request is answered: its place is free only now.
    """

    def __init__(
        self,
        name: str,
        requests: Mapping,
        responses: Mapping,
        on_message: Callable[[ToGateway], None],
        on_batch: Callable[[int, int, int, int], None],
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.heard_at = time.monotonic()
        self.fault: str = ""
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._on_message = on_message
        self._on_batch = on_batch
        self._on_room = on_room
        self._arenas = (requests, responses)
        self._writer = TensorWriter(requests)
        self._reader = TensorReader(responses)
        self._frames: FrameReader[ToGateway] = FrameReader(ToGateway)
        self._transport: asyncio.Transport | None = None
        self._sent: dict[int, Sent] = {}
        self._next_id = 1
        self._outbox: list[Buffer] = []
        self._released: list[int] = []

    # --- requests ---

    def submit(
        self,
        tensors: list[Tensor],
        outputs: tuple[str, ...],
        on_reply: OnReply,
        timeout_us: int,
        priority: int,
        parameters: dict[str, Any],
        trace: str,
    ) -> Sent:
        """Send a request; ``on_reply`` is called once, never from in here, unless ``abandon`` is called before.

        Raises ``WorkerDied``, or ``InvalidRequest`` if it does not fit into a message.
        """
        if not self.is_open:
            raise WorkerDied(f"worker {self.name} has just gone; it is being restarted, try again")
        inline: list[Buffer] = []
        heads = self._writer.place(tensors, inline)
        id = self._next_id
        try:
            frame = encode(Infer(id, heads, outputs, timeout_us, priority, parameters, trace), inline)
        except WireError as error:
            self._writer.release(heads)
            raise InvalidRequest(f"the request (its parameters?) cannot be passed on to the model: {error}") from error
        self._next_id = id + 1
        sent = Sent(id, on_reply, heads)
        self._sent[id] = sent
        if self._released:
            self._flush_released()
        self._write(frame)
        return sent

    def abandon(self, sent: Sent) -> None:
        """Nobody waits for this reply any more: tell the worker, which may not have started."""
        sent.on_reply = None
        if sent.id in self._sent:
            self.send(Cancel(sent.id))

    def send(self, message: ToWorker) -> None:
        """Send a message that has no tensors."""
        if self._transport is not None:
            self._write(encode(message))

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent. It says no as soon as the connection is known to be lost."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self._sent)

    def trim(self) -> None:
        """Give the memory of requests that are done back to the system."""
        self._writer.trim()

    def _write(self, frame: list[Buffer]) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox += frame

    def _flush(self) -> None:
        parts, self._outbox = self._outbox, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(parts))  # inline buffers are small: large ones are in the arena

    # --- answers ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of ``asyncio.Protocol``."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Part of ``asyncio.Protocol``. Rubbish ends the worker, never the gateway."""
        self.heard_at = time.monotonic()
        try:
            for message, payload in self._frames.feed(data):
                if type(message) is Answers:
                    self._answered(message, payload)
                elif type(message) is Refusal:
                    self._refused(message)
                else:
                    if type(message) is Heartbeat and self._released:
                        self._flush_released()
                    self._on_message(message)
        except WireError as error:
            self.abort(f"rubbish on the channel: {error}")

    def _answered(self, message: Answers, payload: memoryview) -> None:
        place = 0
        self._on_batch(message.batch_size, message.input_ns, message.infer_ns, message.output_ns)
        for answer in message.answers:
            tensors, place = self._reader.read(answer.tensors, payload, place)
            sent = self._take(answer.id)
            release = self._releaser(answer.tensors)
            on_reply, sent.on_reply = sent.on_reply, None
            if on_reply is None:
                release()
                self._on_room()
            else:
                on_reply(Reply(tensors, release, answer.queue_ns, message))

    def _refused(self, message: Refusal) -> None:
        sent = self._take(message.id)
        on_reply, sent.on_reply = sent.on_reply, None
        if on_reply is None:
            self._on_room()
        else:
            on_reply(_REFUSALS.get(message.kind, Internal)(message.text))

    def _take(self, id: int) -> Sent:
        sent = self._sent.pop(id, None)
        if sent is None:
            raise WireError(f"answer to request {id}, which was not asked")
        self._writer.release(sent.heads)
        return sent

    def _releaser(self, heads: list[TensorHead]) -> Callable[[], None]:
        offsets = [head.offset for head in heads if head.offset >= 0]
        if not offsets:
            return _nothing_to_release

        def release() -> None:
            self._released.extend(offsets)
            offsets.clear()  # a second call gives nothing back twice

        return release

    def _flush_released(self) -> None:
        offsets, self._released = self._released, []
        self._write(encode(Release(offsets)))

    # --- the end ---

    def abort(self, reason: str) -> None:
        """Cut the connection: the worker is at fault. What is in flight fails with ``WorkerDied``."""
        self.fault = self.fault or reason
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of ``asyncio.Protocol``: end of file means that the worker is dead."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)  # first: whoever watches must know before the place of a request is given away
        sent, self._sent = self._sent, {}
        for request in sent.values():
            on_reply, request.on_reply = request.on_reply, None
            if on_reply is not None:
                on_reply(WorkerDied(self._last_words()))
        for arena in self._arenas:
            arena.close()

    def _last_words(self) -> str:
        reason = f": {self.fault}" if self.fault else ""
        return f"worker {self.name} died while it had the request{reason}; it is being restarted, try again"
