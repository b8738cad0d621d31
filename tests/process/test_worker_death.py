"""Workers that die or stop working while they serve, what they write, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil
import pytest

from gateway import errors
from gateway.workers import process as process_module
from gateway.workers import restart
from support.wait import until
from support.workers import (
    LIMITS,
    alive,
    ask,
    descriptors,
    echo,
    floats,
    gone,
    impostor,
    limits,
    running,
    shell,
    submit,
)

QUICK: Final = 0.3  # seconds that pass in a test of a time limit


# --- death while it serves ---


@pytest.mark.parametrize(
    ("instances", "crash", "how"),
    [
        (1, "SIGKILL", "was killed by signal 9, SIGKILL (often: out of memory)"),
        (3, "SIGSEGV", "was killed by signal 11, SIGSEGV"),
        (3, "0", "exited with code 0"),
    ],
)
async def test_a_crash_costs_the_requests_at_hand_and_the_replica_serves_again(
    instances: int, crash: str, how: str
) -> None:
    async with running(echo(instances)) as run:
        first = await run.ready()
        others = [submit(run.channel, delay_ms=5000) for _ in range(instances - 1)]
        text = await run.dies(crash=crash)
        assert not run.replica.has_room  # whoever asks now, at once, is not sent to the dead
        assert run.changes[-1] == (False, "its worker has just ended")
        assert text == "worker echo:1-0 died while it had the request; it is being restarted, try again"
        for other in others:
            with pytest.raises(errors.WorkerDied):
                await other.future
        await run.serves_again()
        assert run.deaths == [f"the worker {how}"]
        assert run.process is not first
        assert not alive(first.pid)
        assert run.replica.reason == ""
        assert run.replica.restarts == 1


async def test_a_kill_from_outside_is_like_a_crash() -> None:
    async with running() as run:
        process = await run.ready()
        sent = submit(run.channel, delay_ms=20_000)
        await until(lambda: run.channel.in_flight)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerDied):
            await sent.future
        await run.serves_again()


async def test_a_restart_that_was_asked_for_is_called_so_and_does_not_use_up_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restart, "MAX_FAILURES", 1)
    async with running() as run:
        for restarts in range(3):
            await run.ready(restarts)
            run.replica.kill()
        await run.serves_again(restarts=3)
        assert run.deaths == ["the worker was ended by the gateway"] * 3


async def test_a_worker_that_dies_again_and_again_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "MAX_FAILURES", 1)
    async with running() as run:
        for restarts in range(2):
            await run.ready(restarts)
            await run.dies(crash="3")
        assert await run.given_up() == "2 deaths in a row, tried again every 30 s; the worker exited with code 3"


# --- a worker that lives and does not work ---


async def test_a_stopped_worker_is_noticed_by_its_silence() -> None:
    async with running(limits=limits(heartbeat_timeout_s=QUICK)) as run:
        process = await run.ready()
        sent = submit(run.channel)
        await sent.future
        os.kill(process.pid, signal.SIGSTOP)
        sent = submit(run.channel)
        with pytest.raises(errors.WorkerDied, match="no heartbeat for 0.3 s"):
            await sent.future
        await run.serves_again()
        assert not alive(process.pid)
        assert run.deaths == [
            "the worker was ended by the gateway: no heartbeat for 0.3 s (setting heartbeat_timeout_s)"
        ]


async def test_a_worker_whose_interpreter_is_blocked_is_noticed_by_its_silence() -> None:
    async with running(limits=limits(heartbeat_timeout_s=QUICK)) as run:
        await run.ready()
        assert "no heartbeat" in await run.dies(hang="gil")
        await run.serves_again()


async def test_a_batch_that_hangs_is_ended_after_its_time() -> None:
    async with running(echo(instances=2), limits(execution_timeout_s=QUICK)) as run:
        await run.ready()
        hanging = submit(run.channel, hang="true")
        assert await ask(run.channel, floats(1.0)) == [1.0]  # the other instance goes on
        with pytest.raises(errors.WorkerDied, match=r"a batch ran for over 0.3 s \(setting execution_timeout_s\)"):
            await hanging.future
        await run.serves_again()


async def test_an_idle_worker_is_not_taken_for_a_hanging_one() -> None:
    async with running(limits=limits(execution_timeout_s=0.2, heartbeat_timeout_s=0.4)) as run:
        process = await run.ready()
        for _ in range(3):
            await ask(run.channel)
        heard = process.channel.heard_at
        await until(lambda: process.channel.heard_at > heard + 0.6)
        assert run.process is process


class Blocking(list[int]):
    """Holds the event loop up when the next batch is counted, in the middle of reading what has arrived."""

    def append(self, rows: int) -> None:
        super().append(rows)
        time.sleep(2 * QUICK)


async def test_a_gateway_that_was_held_up_does_not_blame_its_workers() -> None:
    async with running(limits=limits(heartbeat_timeout_s=QUICK)) as run:
        process = await run.ready()
        time.sleep(2 * QUICK)  # noqa: ASYNC251 - the event loop stands still, as when the process is stopped
        await asyncio.sleep(0)
        run.batches = Blocking()
        assert await ask(run.channel, floats(1.0)) == [1.0]
        heard = process.channel.heard_at
        await until(lambda: process.channel.heard_at > heard + 2 * LIMITS.heartbeat_s)
        assert run.process is process
        assert run.changes == [(True, "")]


# --- output ---


@pytest.mark.parametrize("size", [5 << 20, 79])
async def test_output_of_any_size_blocks_nobody_and_the_last_lines_are_kept(size: int) -> None:
    async with running() as run:
        process = await run.ready()
        assert await ask(run.channel, floats(1.0), print_bytes=size) == [1.0]
        assert await ask(run.channel, floats(2.0), print_bytes=80) == [2.0]
        await until(lambda: process.tail and process.tail[-1].endswith("x" * 79))
        assert len(process.tail) <= 20


async def test_lines_without_end_and_of_no_encoding_are_cut_and_kept_readable(tmp_path: Path) -> None:
    interpreter = impostor(
        tmp_path / "python",
        "for _ in range(40):\n    os.write(1, b'y' * 100_000)\n"
        "os.write(1, b'\\nafter \\xff it\\r\\nlast without end')\nos._exit(3)\n",
    )
    async with running(interpreter=interpreter) as run:
        reason = await run.down()
        assert reason.endswith(" ... (cut) | after \ufffd it | last without end")
        assert reason.count("cut") == 1
        assert len(reason) < 20_000


# --- the whole group ---


async def test_what_a_worker_started_dies_with_it(tmp_path: Path) -> None:
    interpreter = shell(tmp_path / "python", 'sleep 1000 & exec PYTHON "$@"')
    async with running(interpreter=interpreter) as run:
        process = await run.ready()
        (child,) = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)  # the child holds the channel and the output open
        await gone(process.pid, child.pid)
        await run.serves_again()
        assert run.deaths == ["the worker was killed by signal 9, SIGKILL (often: out of memory)"]
        children = psutil.Process(run.process.pid).children()
    await gone(*(child.pid for child in children))
    assert len(children) == 1


async def test_a_child_that_has_left_the_group_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = shell(tmp_path / "python", f'setsid sleep 1000 & echo $! >> {tmp_path}/pids; exec PYTHON "$@"')
    monkeypatch.setattr(process_module, "_GRACE_S", 0.2)
    before = descriptors()
    try:
        async with running(interpreter=interpreter) as run:
            process = await run.ready()
            os.kill(process.pid, signal.SIGKILL)
            await run.serves_again()
        await until(lambda: descriptors() == before)
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


GATEWAY = """
import asyncio, sys
from support.wait import until
from support.workers import echo, running, submit

async def main():
    async with running(echo()) as run:
        process = await run.ready()
        if sys.argv[1] != "idle":
            submit(run.channel, print_bytes=80, hang=sys.argv[1])
            await until(lambda: process.tail)
        print(process.pid, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("doing", ["idle", "true", "gil"])
def test_a_worker_does_not_outlive_its_gateway_whatever_it_does(doing: str) -> None:
    path = str(Path(__file__).resolve().parents[1])
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, doing],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([path, *sys.path])},
    )
    assert gateway.stdout is not None
    worker = int(gateway.stdout.readline())
    assert alive(worker)
    gateway.kill()
    gateway.wait()
    gateway.stdout.close()
    asyncio.run(gone(worker))
