"""Real worker processes: how they answer, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import psutil
import pytest

from backends.spec import ModelSpec, TensorSpec
from backends.tensor import Tensor, from_numpy
from gateway import errors
from gateway.workers import restart
from gateway.workers.process import launch
from gateway.workers.replica import NotLoaded, Replica
from support.children import children
from support.wait import until
from support.workers import (
    LIMITS,
    alive,
    ask,
    descriptors,
    echo,
    floats,
    limits,
    numbers,
    running,
    shell,
    submit,
)

QUICK: Final = 0.3  # seconds that pass in a test of a time limit


# --- a good life ---


async def test_a_worker_says_hello_loads_and_answers() -> None:
    async with running() as run:
        process = await run.ready()
        assert run.changes == [(True, "")]
        ready = run.replica.ready
        assert ready is not None
        assert (ready.signature.platform, ready.runtime) == ("echo", "echo")
        assert ready.credits > 0
        assert ready.load.rss_bytes > 1 << 20
        assert run.replica.started_at > 0
        assert await ask(run.channel, floats(1.0, 2.5)) == [1.0, 2.5]
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid


async def test_a_worker_sees_no_device_and_imports_nothing_from_the_folder_it_starts_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("TENSORGATE_DATABASE", "postgresql://gateway:secret@127.0.0.1/registry")
    async with running() as run:
        process = await run.ready()
        environment = psutil.Process(process.pid).environ()
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
        assert environment["PYTHONSAFEPATH"] == "1"
        assert not [name for name in environment if name.startswith("TENSORGATE_")]


async def test_tensors_of_every_size_go_there_and_back() -> None:
    spec = msgspec.structs.replace(echo(), inputs=(TensorSpec("x", "UINT8", (-1,)), TensorSpec("s", "BYTES", (-1,))))
    async with running(spec) as run:
        await run.ready()
        for size in (0, 1, 16383, 16384, 1 << 20, LIMITS.arena_bytes, 3 * LIMITS.arena_bytes):
            array = np.arange(size, dtype=np.uint8)
            texts = Tensor("s", "BYTES", (2,), b"\x03\0\0\0abc\0\0\0\0")
            reply = await submit(run.channel, [from_numpy("x", array), texts]).future
            assert np.array_equal(reply.tensors[0].numpy(), array)
            assert reply.tensors[1].numpy().tolist() == [b"abc", b""]
            reply.release()


async def test_requests_on_several_instances_run_at_the_same_time_and_get_their_own_answers() -> None:
    async with running(echo(instances=4), limits(drain_timeout_s=0.1)) as run:
        await run.ready()
        asked = [submit(run.channel, floats(float(n))) for n in range(300)]
        assert [numbers(await sent.future) for sent in asked] == [[float(n)] for n in range(300)]
        for _ in range(3):
            submit(run.channel, hang="true")  # takes an instance for good
            assert await ask(run.channel, floats(7.0)) == [7.0]


async def test_what_arrives_while_the_worker_is_busy_is_its_next_batch() -> None:
    async with running(echo(max_batch_size=8)) as run:
        await run.ready()
        first = submit(run.channel, floats(0.0), delay_ms=100)
        await until(lambda: run.channel.in_flight == 1)
        rest = [submit(run.channel, floats(float(n))) for n in range(1, 6)]
        assert [numbers(await sent.future) for sent in (first, *rest)] == [[float(n)] for n in range(6)]
        assert sum(run.batches) == 6
        assert run.batches[0] == 1
        assert max(run.batches) > 1


async def test_one_bad_request_in_a_batch_fails_alone() -> None:
    async with running(echo(max_batch_size=8, delay_us=100_000)) as run:
        await run.ready()
        good = [submit(run.channel, floats(float(n))) for n in range(3)]
        bad = submit(run.channel, floats(9.0), fail="because")
        with pytest.raises(errors.ModelFailed, match="because"):
            await bad.future
        assert [numbers(await sent.future) for sent in good] == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("instances", [1, 4])
async def test_a_failing_request_costs_only_itself(instances: int) -> None:
    async with running(echo(instances)) as run:
        process = await run.ready()
        for _ in range(3):
            with pytest.raises(errors.ModelFailed, match="^no luck$"):
                await ask(run.channel, fail="no luck")
            with pytest.raises(errors.InvalidRequest, match="^wrong shape$"):
                await ask(run.channel, invalid="wrong shape")
            assert await ask(run.channel, floats(1.0)) == [1.0]
        assert run.process is process


@pytest.mark.parametrize("text", ["", "\0", "long " * 100_000], ids=["empty", "a zero", "long"])
async def test_any_text_of_an_error_comes_through_as_far_as_it_fits(text: str) -> None:
    async with running() as run:
        await run.ready()
        with pytest.raises(errors.ModelFailed) as caught:
            await ask(run.channel, fail=text)
        told = str(caught.value)
        assert text.startswith(told)
        assert len(told) == min(len(text), 64 << 10)
        assert await ask(run.channel, floats(1.0)) == [1.0]


# --- time limits and cancellation of requests ---


async def test_a_request_whose_time_runs_out_in_the_workers_queue_is_refused() -> None:
    async with running() as run:
        await run.ready()
        busy = submit(run.channel, delay_ms=200)
        late = submit(run.channel, timeout_us=1000)
        in_time = submit(run.channel, floats(2.0), timeout_us=20_000_000)
        with pytest.raises(errors.DeadlineExceeded, match="time ran out while it waited"):
            await late.future
        await busy.future
        assert numbers(await in_time.future) == [2.0]


async def test_a_request_that_is_cancelled_in_the_queue_never_runs_and_is_answered() -> None:
    async with running() as run:
        process = await run.ready()
        busy = submit(run.channel, delay_ms=200)
        cancelled = submit(run.channel, [*floats(1.0), from_numpy("y", np.zeros(1 << 16, np.uint8))], crash="SIGKILL")
        cancelled.abandon()
        await busy.future
        assert await ask(run.channel, floats(3.0)) == [3.0]
        assert run.process is process  # a request that had run would have killed it
        assert run.channel.in_flight == 0


async def test_a_request_that_is_cancelled_while_it_runs_is_answered_once_and_gives_its_memory_back() -> None:
    async with running() as run:
        await run.ready()
        for _ in range(4):
            sent = submit(run.channel, [from_numpy("INPUT0", np.zeros((1, 1 << 18), np.float32))], delay_ms=30)
            sent.abandon()
        await until(lambda: run.channel.in_flight == 0)
        assert await ask(run.channel, floats(1.0)) == [1.0]


# --- the end ---


async def test_drain_answers_everything_that_was_accepted_and_the_worker_exits_in_order() -> None:
    async with running() as run:
        process = await run.ready()
        asked = [submit(run.channel, floats(float(n)), delay_ms=10) for n in range(8)]
        await run.replica.stop()
        assert [numbers(await sent.future) for sent in asked] == [[float(n)] for n in range(8)]
        assert await process.wait() == "exited with code 0"
        assert not run.replica.failed


async def test_a_worker_that_does_not_drain_in_time_is_ended() -> None:
    async with running(limits=limits(drain_timeout_s=QUICK)) as run:
        process = await run.ready()
        sent = submit(run.channel, hang="true")
        await run.replica.stop()
        assert not alive(process.pid)
        with pytest.raises(errors.WorkerDied):
            await sent.future


@pytest.mark.parametrize("spec", [echo(load_hang="gil"), echo(load_delay_ms="100000")], ids=["hangs", "is slow"])
async def test_a_worker_that_still_loads_is_ended_at_once(spec: ModelSpec) -> None:
    async with running(spec) as run:
        process = await run.started()
        await asyncio.wait_for(run.replica.stop(), LIMITS.drain_timeout_s / 2)
        await asyncio.wait_for(run.task, 20)
        assert not alive(process.pid)
        assert run.replica.restarts == 0


async def test_a_stop_before_anything_was_started_ends_it_all_the_same() -> None:
    before = descriptors()
    async with running() as run:
        await run.replica.stop()
        await asyncio.wait_for(run.task, 20)
        assert run.replica.ready is None
    async with running() as run:
        await asyncio.sleep(0)  # now the process is being started
        await run.replica.stop()
        await asyncio.wait_for(run.task, 20)
    await until(lambda: descriptors() == before)
    assert children() == []


async def test_a_stop_between_two_starts_does_not_wait_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "FIRST_DELAY_S", 1000.0)
    monkeypatch.setattr(restart, "MAX_DELAY_S", 1000.0)
    async with running(echo(load_crash="1")) as run:
        await run.down()
        await run.replica.stop()
        await asyncio.wait_for(run.task, 20)


async def test_a_drain_right_after_the_start_is_heard() -> None:
    process = await launch("early", lambda _: None, lambda *_: None, arena_bytes=1 << 20)
    await process.drain(20)
    assert await process.wait() == "exited with code 0"
    async with running() as run:
        process = await run.started()
        await process.drain(20)  # Load and Drain arrive together, before the worker listens
        assert await process.wait() == "exited with code 0"


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    before = descriptors()
    interpreter = shell(tmp_path / "python", "exec sleep 1000")  # would not notice the end of its channel
    for turns in range(8):
        task = asyncio.create_task(
            launch("cut short", lambda _: None, lambda *_: None, interpreter=interpreter, arena_bytes=1 << 20)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.cancel():
            with contextlib.suppress(asyncio.CancelledError):
                (await task).kill()
        else:
            (await task).kill()
    await until(lambda: children() == [] and descriptors() == before)


async def test_a_probe_gives_the_signature_and_ends() -> None:
    replica = Replica("probe", echo(), sys.executable, LIMITS, lambda: None)
    ready = await replica.load_once()
    assert [tensor.name for tensor in ready.signature.inputs] == ["INPUT0"]
    assert replica.process is not None
    pid = replica.process.pid
    await replica.stop()
    assert not alive(pid)
    replica = Replica("probe", echo(load_crash="2"), sys.executable, LIMITS, lambda: None)
    with pytest.raises(NotLoaded, match="exited with code 2"):
        await replica.load_once()
    await replica.stop()


async def test_twenty_restarts_leave_no_descriptor_no_memory_and_no_process_behind() -> None:
    async with running() as run:
        await run.ready()
        await ask(run.channel)
        run.replica.kill()
        await run.serves_again()
        before = descriptors()
        for restarts in range(2, 22):
            run.replica.kill()
            await run.ready(restarts)
        await until(lambda: descriptors() == before)
        assert sum("memfd" in name for name in before) == 2  # the mappings of the worker that runs
        assert len(children()) == 1
    await until(lambda: not any("memfd" in name for name in descriptors()))
    assert children() == []


async def test_a_gateway_with_thousands_of_connections_can_start_workers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    with contextlib.ExitStack() as connections:
        connections.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        null = connections.enter_context(Path("/dev/null").open("rb"))  # noqa: ASYNC230 - opens at once
        for _ in range(1100):
            connections.callback(os.close, os.dup(null.fileno()))
        async with running(echo(max_batch_size=4, delay_us=1000)) as run:
            await run.ready()
            assert await ask(run.channel, floats(1.0), timeout_us=20_000_000) == [
                1.0
            ]  # makes it wait with a time limit
            assert run.replica.restarts == 0
