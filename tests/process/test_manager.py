"""The lifecycle manager over a real registry and real workers: what ought to run runs, and nobody loses a request."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from gateway import errors
from gateway.lifecycle.repository import Problem
from registry.record import Source
from support.lifecycle import (
    CREDITS,
    DRAINING,
    FAILED,
    LOADING,
    READY,
    UNLOADED,
    outcomes,
    serving,
    version,
)
from support.wait import stays, until
from support.workers import LIMITS, alive, gone

# --- loading ---


async def test_without_models_the_gateway_is_ready_and_knows_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        assert not gateway.manager.ready()  # it has not looked yet
        await until(gateway.manager.ready)
        assert gateway.manager.workers() == []
        with pytest.raises(errors.NotFound):
            await gateway.infer()


async def test_what_is_desired_is_loaded_and_answers(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1), version("n", 7), version("n", 8, desired=False)) as gateway:
        await gateway.is_ready("m", 1)
        await gateway.is_ready("n", 7)
        assert await gateway.infer("m") == "1"
        assert await gateway.infer("n", "7") == "7"
        assert gateway.state("n", 8) is UNLOADED
        with pytest.raises(errors.ModelNotReady, match="'n' version 8, which is not loaded"):
            await gateway.infer("n", "8")
        (worker,) = (w for w in gateway.manager.workers() if w.model == "m")
        assert (worker.id, worker.state, worker.restarts, worker.reason) == ("m:1-0", "ready", 0, "")
        assert worker.pid is not None
        assert alive(worker.pid)
        assert worker.started_at > 0
        assert worker.rss_bytes > 0


async def test_a_version_that_is_registered_later_is_loaded_once_that_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        await until(gateway.manager.ready)
        await gateway.add(version("m", 1))
        await gateway.is_ready()
        assert await gateway.infer() == "1"


async def test_only_so_many_load_at_a_time_and_all_in_the_end(tmp_path: Path) -> None:
    models = [version(name, 1, load_delay_ms="30") for name in "abcd"]
    async with serving(tmp_path, *models, max_loading=2) as gateway:
        await stays(
            lambda: [served.state for served in gateway.catalog.all()].count(LOADING) <= 2,
            lambda: all(gateway.state(name) is READY for name in "abcd"),
        )


async def test_the_server_is_ready_when_all_that_was_wanted_at_the_start_is(tmp_path: Path) -> None:
    slow = version("slow", 1, load_delay_ms="300")
    async with serving(tmp_path, version("m", 1), slow) as gateway:
        await gateway.is_ready("m", 1)
        assert not gateway.manager.ready()
        await gateway.is_ready("slow", 1)
        assert gateway.manager.ready()


async def test_a_model_that_comes_later_counts_once_it_was_ready_and_until_nobody_wants_it(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        await gateway.add(version("bad", 1, load_fail="no"), version("good", 1))
        assert (await gateway.settled("bad", 1)).state is FAILED
        await gateway.is_ready("good", 1)
        assert gateway.manager.ready()
        os.kill(gateway.pid("good"), signal.SIGKILL)
        await until(lambda: not gateway.manager.ready())
        await until(gateway.manager.ready)
        await gateway.want("good")
        await gateway.settled("good", 1)
        assert gateway.manager.ready()


async def test_a_model_that_was_wanted_at_the_start_and_failed_keeps_the_server_from_being_ready(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, version("m", 1), version("bad", 1, load_fail="no luck")) as gateway:
        await gateway.is_ready("m", 1)
        status = await gateway.settled("bad", 1)
        assert (status.state, status.reason) == (FAILED, "no luck")
        assert not gateway.manager.ready()
        assert await gateway.infer("m") == "1"
        with pytest.raises(
            errors.ModelNotReady, match="'bad' version 1, which is not at ready state but failed: no luck"
        ):
            await gateway.infer("bad")
        await gateway.want("bad")
        await until(gateway.manager.ready)


async def test_what_could_not_be_registered_counts_as_what_failed_does(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1), version("m", 2, load_fail="no")) as gateway:
        await gateway.is_ready("m", 1)
        assert (await gateway.settled("m", 2)).state is FAILED
        gateway.catalog.problems = (Problem("m", 3, "no"),)
        assert gateway.manager.ready()  # the model can be served
        gateway.catalog.problems = (Problem("other", 1, "no"),)
        assert not gateway.manager.ready()


# --- unloading and replacing ---


async def test_a_version_is_unloaded_after_its_last_request_and_loses_none(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        tasks = gateway.many(3 * CREDITS, delay_ms=5)  # most of them wait in the gateway
        await until(lambda: gateway.catalog.versions["m"][1].waiting)
        await gateway.want("m")
        await until(lambda: gateway.state() is DRAINING)
        with pytest.raises(errors.ModelNotReady, match="draining"):
            await gateway.infer()
        assert await outcomes(tasks) == {"1"}
        status = await gateway.settled("m", 1)
        assert (status.state, status.workers) == (UNLOADED, ())
        with pytest.raises(errors.ModelNotReady, match="none is loaded"):
            await gateway.infer()


async def test_requests_that_wait_when_the_worker_of_a_leaving_version_dies_are_answered_by_the_next_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        tasks = gateway.many(2 * CREDITS, delay_ms=50)
        await until(lambda: gateway.catalog.versions["m"][1].waiting == CREDITS)
        await gateway.want("m")
        await until(lambda: gateway.state() is DRAINING)
        os.kill(gateway.pid(), signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[CREDITS:] == ["1"] * CREDITS
        assert all(isinstance(result, str | errors.WorkerDied) for result in results)
        assert (await gateway.settled("m", 1)).state is UNLOADED


async def test_a_request_that_never_ends_does_not_keep_a_version_for_ever(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, drain_timeout_s=0.2)
    async with serving(tmp_path, version("m", 1), limits=limits) as gateway:
        await gateway.is_ready()
        tasks = gateway.many(CREDITS + 2, hang="true")
        await until(lambda: gateway.catalog.versions["m"][1].waiting == 2)
        await gateway.want("m")
        assert (await gateway.settled("m", 1)).state is UNLOADED
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, errors.Unavailable) for result in results)


async def test_a_new_version_is_ready_before_the_old_one_leaves_and_no_request_fails(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        await gateway.add(version("m", 2, load_delay_ms="100"))
        answered: list[str] = []

        async def client() -> None:
            while gateway.state("m", 1) is not UNLOADED:
                answered.append(await gateway.infer())

        clients = [asyncio.create_task(client()) for _ in range(4)]
        await until(lambda: answered)
        await gateway.want("m", 2)
        await stays(
            lambda: READY in (gateway.state("m", 1), gateway.state("m", 2)) and gateway.manager.ready(),
            lambda: gateway.state("m", 1) is UNLOADED,
        )
        await asyncio.gather(*clients)
        assert answered == sorted(answered)  # from 1 to 2, and never back
        assert await gateway.infer() == "2"


async def test_a_version_that_is_wanted_again_while_it_leaves_comes_back(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        running = gateway.many(1, delay_ms=300)
        await until(lambda: gateway.catalog.versions["m"][1].replicas[0].outstanding)
        await gateway.want("m")
        await until(lambda: gateway.state() is DRAINING)
        await gateway.want("m", 1)
        await gateway.is_ready()
        assert await outcomes(running) == {"1"}
        assert await gateway.infer() == "1"


async def test_a_version_that_is_not_wanted_any_more_while_it_loads_is_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1, load_hang="gil")) as gateway:
        await until(lambda: gateway.manager.workers() and gateway.manager.workers()[0].pid)
        pid = gateway.pid()
        await gateway.want("m")
        assert (await gateway.settled("m", 1)).state is UNLOADED
        await gone(pid)


async def test_a_version_that_has_vanished_from_the_registry_is_unloaded(tmp_path: Path) -> None:
    from_folder = msgspec.structs.replace(version("m", 1), source=Source.REPOSITORY)
    async with serving(tmp_path) as gateway:
        await gateway.store.sync_repository([from_folder])
        gateway.manager.poke()
        await gateway.is_ready()
        await gateway.store.sync_repository([])
        gateway.manager.poke()
        assert (await gateway.settled("m", 1)).state is UNLOADED
        with pytest.raises(errors.NotFound):
            await gateway.infer()


# --- waiting for a state ---


async def test_what_is_waited_for_is_what_was_asked_last_and_not_what_was_before(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1), version("n", 1)) as gateway:
        await gateway.is_ready("m", 1)
        await gateway.is_ready("n", 1)
        for _ in range(2):
            await gateway.want("m")
            assert (await gateway.settled("m", 1)).state is UNLOADED
            await gateway.want("m", 1)
            os.kill(gateway.pid("n"), signal.SIGKILL)  # changes that have nothing to do with it
            assert (await gateway.settled("m", 1)).state is READY


async def test_whoever_waits_too_long_gets_the_state_as_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1, load_hang="true")) as gateway:
        assert (await gateway.manager.wait_settled("m", 1, 0.05)).state in (LOADING, UNLOADED)
        await until(lambda: gateway.state() is LOADING)
        assert (await gateway.manager.wait_settled("m", 1, 0.05)).state is LOADING
        assert (await gateway.manager.wait_settled("unknown", 1, 30)).state is UNLOADED


# --- stopping ---


async def test_a_stop_answers_what_was_accepted_and_ends_every_worker(tmp_path: Path) -> None:
    models = [version("m", 1), version("n", 1), version("slow", 1, load_hang="gil"), version("bad", 1, load_fail="no")]
    async with serving(tmp_path, *models, max_loading=9) as gateway:
        await gateway.is_ready("m", 1)
        await gateway.is_ready("n", 1)
        assert (await gateway.settled("bad", 1)).state is FAILED
        pids = [worker.pid for worker in gateway.manager.workers() if worker.pid]
        assert len(pids) == 3
        tasks = [*gateway.many(CREDITS, delay_ms=40), *gateway.many(4, model="n", delay_ms=100)]
        await until(lambda: sum(served.replicas[0].outstanding for served in gateway.catalog.all()) == len(tasks))
        await asyncio.wait_for(gateway.stop(), LIMITS.drain_timeout_s / 2)
        assert not any(map(alive, pids))
        assert await outcomes(tasks) == {"1"}
        assert gateway.catalog.all() == []
        with pytest.raises(errors.ModelNotReady):
            await gateway.infer("m")


async def test_a_stop_while_a_version_leaves_and_another_starts_ends_both(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1)) as gateway:
        await gateway.is_ready()
        tasks = gateway.many(4, delay_ms=50)
        await until(lambda: gateway.catalog.versions["m"][1].replicas[0].outstanding == 4)
        await gateway.want("m")
        await until(lambda: gateway.state() is DRAINING)
        await gateway.add(version("n", 1))
        await until(lambda: gateway.state("n") is LOADING)
        await gateway.stop()
        assert await outcomes(tasks) == {"1"}
        assert gateway.catalog.all() == []
