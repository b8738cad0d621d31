"""Which GPU a replica gets, on machines that the test makes up; and what NVIDIA's library is asked, by a stand-in."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import NamedTuple

import pytest

from gateway.placement.inventory import Device, Inventory
from gateway.placement.nvml import Nvml
from gateway.placement.place import BASE_BYTES, Placement, expected_bytes, place

GIB = 1 << 30


def machine(*free: float, total: int = 80) -> Inventory:
    """A machine whose GPUs have so many GiB free."""
    return Inventory(tuple(Device(n, f"GPU-{n}", "H", total * GIB, int(each * GIB)) for n, each in enumerate(free)))


@pytest.mark.parametrize(
    ("wish", "free", "promised", "device"),
    [
        ("cuda", (10, 40, 20), {}, "cuda:1"),
        ("cuda", (10, 40, 20), {"cuda:1": 25 * GIB}, "cuda:2"),
        ("cuda", (30, 30), {}, "cuda:0"),
        ("cuda:0", (10, 40), {}, "cuda:0"),
        ("cuda", (), {}, "cuda:0"),  # nobody knows of any: the worker says so
        ("cuda:7", (10, 40), {}, "cuda:7"),
    ],
)
def test_a_replica_gets_the_device_that_it_names_or_the_one_with_most_room(
    wish: str, free: tuple[float, ...], promised: dict[str, int], device: str
) -> None:
    assert place(wish, 4 * GIB, machine(*free), promised) == Placement(device, "")


def test_replicas_that_load_at_the_same_time_spread_over_the_devices() -> None:
    promised: dict[str, int] = {}
    order = []
    for _ in range(6):
        device, lack = place("cuda", 10 * GIB, machine(40, 40, 30), promised)
        assert lack == ""
        order.append(device)
        promised[device] = promised.get(device, 0) + 10 * GIB
    assert order == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:2", "cuda:0"]


def test_without_room_it_is_told_what_is_needed_and_what_each_device_has() -> None:
    needed = int(4.2 * GIB)
    assert place("cuda", needed, machine(1.1, 2), {"cuda:1": GIB}) == Placement(
        "cuda:0",
        "waits for memory: needs about 4.2 GiB; cuda:0 has 1.1 of 80.0 GiB free, "
        "cuda:1 has 2.0 of 80.0 GiB free (1.0 GiB of them promised to others)",
    )
    assert place("cuda:0", needed, machine(1.1, 70), {}) == Placement(
        "cuda:0", "waits for memory: needs about 4.2 GiB; cuda:0 has 1.1 of 80.0 GiB free"
    )


def test_a_model_is_expected_to_take_more_than_its_artifact() -> None:
    assert expected_bytes(0) == BASE_BYTES
    assert expected_bytes(10 * GIB) > 10 * GIB + BASE_BYTES


# --- the library ---


class Memory(NamedTuple):
    total: int
    free: int


class Library(ModuleType):
    """Stands in for ``pynvml``, with its functions and its error."""

    class NVMLError(Exception):
        pass

    def __init__(self, devices: list[Memory], fault: str = "") -> None:
        super().__init__("a_library")
        self.devices, self.fault = devices, fault

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        if self.fault:
            raise self.NVMLError(self.fault)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.fault:
            raise self.NVMLError(self.fault)
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:  # noqa: N802
        return self.devices[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H"


def reader(monkeypatch: pytest.MonkeyPatch, library: Library) -> Nvml:
    monkeypatch.setitem(sys.modules, "a_library", library)
    return Nvml("a_library")


def test_the_devices_are_read_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library([Memory(80, 70), Memory(40, 30)])
    nvml = reader(monkeypatch, library)
    assert nvml() == Inventory((Device(0, "GPU-0", "NVIDIA H", 80, 70), Device(1, "GPU-1", "NVIDIA H", 40, 30)))
    library.devices = [Memory(80, 1)]
    assert nvml() == Inventory((Device(0, "GPU-0", "NVIDIA H", 80, 1),))


def test_without_a_driver_there_are_none_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvml = reader(monkeypatch, Library([], "NVML Shared Library Not Found"))
    with caplog.at_level(logging.INFO, "tensorgate.placement"):
        assert [nvml(), nvml()] == [Inventory(reason="there is no NVIDIA driver: NVML Shared Library Not Found")] * 2
    assert len(caplog.records) == 1


def test_a_library_that_fails_later_is_a_reason_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library([Memory(80, 70)])
    nvml = reader(monkeypatch, library)
    assert nvml().devices
    library.fault = "GPU is lost"
    assert nvml() == Inventory(reason="NVIDIA's library does not answer: GPU is lost")
    library.fault = ""
    assert nvml().devices


def test_without_the_package_the_install_line_is_told() -> None:
    assert Nvml("no_such_package")().reason.endswith("pip install 'tensorgate[gpu]'")
