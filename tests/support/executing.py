"""An executor in a thread of its own with a scripted backend; the test holds the gateway's end of the channel."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from backends.arena import MIN_BLOCK, Mapping, create
from backends.contract import Arrays, Backend
from backends.executor import Executor
from backends.messages import Answers, Infer, Refusal, TensorHead, ToGateway
from backends.port import Port
from backends.spec import BatchingSpec, ModelSpec, Signature, TensorSpec
from backends.wire import FrameReader, encode

Infers = Callable[[Arrays], Arrays]
HEAD = TensorHead("x", "FP32", (1, 2), 8)


class Scripted(Backend):
    """Does what the test says."""

    def __init__(self, infer: Infers) -> None:
        self._infer = infer

    def load(self, spec: ModelSpec) -> Signature:
        raise NotImplementedError  # the executor gets a loaded backend

    def infer(self, inputs: Arrays, outputs: tuple[str, ...], parameters: dict[str, Any]) -> Arrays:
        return self._infer(inputs)

    def unload(self) -> None:
        """Nothing is held."""


class Worker:
    """An executor in a thread of its own; ``end`` is what ``run`` raised."""

    def __init__(
        self,
        infer: Infers,
        *,
        instances: int = 1,
        max_batch_size: int = 0,
        datatype: str = "FP32",
        batching: BatchingSpec | None = None,
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(20)
        self._theirs = theirs
        fd = create("test-responses", 64 * MIN_BLOCK)
        self._arena = Mapping(fd, writable=True)
        os.close(fd)
        shape = (-1, 2) if max_batch_size else (1, 2)
        signature = Signature(
            "test",
            (TensorSpec("x", "FP32", shape),),
            (TensorSpec("y", datatype, shape),),
            max_batch_size,
            batching or (BatchingSpec((), 100_000) if max_batch_size else None),
        )
        spec = ModelSpec("m", 1, "test", "", instances=instances)
        self.port = Port(theirs, None, self._arena)
        self.executor = Executor(self.port, Scripted(infer), spec, signature)
        self.end: BaseException | None = None
        self._frames: FrameReader[ToGateway] = FrameReader(ToGateway)
        self._inbox: list[tuple[ToGateway, bytes]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.executor.run()
        except BaseException as error:  # noqa: BLE001 - it is what the test asks for
            self.end = error

    def send(self, *messages: msgspec.Struct, payload: bytes = b"") -> None:
        """Send messages, each with this payload."""
        self.socket.sendall(b"".join(bytes(part) for message in messages for part in encode(message, [payload])))

    def ask(self, *ids: int) -> None:
        """Requests with one row each, in one go."""
        for id in ids:
            self.send(Infer(id, [HEAD]), payload=np.array([id, id], np.float32).tobytes())

    def receive(self, count: int) -> list[ToGateway]:
        """The next messages."""
        return [message for message, _ in self.receive_with_payload(count)]

    def receive_with_payload(self, count: int) -> list[tuple[ToGateway, bytes]]:
        """The next messages, each with what follows its header."""
        while len(self._inbox) < count:
            frames = self._frames.feed(self.socket.recv(1 << 16))
            self._inbox += [(message, bytes(payload)) for message, payload in frames]
        taken, self._inbox = self._inbox[:count], self._inbox[count:]
        return taken

    def answers(self) -> Answers:
        """The next message, which has to be answers."""
        (message,) = self.receive(1)
        assert isinstance(message, Answers)
        return message

    def refusal(self) -> Refusal:
        """The next message, which has to be a refusal."""
        (message,) = self.receive(1)
        assert isinstance(message, Refusal)
        return message

    def outcomes(self, count: int) -> list[tuple[str, int]]:
        """The next messages in short, each of one request: what became of it, and its number."""
        found = []
        for message in self.receive(count):
            if isinstance(message, Refusal):
                found.append((message.kind, message.id))
            else:
                assert isinstance(message, Answers)
                (answer,) = message.answers
                found.append(("answered", answer.id))
        return found

    def join(self) -> BaseException | None:
        """Wait for the end of ``run``; what it raised."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.end

    def close(self) -> None:
        """Cut the channel, and wait."""
        self.socket.close()
        self._thread.join(20)
        self._theirs.close()
        self._arena.close()


def echo(inputs: Arrays) -> Arrays:
    """A model that answers its input."""
    return {"y": inputs["x"]}


def raising(error: BaseException) -> Infers:
    """A model that always fails so."""

    def infer(inputs: Arrays) -> Arrays:
        raise error

    return infer
