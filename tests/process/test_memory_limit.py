"""A worker that uses more memory than it may is ended with the numbers as the reason, and started again."""

from __future__ import annotations

import re

from support.wait import until
from support.workers import ask, echo, floats, limits, running

MIB = 1 << 20


async def test_a_worker_beyond_its_limit_is_ended_with_the_numbers_and_started_again() -> None:
    async with running(echo(load_bytes=str(300 * MIB)), limits(memory_bytes=250 * MIB)) as run:
        reason = await run.down()
        assert re.search(r": it uses 3\d\d MiB, its limit is 250 MiB \(setting worker_memory_limit_bytes\)", reason)
        await until(lambda: run.replica.restarts >= 1 and len(run.deaths) >= 2)


async def test_a_worker_below_its_limit_is_left_alone() -> None:
    async with running(echo(load_bytes=str(100 * MIB)), limits(memory_bytes=250 * MIB)) as run:
        process = await run.ready()
        heard = process.channel.heard_at
        await until(lambda: process.channel.heard_at > heard + 0.2)  # several heartbeats
        assert 100 * MIB < run.replica.rss_bytes < 250 * MIB
        assert await ask(run.channel, floats(1.0)) == [1.0]
        assert run.process is process
