"""Starts a worker process and ends it: own session (killed as a group), inherited channel, arenas and output pipe."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

from backends import arena
from backends.messages import Drain, ToGateway
from gateway.workers.channel import Channel
from gateway.workers.interpreter import worker_command
from gateway.workers.output import Output

log = logging.getLogger("tensorgate.worker")

#: For what follows from a process's end or goes before it by itself: its last output, the end of its channel.
_GRACE_S: Final = 1.0
#: Numbers of GPUs mean here what they mean to nvidia-smi, and not an order of speed.
_NUMBERED: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_QUIET: Final = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class WorkerProcess:
    """A running worker: its process, its channel, and the last lines it wrote."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, channel: Channel, output: Output) -> None:
        self.name = name
        self.pid = process.pid
        self.channel = channel
        self._process = process
        self._output = output
        self._killed = False
        self._reaped = asyncio.create_task(self._reap(), name=f"end of {name}")

    @property
    def tail(self) -> collections.deque[str]:
        """The last lines that it wrote."""
        return self._output.tail

    async def wait(self) -> str:
        """Wait for the process and its channel to be gone, and for its last output; how it ended, in words."""
        code = await asyncio.shield(self._reaped)
        await asyncio.wait((self._output.closed,), timeout=_GRACE_S)
        self._output.close()  # what left the process's group may hold it open for ever
        return "was ended by the gateway" if self._killed and code == -signal.SIGKILL else describe_exit(code)

    async def end(self) -> str:
        """Its channel is gone: kill it, but let it first end by itself, so that it can say how; how it ended."""
        if not self.channel.fault:
            await asyncio.wait((self._reaped,), timeout=_GRACE_S)
        if not self._reaped.done():
            self.channel.fault = self.channel.fault or "it closed its channel and went on"
        self.kill()
        return await self.wait()

    async def drain(self, timeout_s: float) -> None:
        """Let it finish what it has; after ``timeout_s`` it is killed."""
        self.channel.send(Drain())
        done, _ = await asyncio.wait((self._reaped,), timeout=timeout_s)
        if not done:
            log.warning("worker %s did not drain within %.0f s", self.name, timeout_s)
        self.kill()
        await self.wait()

    def kill(self) -> None:
        """SIGKILL to the whole group: what the model's code started goes too."""
        if not self._reaped.done():  # later the number may be another's
            self._killed = True
            _kill_group(self.pid)

    async def _reap(self) -> int:
        """Wait for the end of the process, and make sure that its channel ends with it; its exit code."""
        code = await self._process.wait()
        _kill_group(self.pid)  # what it leaves behind may hold the channel open
        await asyncio.wait((self.channel.closed,), timeout=_GRACE_S)
        if not self.channel.closed.done():
            self.channel.abort("its process is gone, and another holds its channel open")
            await self.channel.closed
        return code


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """A process's end in words that a person understands."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    hint = " (often: out of memory)" if name == "SIGKILL" else ""
    return f"was killed by signal {-code}, {name}{hint}"


async def launch(
    name: str,
    on_message: Callable[[ToGateway], None],
    on_batch: Callable[[int, int, int, int], None],
    on_room: Callable[[], None] = lambda: None,
    *,
    interpreter: str = sys.executable,
    arena_bytes: int = arena.DEFAULT_CAPACITY,
    device: str = "cpu",
) -> WorkerProcess:
    """Start a worker. Raises ``OSError`` if the interpreter cannot be started."""
    start = asyncio.create_task(_start(name, on_message, on_batch, on_room, interpreter, arena_bytes, device))
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        # The few milliseconds of a start are not cut short: what it would leave behind differs from loop to loop.
        with contextlib.suppress(OSError):
            process = await start
            process.kill()
            await process.wait()
        raise


async def _start(
    name: str,
    on_message: Callable[[ToGateway], None],
    on_batch: Callable[[int, int, int, int], None],
    on_room: Callable[[], None],
    interpreter: str,
    arena_bytes: int,
    device: str,
) -> WorkerProcess:
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        # theirs: the worker's ends, closed here in any case; ours: closed here if the worker does not come to be
        our_socket, their_socket = socket.socketpair()
        ours.callback(our_socket.close)
        theirs.callback(their_socket.close)
        arenas = []
        for direction in ("requests", "responses"):
            arenas.append(arena.create(f"tensorgate-{direction}", arena_bytes))
            theirs.callback(os.close, arenas[-1])
        pipe, writer = _pipe()
        ours.callback(pipe.close)
        theirs.callback(os.close, writer)
        requests, responses = arena.Mapping(arenas[0], writable=True), arena.Mapping(arenas[1], writable=False)
        channel = Channel(name, requests, responses, on_message, on_batch, on_room)
        output = Output(name)
        our_socket.setblocking(False)
        await loop.create_unix_connection(lambda: channel, sock=our_socket)
        ours.callback(channel.abort, "it was not started")
        await loop.connect_read_pipe(lambda: output, pipe)
        ours.callback(output.close)
        process = await _spawn(interpreter, (their_socket.fileno(), *arenas), writer, device)
        ours.pop_all()
    return WorkerProcess(name, process, channel, output)


def _pipe() -> tuple[io.FileIO, int]:
    reader, writer = os.pipe()
    return open(reader, "rb", buffering=0), writer


async def _spawn(interpreter: str, fds: tuple[int, ...], output: int, device: str) -> asyncio.subprocess.Process:
    channel, requests, responses = map(str, fds)
    return await asyncio.create_subprocess_exec(
        *worker_command(interpreter),
        "--channel-fd", channel, "--request-arena-fd", requests, "--response-arena-fd", responses,
        "--parent", str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=fds,
        start_new_session=True,
        env=_environment(device),
    )  # fmt: skip


def _environment(device: str) -> dict[str, str]:
    """The gateway's environment without its own settings (a database's password), and only this worker's devices."""
    kind, _, index = device.partition(":")
    visible = (index or "0") if kind == "cuda" else ""  # without a number nobody has chosen: the first one
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENSORGATE_")}
    return inherited | _QUIET | {"CUDA_VISIBLE_DEVICES": visible, **_NUMBERED}
