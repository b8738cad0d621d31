"""A worker's end of a channel for tests: it sends what the test says, and keeps what it received."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np

from backends.arena import MIN_BLOCK, Mapping, create
from backends.messages import Answer, Answers, Infer, ToGateway, ToWorker
from backends.tensor import Buffer, Tensor, from_numpy
from backends.wire import THRESHOLD, FrameReader, TensorReader, TensorWriter, encode
from gateway.workers.channel import Channel, Reply
from support.asking import Asked

CAPACITY = 64 * MIN_BLOCK


class Peer:
    """A worker's end: it sends what the test says, and keeps what it received."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.socket, self._theirs = ours, theirs
        self.socket.setblocking(False)
        fds = [create(f"test-{name}", CAPACITY) for name in ("requests", "responses")]
        self._mappings = [Mapping(fd, writable=True) for fd in fds]
        self._ends = Mapping(fds[0], writable=False), Mapping(fds[1], writable=True)
        self._gateway_ends = self._mappings[0], Mapping(fds[1], writable=False)
        for fd in fds:
            os.close(fd)
        self.reader = TensorReader(self._ends[0])
        self.writer = TensorWriter(self._ends[1])
        self.messages: list[ToGateway] = []
        self.batches: list[tuple[int, ...]] = []
        self._frames: FrameReader[ToWorker] = FrameReader(ToWorker)
        #: The gateway's end.
        self.channel = Channel(
            "peer", *self._gateway_ends, self.messages.append, lambda *numbers: self.batches.append(numbers)
        )

    async def connect(self) -> None:
        """Let the two ends talk."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=self._theirs)

    async def take(self, count: int = 1) -> list[tuple[Any, memoryview]]:
        """The next messages."""
        got: list[tuple[Any, memoryview]] = []
        async with asyncio.timeout(20):
            while len(got) < count:
                chunk = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
                assert chunk, "the gateway has closed the channel"
                got += self._frames.feed(chunk)
        assert len(got) == count
        return got

    async def requests(self, count: int = 1) -> list[Infer]:
        """The next messages, which have to be requests."""
        infers = [message for message, _ in await self.take(count)]
        assert all(isinstance(message, Infer) for message in infers)
        return infers

    async def send(self, *messages: msgspec.Struct) -> None:
        """Send messages without tensors."""
        await self.raw(b"".join(bytes(part) for message in messages for part in encode(message)))

    async def raw(self, data: bytes) -> None:
        """Send anything."""
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def answer(self, *ids: int, tensors: list[Tensor] | None = None) -> Answers:
        """One batch with the same outputs for each request."""
        inline: list[Buffer] = []
        outputs = floats(1.0) if tensors is None else tensors
        batch = Answers([Answer(id, self.writer.place(outputs, inline), 7) for id in ids], len(ids), 1, 2, 3)
        await self.raw(b"".join(bytes(part) for part in encode(batch, inline)))
        return batch

    async def close(self) -> None:
        """Cut both ends, and give everything back."""
        self.channel.abort("the test is over")
        await self.channel.closed
        self.socket.close()
        for mapping in (*self._mappings, *self._ends, *self._gateway_ends):
            mapping.close()


@asynccontextmanager
async def connected() -> AsyncIterator[Peer]:
    """A peer with the gateway's end of its channel."""
    peer = Peer()
    await peer.connect()
    try:
        yield peer
    finally:
        await peer.close()


def floats(*values: float) -> list[Tensor]:
    """One small tensor."""
    return [from_numpy("x", np.array(values, np.float32))]


def large(name: str = "x", size: int = THRESHOLD, fill: int = 7) -> Tensor:
    """A tensor that goes through the arena."""
    return Tensor(name, "UINT8", (size,), bytes([fill]) * size)


def ask(channel: Channel, tensors: list[Tensor] | None = None, **given: Any) -> Asked:
    """Submit a request; what is not given is left empty."""
    return Asked(channel, floats(1.0) if tensors is None else tensors, **given)


def used_by_requests(channel: Channel) -> int:
    """Bytes of the request arena that are in use."""
    return channel._writer.allocator.used_bytes


def values(reply: Reply) -> list[list[Any]]:
    """What the reply's tensors hold."""
    return [tensor.numpy().tolist() for tensor in reply.tensors]
