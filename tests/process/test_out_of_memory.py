"""Models that are too large: on the host, on devices that the test makes up, and what their workers leave behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from backends.spec import ModelSpec, Warmup, WarmupInput
from gateway.lifecycle.memory import Readings
from gateway.lifecycle.room import Room
from gateway.placement.inventory import Device, Inventory
from registry.record import NewVersion
from support import onnx_models
from support.children import children
from support.lifecycle import FAILED, LOADING, Gateway, config, serving, version
from support.wait import until
from support.workers import echo, running

GIB = 1 << 30


def devices(*free: int) -> Callable[[], Inventory]:
    found = tuple(Device(n, f"GPU-{n}", "H", 80 * GIB, each) for n, each in enumerate(free))
    return lambda: Inventory(found)


def on_gpu(model: str, gpus: tuple[int, ...] = (), **options: str) -> NewVersion:
    group = {"kind": "KIND_GPU", "gpus": list(gpus)}
    new = version(model, 1)
    return msgspec.structs.replace(new, config={**config(**options), "instance_group": [group]})


def furnish(gateway: Gateway, inventory: Callable[[], Inventory]) -> None:
    gateway.manager.room = Room(gateway.catalog, read=lambda: Readings(1 << 50), inventory=inventory)


def visible(gateway: Gateway, model: str) -> str:
    """The devices that a model's worker sees."""
    environment = psutil.Process(gateway.pid(model)).environ()
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    return environment["CUDA_VISIBLE_DEVICES"]


async def test_a_model_that_does_not_fit_into_memory_fails_with_the_numbers_and_leaves_nothing() -> None:
    async with running(echo(load_bytes=str(1 << 61))) as run:
        reason = await run.given_up()
        assert reason.startswith("the model does not fit into memory; the machine has ")
        assert reason.endswith(" GiB free: unload other models, or place this one elsewhere")
        assert run.replica.restarts == 0
        await until(lambda: children() == [])


async def test_what_onnxruntime_cannot_allocate_in_a_warm_up_is_out_of_memory(tmp_path: Path) -> None:
    folder = onnx_models.save(onnx_models.huge(), tmp_path)
    sample = Warmup("zeros", (WarmupInput("x", "FP32", (1,)),))
    async with running(ModelSpec("m", 1, "onnx", str(folder / "model.onnx"), warmup=(sample,))) as run:
        reason = await run.given_up()
        assert "failed to run warmup sample 'zeros'" in reason
        assert str(4 << 42) in reason
        assert "the machine has " in reason


async def test_a_replica_runs_on_the_device_with_most_room_or_the_one_that_its_configuration_names(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as gateway:
        furnish(gateway, devices(GIB, 9 * GIB, 5 * GIB))
        await gateway.add(on_gpu("any"), on_gpu("first", (0,)), version("cpu", 1))
        for model in ("any", "first", "cpu"):
            await gateway.is_ready(model)
        assert {w.model: w.device for w in gateway.manager.workers()} == {
            "any": "cuda:1",
            "first": "cuda:0",
            "cpu": "cpu",
        }
        assert [visible(gateway, model) for model in ("any", "first", "cpu")] == ["1", "0", ""]


async def test_what_still_loads_counts_on_its_device(tmp_path: Path) -> None:
    async with serving(tmp_path, max_loading=3) as gateway:
        furnish(gateway, devices(GIB, GIB * 3 // 4))
        await gateway.add(on_gpu("a", load_hang="true"))
        await until(gateway.manager.workers)
        await gateway.add(on_gpu("b"))
        await gateway.is_ready("b")
        assert {w.model: w.device for w in gateway.manager.workers()} == {"a": "cuda:0", "b": "cuda:1"}


async def test_without_room_on_a_device_a_version_waits_for_loads_under_way_with_the_numbers(tmp_path: Path) -> None:
    async with serving(tmp_path, max_loading=3) as gateway:
        furnish(gateway, devices(GIB // 2 - 1))
        await gateway.add(version("a", 1, load_hang="true"), on_gpu("b"))
        await until(
            lambda: (
                gateway.manager.status("b", 1).reason
                == "waits for memory: needs about 512 MiB; cuda:0 has 0.5 of 80.0 GiB free"
            )
        )
        assert gateway.state("b") is LOADING
        await gateway.want("a")
        await gateway.is_ready("b")  # it is tried, and this one needs less than was thought


async def test_a_version_that_was_tried_and_does_not_fit_fails_with_the_workers_numbers(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1, load_bytes=str(1 << 61))) as gateway:
        status = await gateway.settled("m", 1)
        assert status.state is FAILED
        assert "does not fit into memory" in status.reason
