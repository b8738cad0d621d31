"""The stream of events: order, resuming, and what becomes of followers that are slow, away, or there at the end."""

from __future__ import annotations

from typing import Any

from gateway.telemetry.events import Event, EventLog, Lost, Subscription


def published(log: EventLog, count: int) -> None:
    for number in range(count):
        log.publish("state", "m", 1, number=number)


async def taken(subscription: Subscription) -> list[Any]:
    """All that is there now: the numbers of events, and how many are lost."""
    found: list[Any] = []
    while (item := await subscription.next(0.0)) is not None:
        found.append(item.data["number"] if isinstance(item, Event) else item)
    return found


async def event(subscription: Subscription) -> Event:
    item = await subscription.next(10)
    assert isinstance(item, Event)
    return item


async def test_every_follower_gets_what_is_published_while_it_follows_in_order() -> None:
    log = EventLog()
    published(log, 1)
    with log.subscribe() as first:
        log.publish("worker", "n", 7, number=1)
        with log.subscribe() as second:
            published(log, 2)
            assert await taken(first) == [1, 0, 1]
            assert await taken(second) == [0, 1]
        published(log, 1)
        assert await taken(second) == []


async def test_an_event_tells_its_id_time_model_and_version_beside_what_is_its_own() -> None:
    log = EventLog()
    with log.subscribe() as subscription:
        log.publish("worker", "m", 7, reason="gone")
        got = await event(subscription)
    assert got.fields() == {"id": got.id, "time": got.time, "model": "m", "version": 7, "reason": "gone"}
    assert got.time > 0


async def test_who_comes_back_goes_on_after_the_last_event_it_has_seen() -> None:
    log = EventLog()
    with log.subscribe() as subscription:
        published(log, 3)
        await event(subscription)
        seen = await event(subscription)
    published(log, 2)
    with log.subscribe(seen.id) as again:
        assert await taken(again) == [2, 0, 1]
        published(log, 1)
        assert await taken(again) == [0]
    with log.subscribe((await _last(log)).id) as nothing_missed:
        assert await taken(nothing_missed) == []


async def _last(log: EventLog) -> Event:
    with log.subscribe() as subscription:
        published(log, 1)
        return await event(subscription)


async def test_who_was_away_for_too_long_is_told_how_many_are_not_kept() -> None:
    log = EventLog(kept=3)
    seen = await _last(log)
    published(log, 5)
    with log.subscribe(seen.id) as subscription:
        assert await taken(subscription) == [Lost(2), 2, 3, 4]


async def test_an_id_of_another_run_or_of_none_means_everything_that_is_kept() -> None:
    log = EventLog(kept=3)
    published(log, 3)
    for id in ("0123abcd-2", "nonsense", "-", "9" * 40):
        with log.subscribe(id) as subscription:
            assert await taken(subscription) == [0, 1, 2], id


async def test_a_number_that_was_never_given_counts_as_the_last_one() -> None:
    log = EventLog()
    seen = await _last(log)
    with log.subscribe(seen.id.partition("-")[0] + "-999") as subscription:
        assert await taken(subscription) == []
        published(log, 1)
        assert await taken(subscription) == [0]


async def test_a_slow_follower_loses_the_oldest_and_is_told_how_many() -> None:
    log = EventLog()
    with log.subscribe(queued=3) as slow, log.subscribe() as quick:
        published(log, 5)
        assert await taken(slow) == [Lost(2), 2, 3, 4]
        assert await taken(quick) == [0, 1, 2, 3, 4]
        published(log, 1)
        assert await taken(slow) == [0]


async def test_a_follower_who_resumes_is_granted_what_is_kept_beyond_the_bound() -> None:
    log = EventLog()
    seen = await _last(log)
    published(log, 5)
    with log.subscribe(seen.id, queued=2) as subscription:
        assert await taken(subscription) == [0, 1, 2, 3, 4]


async def test_when_the_gateway_stops_a_stream_ends_after_what_it_has() -> None:
    log = EventLog()
    with log.subscribe() as subscription:
        published(log, 2)
        with log.subscribe() as idle:
            log.close()
            assert not subscription.is_over
            assert await taken(subscription) == [0, 1]
            assert subscription.is_over
            assert await idle.next(10) is None
            assert idle.is_over
    with log.subscribe() as late:
        assert late.is_over
