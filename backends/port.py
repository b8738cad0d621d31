"""The worker's end of the channel: a plain blocking socket, and the two arenas.

Sending is safe from several threads (instances and the heartbeat); receiving is for one thread at a time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Sequence

import msgspec

from backends.arena import Mapping
from backends.messages import Answer, Answers, TensorHead, ToGateway, ToWorker
from backends.tensor import Buffer, Tensor
from backends.wire import THRESHOLD, FrameReader, TensorReader, TensorWriter, WireError, encode

_CHUNK = 64 << 10
_LONGEST_WAIT_S = 3600.0  # select() overflows far beyond
_JOIN_BELOW = 64 << 10  # joining small frames is cheaper than a gathered write
_MAX_TEXT = 64 << 10


def sendable(text: str) -> str:
    """A text of anyone's making so that it fits into a message: cut if it is huge, without lone surrogates."""
    return text.encode(errors="replace")[:_MAX_TEXT].decode(errors="ignore")


class Disconnected(Exception):
    """The gateway is gone: there is nobody to work for."""


class Port:
    """Receives messages for a worker and sends its answers."""

    def __init__(
        self, sock: socket.socket, requests: Mapping | None, responses: Mapping | None, threshold: int = THRESHOLD
    ) -> None:
        self._sock = sock
        self._frames: FrameReader[ToWorker] = FrameReader(ToWorker)
        self._reader = TensorReader(requests)
        self._writer = TensorWriter(responses, threshold)
        self._sending = threading.Lock()

    def receive(self, timeout_s: float | None, bell: int | None = None) -> list[tuple[ToWorker, memoryview]]:
        """Whatever has arrived; waits up to ``timeout_s`` (None: for ever) if nothing has, or until ``bell`` rings.

        Raises ``Disconnected`` at end of file, ``WireError`` for rubbish.
        """
        try:
            if timeout_s is None and bell is None:
                chunk = self._sock.recv(_CHUNK)
            elif timeout_s != 0 and self._sock not in self._wait(timeout_s, bell):
                return []
            else:
                chunk = self._sock.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionError as error:
            raise Disconnected from error
        if not chunk:
            raise Disconnected
        return self._frames.feed(chunk)

    def _wait(self, timeout_s: float | None, bell: int | None) -> list[socket.socket | int]:
        sources: list[socket.socket | int] = [self._sock] if bell is None else [self._sock, bell]
        return select.select(sources, [], [], min(timeout_s or _LONGEST_WAIT_S, _LONGEST_WAIT_S))[0]

    def tensors(self, heads: list[TensorHead], payload: memoryview) -> list[Tensor]:
        """The tensors of a request, without a copy."""
        return self._reader.read(heads, payload)[0]

    def send(self, message: ToGateway) -> None:
        """Send a message that has no tensors."""
        with self._sending:
            self._write(message, ())

    def answer(
        self,
        results: Sequence[tuple[int, int, list[Tensor]]],
        batch_size: int,
        durations: Sequence[int],
    ) -> None:
        """Send a batch's answers: (id, queue_ns, outputs) each, and (input, infer, output) nanoseconds."""
        inline: list[Buffer] = []
        with self._sending:
            answers = [Answer(id, self._writer.place(outputs, inline), queue) for id, queue, outputs in results]
            try:
                self._write(Answers(answers, batch_size, *durations), inline)
            except WireError:  # too large for a frame: nothing was sent, the caller has to say so instead
                for answer in answers:
                    self._writer.release(answer.tensors)
                raise

    def release(self, offsets: list[int]) -> None:
        """The gateway has consumed these blocks. Raises ``WireError`` for one that is not in use."""
        with self._sending:
            try:
                for offset in offsets:
                    self._writer.allocator.release(offset)
            except ValueError as error:
                raise WireError(str(error)) from error

    @property
    def releases(self) -> int:
        """How many blocks of the arena the gateway has given back so far."""
        return self._writer.allocator.releases

    def trim(self) -> None:
        """Give the memory of free blocks back to the system."""
        with self._sending:
            self._writer.trim()

    def close(self) -> None:
        """Take nothing in any more: whoever waits for messages gets ``Disconnected``."""
        with contextlib.suppress(OSError):  # the gateway has closed it already
            self._sock.shutdown(socket.SHUT_RD)

    def _write(self, message: msgspec.Struct, inline: Sequence[Buffer]) -> None:
        parts = encode(message, inline)
        try:
            if sum(map(len, parts)) < _JOIN_BELOW:
                self._sock.sendall(b"".join(parts))
            else:
                for part in parts:
                    self._sock.sendall(part)
        except ConnectionError as error:
            raise Disconnected from error
