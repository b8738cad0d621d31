"""How much memory a load is expected to take, how much there is, and the files in which the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends.memory import peak_bytes, rss_bytes
from gateway.lifecycle.memory import (
    BASE_BYTES,
    Promise,
    Readings,
    available_bytes,
    expected_bytes,
    lack,
    read,
    resident_bytes,
)
from support.artifacts import write

GIB = 1 << 30
MIB = 1 << 20
NO_LIMIT_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    ("readings", "promises", "available"),
    [
        (Readings(8 * GIB), [], 8 * GIB),
        (Readings(8 * GIB, (2 * GIB, 3 * GIB)), [], 2 * GIB),
        (Readings(2 * GIB, (3 * GIB,)), [], 2 * GIB),
        (Readings(8 * GIB), [Promise(3 * GIB, GIB)], 6 * GIB),
        (Readings(8 * GIB), [Promise(3 * GIB, 4 * GIB)], 8 * GIB),  # it took more: that is counted already
        (Readings(GIB), [Promise(3 * GIB, 0)], 0),
    ],
)
def test_available_is_the_tightest_bound_less_what_loads_will_still_take(
    readings: Readings, promises: list[Promise], available: int
) -> None:
    assert available_bytes(readings, promises) == available


def test_a_load_is_expected_to_take_what_it_took_before_or_else_a_multiple_of_its_artifact() -> None:
    assert expected_bytes("onnx", GIB, recorded=5 * GIB) == 5 * GIB
    assert expected_bytes("onnx", GIB) == BASE_BYTES["onnx"] + 2 * GIB
    assert expected_bytes("echo", 0) == BASE_BYTES["echo"]
    assert expected_bytes("another", 0) == max(BASE_BYTES.values())


def test_what_fits_lacks_nothing_and_what_does_not_is_told_with_the_numbers() -> None:
    assert lack(GIB, GIB) == ""
    assert lack(4 * GIB + GIB // 5, 300 * MIB) == "waits for memory: needs about 4.2 GiB, 300 MiB available"
    assert lack(GIB, 2 * GIB, reserve=GIB) == ""
    assert lack(GIB + 1, 2 * GIB, reserve=GIB) == (
        "waits for memory: needs about 1.0 GiB, 2.0 GiB available (of which 1.0 GiB are reserved, setting "
        "memory_reserve_bytes)"
    )


# --- what the kernel tells ---


def proc(folder: Path, cgroup: str) -> Path:
    return write(folder / "proc", {"meminfo": "MemTotal: 9 kB\nMemAvailable:   4096 kB\n", "self/cgroup": cgroup})


def test_a_machine_without_control_groups_has_what_is_available(tmp_path: Path) -> None:
    assert read(proc(tmp_path, ""), tmp_path / "none") == Readings(4 << 20)


def test_the_limit_of_every_group_above_counts_and_files_that_can_go_do_not(tmp_path: Path) -> None:
    groups = write(
        tmp_path / "cgroup",
        {
            "a/b/memory.max": "max\n",
            "a/b/memory.current": "5\n",
            "a/memory.max": "1000\n",
            "a/memory.current": "600\n",
            "a/memory.stat": "anon 300\ninactive_file 250\n",
            "memory.max": "90\n",
            "memory.current": "100\n",
        },
    )
    assert read(proc(tmp_path, "0::/a/b\n"), groups).limits == (650, 0)


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    groups = write(
        tmp_path / "cgroup",
        {
            "memory/box/memory.limit_in_bytes": "1000\n",
            "memory/box/memory.usage_in_bytes": "600\n",
            "memory/box/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
            "memory/memory.limit_in_bytes": f"{NO_LIMIT_V1}\n",
            "memory/memory.usage_in_bytes": "700\n",
        },
    )
    lines = "4:memory:/box\n3:cpu,cpuacct:/\n0::/\n"
    assert read(proc(tmp_path, lines), groups).limits == (500,)


def test_in_a_container_that_sees_its_own_group_at_the_root_the_path_from_outside_does_not_matter(
    tmp_path: Path,
) -> None:
    groups = write(tmp_path / "cgroup", {"memory/memory.limit_in_bytes": "10", "memory/memory.usage_in_bytes": "4"})
    assert read(proc(tmp_path, "4:memory:/docker/0123\n"), groups).limits == (6,)


def test_this_machine_has_memory_and_this_process_takes_some() -> None:
    readings = read()
    assert readings.machine > 0
    assert available_bytes(readings) > 0
    assert 0 < resident_bytes(os.getpid()) <= peak_bytes()
    assert 0 < rss_bytes() <= peak_bytes()


def test_a_process_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert resident_bytes(1, tmp_path) == 0
