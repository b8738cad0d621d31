"""Loads that wait for memory: beside real workers, on a machine whose readings the test gives."""

from __future__ import annotations

from pathlib import Path

from backends.stages import READING
from gateway.lifecycle.memory import BASE_BYTES, Readings
from gateway.lifecycle.room import Room
from support.lifecycle import LOADING, READY, UNLOADED, Gateway, serving, version
from support.wait import stays, until

NEEDS = BASE_BYTES["echo"]
WAITS = "waits for memory: needs about 40 MiB, 0 MiB available"


class Machine:
    """Has as many bytes available as the test says."""

    def __init__(self, available: int) -> None:
        self.available = available

    def __call__(self) -> Readings:
        return Readings(self.available)


def room(gateway: Gateway, machine: Machine, reserve_bytes: int = 0) -> None:
    """What the manager is told about memory from now on."""
    gateway.manager.room = Room(gateway.catalog, reserve_bytes=reserve_bytes, read=machine)


async def test_what_does_not_fit_beside_a_load_waits_says_why_and_is_tried_afterwards(tmp_path: Path) -> None:
    async with serving(tmp_path, max_loading=2) as gateway:
        room(gateway, Machine(0))
        await gateway.add(version("a", 1, load_hang="true"), version("b", 1))
        await until(lambda: gateway.manager.status("b", 1).reason == WAITS)
        await until(lambda: gateway.manager.status("a", 1).reason.startswith(READING))
        assert (gateway.state("a"), gateway.state("b")) == (LOADING, LOADING)
        assert [worker.model for worker in gateway.manager.workers()] == ["a"]
        await gateway.want("a")
        await gateway.is_ready("b")


async def test_all_are_loaded_in_the_end_however_little_there_is(tmp_path: Path) -> None:
    async with serving(tmp_path, max_loading=3) as gateway:
        room(gateway, Machine(0))
        await gateway.add(*(version(name, 1, load_delay_ms="30") for name in "abcd"))
        await stays(
            lambda: len([w for w in gateway.manager.workers() if w.state == "starting"]) <= 1,
            lambda: all(gateway.state(name) is READY for name in "abcd"),
        )


async def test_the_reserve_is_kept_until_there_is_memory_which_is_noticed(tmp_path: Path) -> None:
    machine = Machine(NEEDS)
    async with serving(tmp_path) as gateway:
        room(gateway, machine, reserve_bytes=1)
        await gateway.add(version("m", 1))
        await until(lambda: "reserved, setting memory_reserve_bytes" in gateway.manager.status("m", 1).reason)
        assert gateway.manager.workers() == []
        machine.available = NEEDS + 1
        await gateway.is_ready()


async def test_who_waits_for_memory_can_be_unloaded(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        room(gateway, Machine(0), reserve_bytes=1)
        await gateway.add(version("m", 1))
        await until(lambda: gateway.state() is LOADING)
        await gateway.want("m")
        assert (await gateway.settled("m", 1)).state is UNLOADED


async def test_what_a_load_took_is_what_the_next_one_is_expected_to_take(tmp_path: Path) -> None:
    machine = Machine(1 << 40)
    async with serving(tmp_path) as gateway:
        room(gateway, machine, reserve_bytes=1)
        await gateway.add(version("m", 1, load_bytes=str(100 << 20)))
        await gateway.is_ready()
        await gateway.want("m")
        await until(lambda: gateway.state() is UNLOADED)
        machine.available = 100 << 20  # more than the guess, which knows the artifact only
        await gateway.want("m", 1)
        await until(lambda: "needs about 1" in gateway.manager.status("m", 1).reason)
        machine.available = 1 << 40
        await gateway.is_ready()
