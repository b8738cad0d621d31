"""The lifecycle manager when something goes wrong: versions that fail, workers that die, a registry that is away."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest

from backends.errors import LoadFailed
from backends.spec import ModelSpec
from gateway import errors
from gateway.lifecycle import following
from gateway.lifecycle import manager as manager_module
from gateway.workers import restart
from support.children import children
from support.lifecycle import (
    CREDITS,
    FAILED,
    READY,
    RESTARTING,
    UNLOADED,
    config,
    outcomes,
    serving,
    version,
)
from support.wait import stays, until
from support.workers import LIMITS, gone, shell

# --- failing ---


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"no_such_field": 1}, "no_such_field"),
        ({"max_batch_size": "many"}, "max_batch_size"),
        ({"max_batch_size": -1}, "max_batch_size is -1"),
        ({"name": "other"}, "name is 'other'"),
        (config(oddity="1"), "the echo backend has no option 'oddity'"),
    ],
)
async def test_a_version_that_cannot_be_served_says_why_and_others_do_not_notice(
    tmp_path: Path, broken: dict[str, object], reason: str
) -> None:
    bad = msgspec.structs.replace(version("bad", 1), config=broken)
    async with serving(tmp_path, bad, version("m", 1)) as gateway:
        status = await gateway.settled("bad", 1)
        assert status.state is FAILED
        assert reason in status.reason
        await gateway.is_ready("m", 1)
        assert await gateway.infer("m") == "1"
        await gateway.want("bad")
        assert (await gateway.settled("bad", 1)).state is UNLOADED


async def test_a_failed_version_leaves_the_old_one_in_service_until_it_is_not_wanted(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        pid = gateway.pid()
        await gateway.add(version("m", 2, load_fail="half a file"), version("m", 3, load_fail="half a file"))
        await gateway.want("m", 2, 3)
        for number in (2, 3):
            assert (await gateway.settled("m", number)).state is FAILED
        status = await gateway.settled("m", 1)
        assert (status.state, status.reason) == (READY, "kept in service, because version 2, 3 failed")
        assert gateway.manager.ready()
        assert await gateway.infer() == "1"
        assert gateway.pid() == pid
        await gateway.want("m")
        for number in (1, 2, 3):
            assert (await gateway.settled("m", number)).state is UNLOADED
        await gone(pid)


async def test_a_failed_version_can_be_tried_again(tmp_path: Path) -> None:
    interpreter = shell(tmp_path / "python", f'test -e {tmp_path}/mended && exec PYTHON "$@"; exit 3')
    async with serving(tmp_path, version("m", 1), interpreters={"echo": interpreter}) as gateway:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(restart, "MAX_FAILURES", 1)
            status = await gateway.settled("m", 1)
        assert status.state is FAILED
        assert status.reason.startswith("2 deaths in a row, tried again every 30 s; the worker exited with code 3")
        (tmp_path / "mended").touch()
        gateway.manager.retry("m", 1)
        await gateway.is_ready()
        assert await gateway.infer() == "1"


async def test_to_try_again_changes_nothing_about_what_has_not_failed(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        pid = gateway.pid()
        for model, number in (("m", 1), ("m", 2), ("other", 1)):
            gateway.manager.retry(model, number)
        await gateway.is_ready()
        assert gateway.pid() == pid


# --- dying ---


async def test_a_restart_is_seen_and_other_models_never_notice(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1), version("n", 1)) as gateway:
        await gateway.is_ready("m", 1)
        await gateway.is_ready("n", 1)
        await gateway.manager.restart_worker("m:1-0")
        await until(lambda: gateway.state("m") is RESTARTING)
        assert not gateway.manager.ready()
        with pytest.raises(
            errors.ModelNotReady,
            match="not at ready state but restarting: (the worker was ended by|its worker has just)",
        ):
            await gateway.infer("m")
        assert await gateway.infer("n") == "1"
        await stays(lambda: gateway.state("n") is READY, lambda: gateway.state("m") is READY)
        assert gateway.manager.ready()
        assert await gateway.infer("m") == "1"
        assert [worker.restarts for worker in gateway.manager.workers()] == [1, 0]


@pytest.mark.parametrize("id", ["", "m:1-1", "m:2-0", "m:1"])
async def test_a_worker_that_does_not_exist_cannot_be_restarted(tmp_path: Path, id: str) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        with pytest.raises(errors.NotFound, match=f"there is no worker '{id}'"):
            await gateway.manager.restart_worker(id)


async def test_requests_in_a_dying_worker_and_those_behind_it_are_told_to_try_again(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        tasks = gateway.many(CREDITS + 4, delay_ms=5000)
        await until(lambda: gateway.catalog.versions["m"][1].waiting == 4)
        os.kill(gateway.pid(), signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [errors.WorkerDied] * CREDITS + [errors.ModelNotReady] * 4
        await gateway.is_ready()
        assert await outcomes(gateway.many(2 * CREDITS)) == {"1"}


async def test_a_worker_that_dies_again_and_again_fails_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "MAX_FAILURES", 1)
    async with serving(tmp_path, version("m", 1)) as gateway:
        for restarts in range(2):
            await until(lambda: gateway.state() is READY)
            assert gateway.manager.workers()[0].restarts == restarts
            with pytest.raises(errors.WorkerDied):
                await gateway.infer(crash="7")
            await until(lambda: gateway.state() is not READY)
        status = await gateway.settled("m", 1)
        assert status.state is FAILED
        assert status.reason == "2 deaths in a row, tried again every 30 s; the worker exited with code 7"
        assert [(worker.state, worker.pid, worker.started_at) for worker in status.workers] == [("failed", None, 0.0)]
        gateway.manager.retry("m", 1)
        await gateway.is_ready()
        assert await gateway.infer() == "1"


# --- waiting for room ---


async def test_who_stops_waiting_leaves_a_place_for_another(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1), max_waiting=2) as gateway:
        await gateway.is_ready()
        served = gateway.catalog.versions["m"][1]
        running = gateway.many(CREDITS, delay_ms=40)
        await until(lambda: served.replicas[0].outstanding == CREDITS)
        leaving = gateway.many(2)
        await until(lambda: served.waiting == 2)
        with pytest.raises(errors.Overloaded, match="maximum queue size: 2 requests wait"):
            await gateway.infer()
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        assert served.waiting == 0
        assert await outcomes([*running, *gateway.many(2)]) == {"1"}
        assert served.replicas[0].outstanding == 0


def note(given: list[object], number: int, room: object) -> None:
    given.append((number, room))


async def test_room_is_given_out_in_order_and_not_to_who_has_left(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        served = gateway.catalog.versions["m"][1]
        given: list[object] = []
        first, *_ = (served.queue(partial(note, given, n)) for n in range(3))
        served.withdraw(first)
        served.withdraw(first)  # a second time changes nothing
        assert (given, served.waiting) == ([], 2)
        served.freed()
        assert (given, served.waiting) == ([(1, served.replicas[0]), (2, served.replicas[0])], 0)
        served.freed()
        assert len(given) == 2


async def test_room_that_cannot_be_used_goes_to_the_next_one(tmp_path: Path) -> None:
    """Thousands may wait whose sending fails at once: each says so from inside its turn."""
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        served = gateway.catalog.versions["m"][1]
        tries: list[int] = []

        def fails(number: int, _room: object) -> None:
            tries.append(number)
            served.freed()

        for number in range(5_000):
            served._waiting[number] = partial(fails, number)
        served.freed()
        assert tries == list(range(5_000))


async def test_a_request_that_nobody_waits_for_holds_its_place_until_it_is_done(tmp_path: Path) -> None:
    """Otherwise impatient clients would pile up work in a slow worker, past every bound."""
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        replica = gateway.catalog.versions["m"][1].replicas[0]
        slow = gateway.many(1, delay_ms=300)
        await until(lambda: replica.outstanding == 1)
        slow[0].cancel()
        await asyncio.wait(slow)
        assert replica.outstanding == 1
        assert await gateway.infer() == "1"
        assert replica.outstanding == 0


# --- the registry ---


async def test_without_its_registry_the_gateway_goes_on_and_catches_up_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (following, manager_module):
        monkeypatch.setattr(module, "RETRY_S", 0.02)
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        await gateway.store.add_version(version("n", 1))
        await gateway.store.close()
        gateway.manager.poke()
        assert (await gateway.manager.wait_settled("m", 1, 0.1)).state is READY
        os.kill(gateway.pid(), signal.SIGKILL)
        await until(lambda: gateway.state() is RESTARTING)
        await until(lambda: gateway.state() is READY)
        assert await gateway.infer() == "1"
        assert not gateway.task.done()
        await gateway.store.open()
        await until(lambda: gateway.state("n") is READY)  # nobody had to tell


# --- probes ---


async def test_a_probe_tells_the_signature_or_the_reason_and_shows_nowhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        await until(gateway.manager.ready)
        signature = await gateway.manager.probe(ModelSpec("m", 1, "echo", ""))
        assert [tensor.name for tensor in signature.outputs] == ["OUTPUT0"]
        with pytest.raises(LoadFailed, match="^no model$"):
            await gateway.manager.probe(
                ModelSpec("m", 1, "echo", "", options={"fault_injection": "true", "load_fail": "no model"})
            )
        assert gateway.manager.workers() == []
        assert children() == []


async def test_a_probe_that_is_not_waited_for_any_more_is_ended(tmp_path: Path) -> None:
    hanging = ModelSpec("m", 1, "echo", "", options={"fault_injection": "true", "load_hang": "true"})
    async with serving(tmp_path) as gateway:
        await until(gateway.manager.ready)
        task = asyncio.create_task(gateway.manager.probe(hanging))
        await until(children)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == []


async def test_workers_get_no_more_than_what_the_requests_left_of_the_time_to_drain(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, drain_timeout_s=3600.0)
    async with serving(tmp_path, version("m", 1), limits=limits) as gateway:
        await gateway.is_ready()
        (hanging,) = gateway.many(1, hang="true")
        await until(lambda: gateway.catalog.versions["m"][1].replicas[0].outstanding == 1)
        gateway.manager.drain_by(time.monotonic())
        await gateway.stop()
        with pytest.raises(errors.WorkerDied):
            await hanging
    assert children() == []
