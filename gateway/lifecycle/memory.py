"""Whether a load fits into the memory that this machine, or this container, has left.

The decisions are pure; ``read`` and ``resident_bytes`` look at the system.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
#: What a worker takes before it has a model: Python and the framework, in bytes.
BASE_BYTES: Final = {"echo": 40 * _MIB, "onnx": 80 * _MIB, "torch": 350 * _MIB, "tf": 700 * _MIB}
_BASE_OF_OTHERS: Final = 700 * _MIB
#: Memory for each byte of an artifact that was never loaded: what is read, and what the framework makes of it.
ARTIFACT_FACTOR: Final = 2.0
#: The kernel's ways of saying "no limit" in the first version of its control groups are about that large.
_UNLIMITED: Final = 1 << 60


class Readings(msgspec.Struct, frozen=True):
    """Bytes. ``limits`` holds, for each control group with a limit, what is left of it."""

    machine: int
    limits: tuple[int, ...] = ()


class Promise(msgspec.Struct, frozen=True):
    """A load under way: the bytes that it is expected to take in all, and those that it has taken."""

    expected: int
    taken: int


def available_bytes(readings: Readings, promises: Iterable[Promise] = ()) -> int:
    """What is left for another load; 0 if there is less than nothing."""
    owed = sum(max(0, promise.expected - promise.taken) for promise in promises)
    return max(0, min((readings.machine, *readings.limits)) - owed)


def expected_bytes(framework: str, artifact_bytes: int, recorded: int | None = None) -> int:
    """What a load will take: what it took at its peak before, or else a guess from the size of the artifact."""
    if recorded is not None:
        return recorded
    return BASE_BYTES.get(framework, _BASE_OF_OTHERS) + int(ARTIFACT_FACTOR * artifact_bytes)


def lack(needed: int, available: int, reserve: int = 0) -> str:
    """Why a load that needs so much has to wait; "" if it fits and leaves the reserve."""
    if needed + reserve <= available:
        return ""
    kept = f" (of which {size(reserve)} are reserved, setting memory_reserve_bytes)" if reserve else ""
    return f"waits for memory: needs about {size(needed)}, {size(available)} available{kept}"


def size(count: int) -> str:
    """``"4.2 GiB"``, and less than a GiB in whole MiB."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


# --- looking at the system -----------------------------------------------------------------------------------------


def read(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Readings:
    """What the machine and this process's control groups have left now; both versions of control groups."""
    machine = _fields(proc / "meminfo").get("MemAvailable:", 0) << 10
    return Readings(machine, tuple(_left(proc, cgroups)))


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Resident memory of a process; 0 if it is gone."""
    return _fields(proc / str(pid) / "status").get("VmRSS:", 0) << 10


def _left(proc: Path, cgroups: Path) -> Iterator[int]:
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit, usage, cache = cgroups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, usage = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        group = root / path.strip("/")
        for folder in (group, *group.parents):  # the limit of any group above counts as well
            allowed = _text(folder / limit).strip()
            if allowed.isdigit() and int(allowed) < _UNLIMITED:
                # the kernel takes files that nobody has read lately out of memory when it needs the room
                used = int(_text(folder / usage) or 0) - _fields(folder / "memory.stat").get(cache, 0)
                yield max(0, int(allowed) - used)
            if folder == root:
                break


def _fields(file: Path) -> dict[str, int]:
    """Name -> number, of a file with such lines."""
    lines = (line.split() for line in _text(file).splitlines())
    return {parts[0]: int(parts[1]) for parts in lines if len(parts) > 1 and parts[1].isdigit()}


def _text(file: Path) -> str:
    """What the kernel says there; "" if it does not have such a file, or not any more."""
    try:
        return file.read_text()
    except OSError:
        return ""
