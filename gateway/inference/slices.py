"""Work in slices: what is large is worked off a little at a time, so that others' requests go on between.

Threads would not help. Everything here holds the interpreter's lock while it runs; the loop would have to wait for it,
up to 5 ms at each of its turns, and some calls would hold it for a second. A generator that yields often is served by
the loop itself, one slice a turn (``gateway.serving.lane``), and is given up at any slice.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

#: Work that yields where others may take their turn, and returns its result.
Slices = Generator[None, None, T]

#: Bytes of text, typed contents or BYTES elements up to which work is done in one go: some milliseconds.
LARGE: Final = 128 << 10
#: Bytes that a slice takes: about a millisecond.
SLICE: Final = 64 << 10
#: Elements of BYTES that a slice takes.
SLICE_ELEMENTS: Final = 4 << 10


def whole(work: Slices[T]) -> T:
    """All of it in one go."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
