"""Where shared memory begins to pay: round trips of one tensor between two processes, inline and through the arenas.

``python -m benchmarks.channel`` prints the median microseconds for each size and way; ``backends.wire.THRESHOLD``
stands where the two meet. The child answers each tensor with itself, so each round trip carries it twice.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Final

from backends import arena
from backends.messages import Answers, Infer, ToGateway
from backends.port import Disconnected, Port
from backends.tensor import Tensor
from backends.wire import FrameReader, TensorReader, TensorWriter, encode

SIZES: Final = tuple(1 << power for power in range(10, 23))
ROUNDS: Final = 200
NEVER: Final = 1 << 62


def main() -> None:
    """Print the table."""
    print("| bytes | inline, µs | arena, µs |\n|--:|--:|--:|")
    for size in SIZES:
        inline, shared = (measure(size, threshold) for threshold in (NEVER, 0))
        print(f"| {size} | {inline:.0f} | {shared:.0f} |")


def measure(size: int, threshold: int) -> float:
    """Median microseconds of a round trip."""
    ours, theirs = socket.socketpair()
    fds = [theirs.fileno(), arena.create("requests"), arena.create("responses")]
    command = [sys.executable, "-m", "benchmarks.channel", str(threshold), *map(str, fds)]
    with ours, theirs, subprocess.Popen(command, pass_fds=fds) as child:
        theirs.close()
        requests, responses = arena.Mapping(fds[1], writable=True), arena.Mapping(fds[2], writable=False)
        trips = _trips(ours, TensorWriter(requests, threshold), TensorReader(responses), size)
        ours.close()
        child.wait()
    for fd in fds[1:]:
        os.close(fd)
    return statistics.median(trips[ROUNDS // 10 :]) * 1e6


def _trips(sock: socket.socket, writer: TensorWriter, reader: TensorReader, size: int) -> list[float]:
    frames: FrameReader[ToGateway] = FrameReader(ToGateway)
    tensor, trips = Tensor("x", "UINT8", (size,), bytes(size)), []
    for number in range(1, ROUNDS + 1):
        start = time.perf_counter()
        inline: list[bytes | bytearray | memoryview] = []
        heads = writer.place([tensor], inline)
        sock.sendall(b"".join(encode(Infer(number, heads), inline)))
        message, payload = _receive(sock, frames)
        answered, _ = reader.read(message.answers[0].tensors, payload)
        assert len(answered[0].data) == size
        trips.append(time.perf_counter() - start)
        writer.release(heads)
    return trips


def _receive(sock: socket.socket, frames: FrameReader[ToGateway]) -> tuple[Answers, memoryview]:
    while True:
        for message, payload in frames.feed(sock.recv(1 << 18)):
            assert isinstance(message, Answers)
            return message, payload


def echo(threshold: int, channel: int, requests: int, responses: int) -> None:
    """The child: answer until the other end closes. Its blocks are free again when the next request comes."""
    port = Port(
        socket.socket(fileno=channel),
        arena.Mapping(requests, writable=False),
        arena.Mapping(responses, writable=True),
        threshold,
    )
    last: list[int] = []
    try:
        while True:
            for message, payload in port.receive(None):
                assert isinstance(message, Infer)
                port.release(last)
                tensors = port.tensors(message.tensors, payload)
                last = [0] if threshold == 0 else []  # one block in use at a time: always the first
                port.answer([(message.id, 0, tensors)], 1, (0, 0, 0))
    except Disconnected:
        return


if __name__ == "__main__":
    if len(sys.argv) > 1:
        echo(*map(int, sys.argv[1:]))
    else:
        main()
