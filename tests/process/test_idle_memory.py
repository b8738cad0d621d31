"""A worker that nobody asks gives its memory back, and so does the gateway's side of its channel."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

from backends.tensor import Tensor, from_numpy
from support.wait import until
from support.workers import Running, ask, echo, floats, limits, running, submit

MIB = 1 << 20
ARENA = 64 * MIB


def large() -> list[Tensor]:
    return [from_numpy("INPUT0", np.ones((1, 2 * MIB), np.float32))]


async def burst(run: Running) -> None:
    """Four requests of 8 MiB at a time, answered with as much."""
    replies = await asyncio.gather(*(submit(run.channel, large()).future for _ in range(4)))
    for reply in replies:
        assert reply.tensors[0].numpy().sum() == 2 * MIB
        reply.release()


def arenas() -> int:
    """Bytes of this process's memory that are of arenas."""
    found, of_arena = 0, False
    with open(f"/proc/{os.getpid()}/smaps") as lines:
        for line in lines:
            if "-" in line.split()[0]:
                of_arena = "tensorgate-" in line
            elif of_arena and line.startswith("Rss:"):
                found += int(line.split()[1]) << 10
    return found


async def test_after_a_burst_and_some_idle_time_both_sides_take_as_little_memory_as_before() -> None:
    async with running(echo(), limits(idle_trim_s=0.2, arena_bytes=ARENA)) as run:
        await run.ready()
        before = run.replica.rss_bytes
        await burst(run)
        await until(lambda: run.replica.rss_bytes < before + 8 * MIB and arenas() < 8 * MIB)
        await burst(run)  # and all works as it did
        await until(lambda: run.replica.rss_bytes < before + 8 * MIB and arenas() < 8 * MIB)
        assert await ask(run.channel, floats(5.0)) == [5.0]


async def test_without_idle_time_the_memory_is_kept_for_the_next_burst() -> None:
    async with running(echo(), limits(idle_trim_s=0.0, arena_bytes=ARENA)) as run:
        await run.ready()
        before = run.replica.rss_bytes
        await burst(run)
        grown = await until(lambda: run.replica.rss_bytes > before + 32 * MIB and run.replica.rss_bytes)
        heard = run.channel.heard_at
        await until(lambda: run.channel.heard_at > heard + 0.5)
        assert run.replica.rss_bytes > grown - 8 * MIB
        assert arenas() >= 64 * MIB


@pytest.mark.parametrize("value", [0.0, 0.05])
async def test_a_worker_at_work_is_not_idle_however_long_it_takes(value: float) -> None:
    async with running(echo(), limits(idle_trim_s=value, arena_bytes=ARENA)) as run:
        await run.ready()
        assert await ask(run.channel, large(), delay_ms=300) == [1.0] * (2 * MIB)
