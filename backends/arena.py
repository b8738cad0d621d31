"""An arena: shared memory for large tensors between the gateway and one worker, one arena for each direction.

The gateway makes both with ``memfd_create`` and the worker inherits the descriptors, so nothing has a name, nothing
can leak, and the memory is gone when both ends are. The size is virtual: pages exist once they were written. It is
sealed, so that a broken worker cannot shrink the file under the gateway's feet (SIGBUS).

Only the writing side allocates (``Allocator``); the reading side says which blocks it has consumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import Final

#: Smallest block: below this a copy through the socket is cheaper anyway.
MIN_BLOCK: Final = 4096
DEFAULT_CAPACITY: Final = 1 << 30
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create(name: str, capacity: int = DEFAULT_CAPACITY) -> int:
    """A sealed memory file of ``capacity`` bytes (virtual until written); the caller owns the descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, capacity)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


class Mapping:
    """A mapped arena. ``view`` is the whole of it; a block is a slice of ``view``."""

    def __init__(self, fd: int, *, writable: bool) -> None:
        self.capacity = os.fstat(fd).st_size
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        self._map = mmap.mmap(fd, self.capacity, mmap.MAP_SHARED, access)
        self.view = memoryview(self._map)

    def block(self, offset: int, size: int) -> memoryview:
        """``size`` bytes at ``offset``. Raises ``ValueError`` outside the arena: the other side is not trusted."""
        if offset < 0 or size < 0 or offset + size > self.capacity:
            raise ValueError(f"block {offset}+{size} lies outside the arena of {self.capacity} bytes")
        return self.view[offset : offset + size]

    def discard(self, offset: int, size: int) -> None:
        """Give the pages of a free range back to the system; they are zero when they are used again.

        For the writing side, which knows what is free. A kernel that does not offer it leaves everything as it is.
        """
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, start, end - start)

    def close(self) -> None:
        """Unmap, unless a tensor still looks into it: then the memory goes with the last view."""
        self.view.release()
        with contextlib.suppress(BufferError):  # a view is still alive: unmapped when it is collected
            self._map.close()


class Allocator:
    """Blocks of power-of-two sizes with one free list a size, last in first out, so that warm pages are used again.

    Worst-case waste is half a block; there is no coalescing, so an arena that filled with one size stays so. The
    caller sends inline what does not fit, hence a full arena costs speed and never an error.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._unused = 0
        self._free: dict[int, list[int]] = {}
        self._used: dict[int, int] = {}
        self.releases = 0  # how many blocks were given back so far

    def allocate(self, size: int) -> int:
        """Offset of a block of at least ``size`` bytes, or -1 if there is no room."""
        block = MIN_BLOCK if size <= MIN_BLOCK else 1 << (size - 1).bit_length()
        free = self._free.get(block)
        if free:
            offset = free.pop()
        elif self._unused + block <= self._capacity:
            offset = self._unused
            self._unused += block
        else:
            return -1
        self._used[offset] = block
        return offset

    def release(self, offset: int) -> None:
        """Give a block back. Raises ``ValueError`` for one that is not in use (a double release, or rubbish)."""
        block = self._used.pop(offset, None)
        if block is None:
            raise ValueError(f"arena block at {offset} is not in use")
        self._free.setdefault(block, []).append(offset)
        self.releases += 1

    def free_ranges(self) -> list[tuple[int, int]]:
        """Offset and size of what was used and is free now, neighbours joined.

        If that is everything, blocks are of any size again.
        """
        ranges: list[tuple[int, int]] = []
        for offset, size in sorted((offset, size) for size, offsets in self._free.items() for offset in offsets):
            if ranges and sum(ranges[-1]) == offset:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((offset, size))
        if not self._used:
            self._unused = 0
            self._free.clear()
        return ranges

    @property
    def used_bytes(self) -> int:
        """Bytes in blocks that are in use."""
        return sum(self._used.values())
