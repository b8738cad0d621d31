"""Priorities, ageing and queue policies of the batcher, with a clock that is a number."""

from __future__ import annotations

import itertools

import pytest

from backends.batching import Batcher, Pending, QueueFull
from backends.spec import BatchingSpec, QueuePolicy

US = 1000
ids = itertools.count()


def request(priority: int = 0, at: int = 0, *, key: str = "same", deadline: int = 0) -> Pending:
    return Pending(
        id=next(ids), tensors=[], outputs=(), parameters={}, priority=priority, arrived_ns=at * US,
        deadline_ns=deadline * US, rows=1, key=key,
    )  # fmt: skip


def queue(max_batch_size: int = 1, *, levels: int = 3, default: int = 2, ageing: int = 100, **given: object) -> Batcher:
    spec = BatchingSpec(priority_levels=levels, default_priority=default, ageing_us=ageing, **given)  # type: ignore[arg-type]
    return Batcher(max_batch_size, spec)


def drained(batcher: Batcher, now: int = 0) -> list[Pending]:
    taken = []
    while (batch := batcher.take(now * US)) is not None:
        taken += batch
    return taken


def added(batcher: Batcher, *requests: Pending) -> list[Pending]:
    for each in requests:
        batcher.add(each)
    return list(requests)


@pytest.mark.parametrize("max_batch_size", [1, 2, 8])
def test_higher_priorities_go_first_and_each_keeps_its_order(max_batch_size: int) -> None:
    batcher = queue(max_batch_size)
    low, high, middle, low2, high2 = added(batcher, *(request(priority) for priority in (3, 1, 2, 3, 1)))
    assert drained(batcher) == [high, high2, middle, low, low2]


@pytest.mark.parametrize("priority", [0, 4, 1 << 40])
def test_a_priority_that_is_none_of_the_levels_is_the_default_one(priority: int) -> None:
    batcher = queue()
    low, odd, middle, high = added(batcher, request(3), request(priority), request(2), request(1))
    assert drained(batcher) == [high, odd, middle, low]


def test_without_levels_priorities_mean_nothing() -> None:
    batcher = queue(levels=0, default=0)
    given = added(batcher, request(7), request(1), request(0))
    assert drained(batcher) == given


def test_one_level_is_overtaken_for_each_ageing_time_of_waiting() -> None:
    batcher = queue(ageing=100)
    low = request(3, at=0)
    early, late = request(1, at=199), request(1, at=201)
    middle_early, middle_late = request(2, at=99), request(2, at=101)
    added(batcher, low, middle_early, middle_late, early, late)
    assert drained(batcher, 300) == [early, middle_early, low, late, middle_late]


def test_a_stream_of_high_priority_does_not_starve_a_low_one() -> None:
    batcher = queue(ageing=100)
    (low,) = added(batcher, request(3, at=0))
    for now in range(0, 1000, 10):
        added(batcher, request(1, at=now))
        batch = batcher.take(now * US)
        if batch == [low]:
            assert now >= 200
            return
    raise AssertionError("it was never taken")


def test_who_goes_first_decides_the_key_and_company_of_any_priority_joins() -> None:
    batcher = queue(8)
    low, other, high = added(batcher, request(3), request(2, key="other"), request(1))
    assert batcher.take(0) == [high, low]
    assert batcher.take(0) == [other]


def test_a_full_queue_refuses_with_its_limit_and_counts_each_level_alone() -> None:
    batcher = queue(policy=QueuePolicy(max_size=2), policies={1: QueuePolicy(max_size=1)})
    added(batcher, request(1), request(2), request(2), request(3), request(3))
    for priority, limit in ((1, 1), (2, 2), (3, 2), (0, 2)):
        with pytest.raises(QueueFull, match=f"^Exceeds maximum queue size: {limit} requests"):
            batcher.add(request(priority))
    assert len(batcher) == 5
    batcher.take(0)  # the one of level 1
    batcher.add(request(1))


def test_time_in_the_queue_is_bounded_by_the_policy_and_by_the_client_whichever_is_shorter() -> None:
    batcher = queue(policy=QueuePolicy(timeout_us=50))
    policy, shorter, longer = added(batcher, request(), request(deadline=20), request(deadline=80))
    assert batcher.next_deadline() == 20 * US
    assert batcher.expired(19 * US) == []
    assert batcher.expired(20 * US) == [shorter]
    assert batcher.expired(50 * US) == [policy, longer]
    assert len(batcher) == 0


def test_a_delayed_request_goes_to_the_end_of_its_line_and_still_ends_with_its_client() -> None:
    batcher = queue(policies={2: QueuePolicy(timeout_us=50, delays=True)})
    late, leaving = added(batcher, request(2), request(2, deadline=70))
    (fresh,) = added(batcher, request(2, at=40))
    (low,) = added(batcher, request(3, at=40))
    assert batcher.expired(50 * US) == []
    assert len(batcher) == 4
    assert batcher.next_deadline() == 70 * US
    assert batcher.expired(70 * US) == [leaving]
    assert drained(batcher, 70) == [fresh, late, low]


def test_a_delayed_request_is_not_delayed_for_ever() -> None:
    batcher = queue(policy=QueuePolicy(timeout_us=50, delays=True))
    (late,) = added(batcher, request(at=0))
    assert batcher.expired(60 * US) == []
    added(batcher, request(at=70))
    assert batcher.expired(10_000 * US) == []
    assert batcher.take(10_000 * US) == [late]


def test_a_cancelled_request_leaves_room_for_another() -> None:
    batcher = queue(policy=QueuePolicy(max_size=1))
    (first,) = added(batcher, request())
    assert batcher.cancel(first.id)
    batcher.add(request())
