"""How far a load is, what it took, and who is told: a worker's stages, time and memory, deaths and restarts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from backends.spec import ModelSpec, TensorSpec, Warmup, WarmupInput
from backends.stages import IMPORTING, READING, WARMING_UP
from gateway.telemetry.events import PROGRESS, STATE, WORKER
from support import onnx_models
from support.lifecycle import FAILED, LOADING, READY, serving, version
from support.wait import until
from support.workers import Running, echo, running

MIB = 1 << 20
SAMPLE = Warmup("zeros", (WarmupInput("INPUT0", "FP32", (1, 4)),), count=3)


def stages(run: Running) -> list[tuple[str, int, int]]:
    return [(data["stage"], data["number"], data["count"]) for kind, data in run.events if kind == PROGRESS]


async def test_a_model_without_a_framework_and_samples_is_only_read() -> None:
    async with running() as run:
        await run.ready()
        assert stages(run) == [(READING, 1, 1)]


async def test_every_stage_is_told_in_order_and_timed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = onnx_models.save(onnx_models.add_one(), tmp_path)
    sample = Warmup("zeros", (WarmupInput("x", "FP32", (1, 4)),))
    spec = ModelSpec("m", 1, "onnx", str(folder / "model.onnx"), warmup=(sample,))
    with caplog.at_level(logging.INFO, "tensorgate.worker"):
        async with running(spec) as run:
            await run.ready()
    assert stages(run) == [(IMPORTING, 1, 3), (READING, 2, 3), (WARMING_UP, 3, 3)]
    elapsed = [data["elapsed_s"] for kind, data in run.events if kind == PROGRESS]
    assert elapsed == sorted(elapsed)
    told = [record.getMessage() for record in caplog.records if " of 3)" in record.getMessage()]
    assert told == [f"worker echo:1-0: {READING} (2 of 3)", f"worker echo:1-0: {WARMING_UP} (3 of 3)"]


async def test_the_time_and_the_memory_of_a_load_are_reported_apart_from_the_frameworks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = echo(load_bytes=str(64 * MIB), load_delay_ms="30")
    with caplog.at_level(logging.INFO, "tensorgate.worker"):
        async with running(spec) as run:
            await run.ready()
            assert run.replica.ready is not None
            load = run.replica.ready.load
    assert load.read_ns >= 30_000_000
    assert load.total_ns == load.import_ns + load.read_ns + load.warmup_ns
    assert 60 * MIB < load.model_bytes < 80 * MIB
    assert load.base_bytes < load.rss_bytes <= load.peak_bytes
    (line,) = (record.getMessage() for record in caplog.records if "is ready" in record.getMessage())
    assert line.endswith(f"{load.rss_bytes / MIB:.0f} MiB, {load.model_bytes / MIB:.0f} of them the model's")


async def test_the_time_of_the_samples_is_the_warm_ups() -> None:
    spec = ModelSpec(
        "m", 1, "echo", "", max_batch_size=0, inputs=(TensorSpec("INPUT0", "FP32", (-1, -1)),), warmup=(SAMPLE,)
    )
    async with running(spec) as run:
        await run.ready()
        assert run.replica.ready is not None
        assert run.replica.ready.load.warmup_ns > 0
        assert stages(run) == [(READING, 1, 2), (WARMING_UP, 2, 2)]


async def test_a_death_and_the_restart_after_it_are_told() -> None:
    async with running() as run:
        await run.ready()
        await run.dies(crash="7")
        process = await run.ready(restarts=1)
        told = [data for kind, data in run.events if kind == WORKER]
    assert [(data["event"], data["worker"]) for data in told] == [
        (event, "echo:1-0") for event in ("ready", "died", "restarting", "ready")
    ]
    assert told[1]["reason"] == "the worker exited with code 7"
    assert (told[2]["restarts"], told[3]["pid"]) == (1, process.pid)


async def test_while_a_version_loads_its_status_says_what_at_and_for_how_long(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1, load_hang="true")) as gateway:
        await until(lambda: gateway.manager.status("m", 1).reason.startswith(READING))
        status = gateway.manager.status("m", 1)
        assert status.state is LOADING
        first = float(status.reason.removeprefix(f"{READING}, ").removesuffix(" s"))
        (worker,) = status.workers
        assert worker.state == "starting"
        assert worker.reason.startswith(READING)
        assert worker.load is None
        await until(lambda: gateway.manager.status("m", 1).reason != status.reason)
        later = gateway.manager.status("m", 1).reason
        assert float(later.removeprefix(f"{READING}, ").removesuffix(" s")) > first


async def test_the_status_of_a_ready_version_has_what_its_load_took(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1, load_bytes=str(32 * MIB))) as gateway:
        await gateway.is_ready()
        (worker,) = gateway.manager.status("m", 1).workers
        assert worker.load is not None
        assert worker.load.total_s >= worker.load.read_s > 0
        assert 28 * MIB < worker.load.model_bytes < worker.load.memory_bytes <= worker.load.peak_bytes


async def test_the_states_of_a_version_are_told_with_their_reasons(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        with gateway.manager.events.subscribe() as subscription:
            await gateway.add(version("m", 1), version("bad", 1, load_fail="no luck"))
            await gateway.is_ready()
            assert (await gateway.settled("bad", 1)).state is FAILED
            gateway.manager.events.close()
            told: dict[str, list[Any]] = {"m": [], "bad": []}
            while (event := await subscription.next(10)) is not None:
                if getattr(event, "kind", "") == STATE:
                    told[event.model].append((event.data["state"], event.data["reason"]))  # type: ignore[union-attr]
    assert told["m"] == [(LOADING, ""), (READY, "")]
    assert told["bad"] == [(LOADING, ""), (FAILED, "no luck")]
