"""The shared memory between gateway and worker, and the allocator of its blocks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import numpy as np
import pytest

from backends.arena import MIN_BLOCK, Allocator, Mapping, create

CAPACITY = 64 * MIN_BLOCK


@pytest.fixture
def fd() -> Iterator[int]:
    fd = create("test-arena", CAPACITY)
    yield fd
    os.close(fd)


# --- the memory ---


@pytest.mark.parametrize("size", [0, MIN_BLOCK, CAPACITY - 1, CAPACITY + 1, 2 * CAPACITY])
def test_the_size_of_an_arena_cannot_be_changed_by_whoever_holds_it(fd: int, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(fd, size)
    assert os.fstat(fd).st_size == CAPACITY


def test_an_arena_takes_no_more_seals(fd: int) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_an_arena_takes_memory_only_where_it_was_written(fd: int) -> None:
    assert os.fstat(fd).st_blocks == 0
    mapping = Mapping(fd, writable=True)
    mapping.view[5 * MIN_BLOCK : 5 * MIN_BLOCK + 4] = b"data"
    assert 0 < os.fstat(fd).st_blocks * 512 <= MIN_BLOCK
    mapping.close()


def test_an_arena_is_not_inherited_unless_it_is_passed_on(fd: int) -> None:
    assert not os.get_inheritable(fd)


def test_what_one_mapping_writes_another_reads(fd: int) -> None:
    writer, reader = Mapping(fd, writable=True), Mapping(fd, writable=False)
    writer.view[100:104] = b"data"
    assert bytes(reader.block(100, 4)) == b"data"
    writer.close()
    reader.close()


def test_a_mapping_for_reading_cannot_be_written(fd: int) -> None:
    reader = Mapping(fd, writable=False)
    with pytest.raises(TypeError):
        reader.view[0:4] = b"data"
    assert not np.frombuffer(reader.block(0, 8), np.uint8).flags.writeable
    reader.close()


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, CAPACITY), (CAPACITY, 0), (CAPACITY - 1, 1), (7, 13)])
def test_a_block_inside_the_arena_is_given(fd: int, offset: int, size: int) -> None:
    mapping = Mapping(fd, writable=False)
    assert len(mapping.block(offset, size)) == size
    mapping.close()


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 1), (-CAPACITY, 4), (0, -1), (0, CAPACITY + 1), (CAPACITY, 1), (CAPACITY - 1, 2), (1 << 64, 1), (1, 1 << 64)],
)
def test_a_block_outside_the_arena_is_refused(fd: int, offset: int, size: int) -> None:
    mapping = Mapping(fd, writable=False)
    with pytest.raises(ValueError, match=rf"block {offset}\+{size} lies outside the arena of {CAPACITY} bytes"):
        mapping.block(offset, size)
    mapping.close()


def test_a_closed_mapping_gives_no_blocks_and_can_be_closed_again(fd: int) -> None:
    mapping = Mapping(fd, writable=False)
    mapping.close()
    mapping.close()
    with pytest.raises(ValueError, match="released"):
        mapping.block(0, 4)


def test_a_tensor_outlives_the_mapping_and_the_memory_goes_with_it() -> None:
    fd = create("test-arena", CAPACITY)
    mapping = Mapping(fd, writable=True)
    mapping.view[0:8] = b"outlives"
    array = np.frombuffer(mapping.block(0, 8), np.uint8)
    os.close(fd)
    before = set(os.listdir("/proc/self/fd"))
    mapping.close()
    del mapping
    assert array.tobytes() == b"outlives"
    del array
    after = set(os.listdir("/proc/self/fd"))
    assert len(before - after) == 1  # the mapping's own descriptor, with the last view


# --- the allocator ---


def test_a_full_arena_says_so_and_has_room_again_after_a_release() -> None:
    allocator = Allocator(2 * MIN_BLOCK)
    first, second = allocator.allocate(1), allocator.allocate(MIN_BLOCK)
    assert {first, second} == {0, MIN_BLOCK}
    assert allocator.allocate(1) == -1
    allocator.release(second)
    assert allocator.allocate(1) == second
    assert allocator.allocate(1) == -1


@pytest.mark.parametrize("capacity", [0, 1, MIN_BLOCK - 1])
def test_an_arena_without_room_for_one_block_is_always_full(capacity: int) -> None:
    assert Allocator(capacity).allocate(1) == -1


@pytest.mark.parametrize("size", [CAPACITY + 1, CAPACITY * 4, 1 << 62])
def test_what_is_larger_than_the_arena_gets_no_block_and_takes_none(size: int) -> None:
    allocator = Allocator(CAPACITY)
    assert allocator.allocate(size) == -1
    assert allocator.used_bytes == 0
    assert allocator.allocate(CAPACITY) == 0


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (0, MIN_BLOCK),
        (1, MIN_BLOCK),
        (MIN_BLOCK, MIN_BLOCK),
        (MIN_BLOCK + 1, 2 * MIN_BLOCK),
        (2 * MIN_BLOCK, 2 * MIN_BLOCK),
        (2 * MIN_BLOCK + 1, 4 * MIN_BLOCK),
    ],
)
def test_a_block_is_the_power_of_two_that_holds_the_size(size: int, block: int) -> None:
    allocator = Allocator(CAPACITY)
    assert allocator.allocate(size) == 0
    assert allocator.used_bytes == block


def test_the_block_that_was_released_last_is_used_first() -> None:
    allocator = Allocator(CAPACITY)
    offsets = [allocator.allocate(MIN_BLOCK) for _ in range(3)]
    for offset in offsets:
        allocator.release(offset)
    assert [allocator.allocate(MIN_BLOCK) for _ in range(3)] == offsets[::-1]


@pytest.mark.parametrize("offset", [-1, 1, MIN_BLOCK, MIN_BLOCK + 1, CAPACITY, 1 << 64])
def test_what_is_no_block_in_use_cannot_be_released(offset: int) -> None:
    allocator = Allocator(CAPACITY)
    assert allocator.allocate(MIN_BLOCK) == 0
    with pytest.raises(ValueError, match=f"arena block at {offset} is not in use"):
        allocator.release(offset)
    assert allocator.used_bytes == MIN_BLOCK


def test_a_block_is_released_once() -> None:
    allocator = Allocator(CAPACITY)
    offset = allocator.allocate(1)
    allocator.release(offset)
    with pytest.raises(ValueError, match="not in use"):
        allocator.release(offset)
    assert allocator.used_bytes == 0
    assert [allocator.allocate(1), allocator.allocate(1)] == [offset, MIN_BLOCK]  # and is in the free list once
