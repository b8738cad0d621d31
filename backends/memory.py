"""This process's memory, as the kernel counts it. Pure of frameworks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
from typing import Final

_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|failed to allocate memory|can't allocate memory|std::bad_alloc|CUDA_ERROR_OUT_OF_MEMORY",
    re.IGNORECASE,
)


def rss_bytes() -> int:
    """Resident now, shared pages that were touched included."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """The most that was resident since this program began; at least what is resident now.

    Not ``getrusage``, whose number a process inherits from the one that started it.
    """
    with open("/proc/self/status", "rb") as status:
        peak = next((int(line.split()[1]) << 10 for line in status if line.startswith(b"VmHWM:")), 0)
    return max(peak, rss_bytes())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether that is what Python, a C++ library or CUDA says when there is not enough memory."""
    return isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)) is not None


def free_memory() -> str:
    """What the machine has, in words."""
    with open("/proc/meminfo", "rb") as lines:
        found = {line.split(b":")[0]: int(line.split()[1]) / (1 << 20) for line in lines}
    return f"the machine has {found[b'MemAvailable']:.1f} of {found[b'MemTotal']:.1f} GiB free"


def give_back() -> None:
    """Give memory that nothing uses back to the system, as far as the C library can (glibc; others do so anyway)."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Idleness:
    """Says once, when nothing has happened for a time. Pure: time is an argument, in seconds."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._seen: object = None
        self._since = 0.0
        self._told = True  # nothing has happened yet

    def is_due(self, activity: object, now: float, *, busy: bool) -> bool:
        """Whether it is time: nothing runs, and ``activity`` (counters) has stayed the same for so long."""
        if busy or activity != self._seen:
            self._seen, self._since, self._told = activity, now, False
        if self._told or not self._after_s or now - self._since < self._after_s:
            return False
        self._told = True
        return True
