"""Memory that nobody uses goes back to the system: when that is due, of the heap, and of an arena."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from backends import arena
from backends.memory import Idleness, give_back, rss_bytes
from backends.wire import TensorWriter

MIB = 1 << 20


def test_it_is_due_once_when_nothing_has_happened_for_the_time() -> None:
    idleness = Idleness(10)
    assert not idleness.is_due(0, 100, busy=False)
    assert not idleness.is_due(0, 109, busy=False)
    assert idleness.is_due(0, 110, busy=False)
    assert not idleness.is_due(0, 500, busy=False)


def test_whatever_happens_begins_the_time_again() -> None:
    idleness = Idleness(10)
    assert not idleness.is_due(0, 0, busy=False)
    assert not idleness.is_due(1, 9, busy=False)
    assert not idleness.is_due(1, 12, busy=True)
    assert not idleness.is_due(1, 21, busy=False)
    assert idleness.is_due(1, 22, busy=False)
    assert not idleness.is_due(2, 30, busy=False)
    assert idleness.is_due(2, 40, busy=False)


def test_a_time_of_zero_is_never() -> None:
    idleness = Idleness(0)
    assert not any(idleness.is_due(0, now, busy=False) for now in (0, 1, 1e9))


def test_free_memory_between_what_is_used_goes_back() -> None:
    blocks = [bytes([1]) * 1000 for _ in range(100_000)]
    full = rss_bytes()
    blocks = blocks[::100]  # the heap cannot shrink from its end
    give_back()
    assert rss_bytes() < full - 50 * MIB
    assert set(map(len, blocks)) == {1000}


@pytest.fixture
def fd() -> Iterator[int]:
    opened = arena.create("test", 64 * MIB)
    yield opened
    os.close(opened)


def held(fd: int) -> int:
    """Bytes of memory that the arena takes."""
    return os.fstat(fd).st_blocks * 512


def test_free_blocks_of_an_arena_take_no_memory_and_the_others_keep_what_is_in_them(fd: int) -> None:
    mapping = arena.Mapping(fd, writable=True)
    writer = TensorWriter(mapping)
    offsets = [writer.allocator.allocate(MIB) for _ in range(4)]
    for number, offset in enumerate(offsets):
        mapping.view[offset : offset + MIB] = bytes([number + 1]) * MIB
    for offset in (offsets[0], offsets[1], offsets[3]):
        writer.allocator.release(offset)
    assert held(fd) == 4 * MIB
    writer.trim()
    assert held(fd) == MIB
    assert mapping.view[offsets[2] : offsets[2] + MIB] == bytes([3]) * MIB
    assert sorted(writer.allocator.allocate(MIB) for _ in range(3)) == [offsets[0], offsets[1], offsets[3]]
    mapping.close()


def test_an_arena_that_is_all_free_takes_blocks_of_any_size_again(fd: int) -> None:
    mapping = arena.Mapping(fd, writable=True)
    writer = TensorWriter(mapping)
    for offset in [writer.allocator.allocate(8 * MIB) for _ in range(8)]:
        writer.allocator.release(offset)
    assert writer.allocator.allocate(32 * MIB) == -1
    writer.trim()
    assert writer.allocator.allocate(32 * MIB) == 0
    mapping.close()


def test_what_the_writing_side_discards_is_gone_for_both(fd: int) -> None:
    writing, reading = arena.Mapping(fd, writable=True), arena.Mapping(fd, writable=False)
    writing.view[:MIB] = bytes([7]) * MIB
    assert reading.view[0] == 7
    writing.discard(0, MIB)
    assert (held(fd), reading.view[0]) == (0, 0)
    writing.close()
    reading.close()


def test_only_whole_pages_within_the_range_are_discarded(fd: int) -> None:
    mapping = arena.Mapping(fd, writable=True)
    mapping.view[:MIB] = bytes([7]) * MIB
    mapping.discard(1, MIB - 2)
    assert (mapping.view[0], mapping.view[MIB // 2], mapping.view[MIB - 1]) == (7, 0, 7)
    mapping.discard(100, 200)
    assert mapping.view[150] == 7
    mapping.close()
