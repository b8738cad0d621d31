"""Workers for tests: echo models, short limits, replicas that are always ended, and what a process leaves behind."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from backends.spec import BatchingSpec, ModelSpec
from backends.tensor import Tensor, from_numpy
from gateway import errors
from gateway.workers.channel import Channel, Reply
from gateway.workers.process import WorkerProcess
from gateway.workers.replica import Replica, WorkerLimits
from support.asking import Asked
from support.wait import until

#: Patient where a slow machine needs it, and quick where a test waits for the time to pass.
LIMITS = WorkerLimits(
    load_timeout_s=30.0,
    heartbeat_s=0.05,
    heartbeat_timeout_s=20.0,
    execution_timeout_s=20.0,
    drain_timeout_s=20.0,
    arena_bytes=4 << 20,
)


def limits(**changed: float) -> WorkerLimits:
    """``LIMITS`` with some changed."""
    return msgspec.structs.replace(LIMITS, **changed)


def echo(instances: int = 1, *, max_batch_size: int = 0, delay_us: int = 0, **options: str) -> ModelSpec:
    """An echo model that allows faults; each request runs alone unless ``max_batch_size`` is given."""
    return ModelSpec(
        name="echo",
        version=1,
        framework="echo",
        path="",
        max_batch_size=max_batch_size,
        batching=BatchingSpec((), delay_us) if max_batch_size else None,
        instances=instances,
        options={"fault_injection": "true", **options},
    )


def floats(*values: float) -> list[Tensor]:
    """The input of an echo model: one row."""
    return [from_numpy("INPUT0", np.array([values], np.float32))]


def submit(channel: Channel, tensors: list[Tensor] | None = None, *, timeout_us: int = 0, **parameters: Any) -> Asked:
    """Send a request; ``parameters`` are those of the echo backend (``fail``, ``crash``, ``delay_ms``, ...)."""
    return Asked(channel, floats(1.0) if tensors is None else tensors, timeout_us=timeout_us, parameters=parameters)


async def ask(channel: Channel, tensors: list[Tensor] | None = None, **given: Any) -> list[float]:
    """Send a request and wait: the numbers of its first output. Raises what the future raises."""
    return numbers(await submit(channel, tensors, **given).future)


def numbers(reply: Reply) -> list[float]:
    """The first output's numbers; the reply is released."""
    values: list[float] = reply.tensors[0].numpy().reshape(-1).tolist()
    reply.release()
    return values


class Running:
    """A replica at work: ``changes`` holds (ready, reason) as they were at each change, ``deaths`` the reasons once a
    process was gone, ``batches`` the rows of each batch, ``events`` what followers are told."""

    def __init__(self, spec: ModelSpec, limits: WorkerLimits, interpreter: str) -> None:
        self.changes: list[tuple[bool, str]] = []
        self.deaths: list[str] = []
        self.batches: list[int] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.replica = Replica("echo:1-0", spec, interpreter, limits, self._changed, self._ran, tell=self._told)
        self.task = asyncio.create_task(self.replica.run())

    def _changed(self) -> None:
        self.changes.append((self.replica.ready is not None, self.replica.reason))
        if self.replica.process is None:
            self.deaths.append(self.replica.reason)

    def _told(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.events.append((kind, dict(fields)))

    def _ran(self, rows: int, *durations: int) -> None:
        self.batches.append(rows)

    @property
    def process(self) -> WorkerProcess:
        """The worker at hand; there has to be one."""
        assert self.replica.process is not None
        return self.replica.process

    @property
    def channel(self) -> Channel:
        """The channel of the worker at hand."""
        return self.process.channel

    async def started(self) -> WorkerProcess:
        """Wait for a process, whatever comes of it."""
        return await until(lambda: self.replica.process)

    async def ready(self, restarts: int = 0) -> WorkerProcess:
        """Wait for a ready worker after so many restarts."""
        await until(lambda: self.replica.ready is not None and self.replica.restarts >= restarts)
        return self.process

    async def serves_again(self, restarts: int = 1) -> None:
        """Wait for a ready worker after so many restarts, and use it."""
        await self.ready(restarts)
        assert await ask(self.channel, floats(5.0)) == [5.0]

    async def down(self) -> str:
        """Wait for the first death; its reason."""
        return await until(lambda: next(iter(self.deaths), None))

    async def given_up(self) -> str:
        """Wait until the replica has little hope left; why."""
        await until(lambda: self.replica.failed and self.replica.reason)
        assert self.replica.ready is None
        return self.replica.reason

    async def dies(self, **parameters: Any) -> str:
        """Send a request that costs the worker its life; the client's error."""
        with pytest.raises(errors.WorkerDied) as caught:
            await ask(self.channel, None, **parameters)
        return str(caught.value)


@asynccontextmanager
async def running(
    spec: ModelSpec | None = None, limits: WorkerLimits = LIMITS, interpreter: str = sys.executable
) -> AsyncIterator[Running]:
    """A replica that is stopped in the end, whatever happened to it."""
    run = Running(spec or echo(), limits, interpreter)
    try:
        yield run
    finally:
        await run.replica.stop()
        await run.task


def script(path: Path, text: str) -> str:
    """An executable file with that text; its path."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def shell(path: Path, text: str) -> str:
    """A shell script as an interpreter. It gets the arguments of a worker; ``exec PYTHON "$@"`` becomes one."""
    return script(path, "#!/bin/sh\n" + text.replace("PYTHON", sys.executable) + "\n")


def impostor(path: Path, text: str) -> str:
    """A Python script as an interpreter, with the worker's end of the channel open as ``channel``."""
    return script(
        path,
        f"#!{sys.executable}\n"
        "import os, socket, sys, time\n"
        'channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--channel-fd") + 1]))\n' + text,
    )


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descriptors() -> list[str]:
    """What this process has open, without numbers, so that two moments compare; an event loop keeps /dev/null open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}").split(":[")[0])
        except FileNotFoundError:
            continue  # the listing's own
    return sorted(name for name in found if name != os.devnull)


async def gone(*pids: int) -> None:
    """Wait until none of the processes runs."""
    await until(lambda: not any(map(alive, pids)))
