"""The allocator under any sequence of allocations and releases: blocks never overlap, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from backends.arena import MIN_BLOCK, Allocator

SIZES = st.one_of(
    st.integers(0, MIN_BLOCK),
    st.integers(MIN_BLOCK + 1, 40 * MIN_BLOCK),
    st.sampled_from([0, 1, MIN_BLOCK - 1, MIN_BLOCK, MIN_BLOCK + 1, 2 * MIN_BLOCK, 8 * MIN_BLOCK, 1 << 40]),
)


def block_of(size: int) -> int:
    block = MIN_BLOCK
    while block < size:
        block *= 2
    return block


class AllocatorMachine(RuleBasedStateMachine):
    """Two lists tell what has to hold: the blocks in use, and how often a block of a size was ever made."""

    offsets = Bundle("offsets")

    @initialize(capacity=st.integers(0, 40).map(lambda blocks: blocks * MIN_BLOCK) | st.integers(0, 40 * MIN_BLOCK))
    def begin(self, capacity: int) -> None:
        self.capacity = capacity
        self.allocator = Allocator(capacity)
        self.live: dict[int, int] = {}
        self.made: dict[int, int] = {}  # offset -> block, of all that ever were

    @rule(target=offsets, size=SIZES)
    def allocate(self, size: int) -> int | object:
        offset, block = self.allocator.allocate(size), block_of(size)
        idle = [place for place, made in self.made.items() if made == block and place not in self.live]
        unused = self.capacity - sum(self.made.values())
        if offset < 0:
            assert offset == -1
            assert not idle
            assert block > unused
            return multiple()
        assert offset not in self.live
        assert offset in idle if idle else offset not in self.made
        self.live[offset] = size
        self.made[offset] = block
        return offset

    @rule(offset=consumes(offsets))
    def release(self, offset: int) -> None:
        self.allocator.release(offset)
        del self.live[offset]

    @rule(offset=st.integers(-MIN_BLOCK, 41 * MIN_BLOCK))
    def release_what_is_no_block_in_use(self, offset: int) -> None:
        if offset not in self.live:
            with pytest.raises(ValueError, match="is not in use"):
                self.allocator.release(offset)

    @invariant()
    def blocks_lie_inside_and_do_not_overlap(self) -> None:
        end = 0
        for offset in sorted(self.live):
            assert offset >= end
            assert offset % MIN_BLOCK == 0
            end = offset + max(self.live[offset], 1)
            assert end <= self.capacity

    @invariant()
    def what_is_used_is_counted(self) -> None:
        assert self.allocator.used_bytes == sum(map(block_of, self.live.values()))

    def teardown(self) -> None:
        for offset in list(self.live):
            self.allocator.release(offset)
        assert self.allocator.used_bytes == 0
        again = [self.allocator.allocate(block) for block in self.made.values()]
        assert sorted(again) == sorted(self.made)  # all that there was is there again


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
