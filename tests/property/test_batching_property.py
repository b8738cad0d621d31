"""The batcher against a plain list: whatever is added, cancelled, expired and taken, the rules hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backends.batching import Batch, Batcher, Pending, batch_key
from backends.rows import join, split
from backends.spec import BatchingSpec
from backends.tensor import NUMPY_DTYPE, from_numpy

US = 1000


dynamic = st.builds(
    BatchingSpec,
    preferred_batch_sizes=st.sampled_from([(), (), (4,), (2, 4), (3, 8), (10,)]),
    max_queue_delay_us=st.sampled_from([0, 10, 50, 50]),
    priority_levels=st.sampled_from([0, 3]),
    default_priority=st.just(2),
    ageing_us=st.sampled_from([1, 30, 1_000_000]),
)
arrivals = st.tuples(
    st.integers(0, 4), st.sampled_from("aaaaab"), st.sampled_from([0, 0, 5, 30, 100]), st.integers(0, 4)
)


class BatcherMachine(RuleBasedStateMachine):
    """``waiting`` is the model: a list in order of rank, which is that of arrival where there are no priorities."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.count = 0
        self.waiting: list[Pending] = []

    @initialize(
        max_batch_size=st.sampled_from([0, 1, 2, 4, 8, 8, 9]),
        batching=st.none() | dynamic | dynamic | dynamic,
    )
    def begin(self, max_batch_size: int, batching: BatchingSpec | None) -> None:
        self.batcher = Batcher(max_batch_size, batching)
        self.max_batch_size = max_batch_size
        self.batching = batching or BatchingSpec()
        self.joins = batching is not None and max_batch_size > 1
        self.delay = batching.max_queue_delay_us * US if batching and self.joins else 0
        sizes = batching.preferred_batch_sizes if batching else ()
        self.preferred = [size for size in sizes if size <= max_batch_size]

    @rule(several=st.lists(arrivals, min_size=1, max_size=8))
    def add(self, several: list[tuple[int, str, int, int]]) -> None:
        for rows, key, lifetime, priority in several:
            self.count += 1
            request = Pending(
                id=self.count, tensors=[], outputs=(), parameters={}, priority=priority, arrived_ns=self.now,
                deadline_ns=self.now + lifetime * US if lifetime else 0, rows=rows, key=key,
            )  # fmt: skip
            self.batcher.add(request)
            self.waiting.append(request)
        self.waiting.sort(key=self.rank)  # stable: inside a level the order of arrival

    def rank(self, request: Pending) -> tuple[int, int]:
        levels = self.batching.priority_levels
        level = request.priority if 0 < request.priority <= levels else self.batching.default_priority or 1
        return request.arrived_ns + (level - 1) * self.batching.ageing_us * US, level

    def oldest(self) -> int:
        return min(request.arrived_ns for request in self.waiting)

    @rule(step=st.integers(0, 40))
    def pass_time(self, step: int) -> None:
        self.now += step * US

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        assert self.batcher.cancel(request.id)
        assert not self.batcher.cancel(request.id)
        self.waiting.remove(request)

    @precondition(lambda self: self.waiting)
    @rule()
    def expire(self) -> None:
        due = [request for request in self.waiting if request.deadline_ns and request.deadline_ns <= self.now]
        gone = self.batcher.expired(self.now)
        assert {request.id for request in gone} == {request.id for request in due}
        assert [request.deadline_ns for request in gone] == sorted(request.deadline_ns for request in due)
        self.waiting = [request for request in self.waiting if request not in due]

    @precondition(lambda self: self.waiting)
    @rule()
    def take(self) -> None:
        batch = self.batcher.take(self.now)
        if batch is None:
            self.check_reason_to_wait()
            return
        self.check_batch(batch)
        self.waiting = [request for request in self.waiting if request not in batch]

    def check_batch(self, batch: Batch) -> None:
        head = self.waiting[0]
        same = [request for request in self.waiting if request.key == head.key]
        limit = max(self.preferred, default=self.max_batch_size) if self.joins else 1
        prefixes = [same[: index + 1] for index in range(len(same))]
        prefixes = [prefix for prefix in prefixes if len(prefix) == 1 or self.share(prefix) <= limit]
        good = [prefix for prefix in prefixes if self.joins and self.share(prefix) in self.preferred]
        expected = max(good or prefixes, key=len)
        assert batch == expected, "the oldest, and those next in line with its key that fit"
        complete = bool(good) or len(batch) < len(same) or self.share(batch) >= limit
        waited = self.now - self.oldest() >= self.delay
        assert complete or waited or len({request.key for request in self.waiting}) > 1, "nothing leaves too early"

    def check_reason_to_wait(self) -> None:
        assert self.now - self.oldest() < self.delay
        assert len({request.key for request in self.waiting}) == 1
        assert self.share(self.waiting) < self.max_batch_size
        running = [self.share(self.waiting[: index + 1]) for index in range(len(self.waiting))]
        assert not set(running) & set(self.preferred)

    @precondition(lambda self: self.waiting)
    @rule()
    def sleep_as_told(self) -> None:
        """A worker that sleeps until ``wake_at`` misses nothing and does not wake for nothing."""
        wake = self.batcher.wake_at(self.now)
        assert wake is not None
        assert all(wake <= request.deadline_ns for request in self.waiting if request.deadline_ns)
        self.now = max(self.now, wake)
        before = len(self.batcher)
        self.expire()
        if len(self.batcher) == before:
            batch = self.batcher.take(self.now)
            assert batch is not None
            self.check_batch(batch)
            self.waiting = [request for request in self.waiting if request not in batch]

    @staticmethod
    def share(requests: list[Pending]) -> int:
        return sum(max(request.rows, 1) for request in requests)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if hasattr(self, "batcher"):
            assert len(self.batcher) == len(self.waiting)
            deadlines = [request.deadline_ns for request in self.waiting if request.deadline_ns]
            assert self.batcher.next_deadline() == min(deadlines, default=None)

    def teardown(self) -> None:
        if not hasattr(self, "batcher"):
            return
        left: list[int] = []
        for _ in range(len(self.waiting)):
            if not len(self.batcher):
                break
            batch = self.batcher.take(self.now + self.delay)
            assert batch is not None, "after the delay everything leaves"
            left.extend(request.id for request in batch)
        assert sorted(left) == sorted(request.id for request in self.waiting)


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=100, stateful_step_count=30)

texts = st.binary(max_size=5)
columns = st.integers(0, 3)


@st.composite
def members(draw: st.DrawFn) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Arrays of one datatype that differ in their rows only."""
    datatype = draw(st.sampled_from(["FP32", "BF16", "INT64", "BOOL", "BYTES"]))
    rest = tuple(draw(st.lists(columns, max_size=2)))
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    elements = texts if datatype == "BYTES" else None
    return [draw(arrays(NUMPY_DTYPE[datatype], (count, *rest), elements=elements)) for count in counts]


@given(members(), st.booleans())
def test_splitting_what_was_joined_gives_every_member_its_own(
    given: list[np.ndarray[Any, np.dtype[Any]]], other_way_round: bool
) -> None:
    batch = []
    for index, array in enumerate(given):
        tensors = [from_numpy("a", array), from_numpy("rows", np.full((len(array), 1), index))]
        if other_way_round and index % 2:
            tensors.reverse()
        batch.append(
            Pending(
                id=index, tensors=tensors, outputs=(), parameters={}, priority=0, arrived_ns=0, deadline_ns=0,
                rows=len(array), key=batch_key(tensors, None, batched=True),
            )
        )  # fmt: skip
    assert len({request.key for request in batch}) == 1
    shares = split(join(batch), [request.rows for request in batch])
    for index, (array, share) in enumerate(zip(given, shares, strict=True)):
        assert share["a"].dtype == array.dtype
        np.testing.assert_array_equal(share["a"], array)
        assert share["rows"].reshape(-1).tolist() == [index] * len(array)
