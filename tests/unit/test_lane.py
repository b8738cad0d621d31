"""Work in slices: others go on between, nobody waits for long behind it, and it ends as it should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import GatewayError, Internal, InvalidRequest, Overloaded
from gateway.inference.slices import Slices
from gateway.serving.lane import Lane


def work(name: str, slices: int, seen: list[str], fault: Exception | None = None) -> Slices[str]:
    """Notes each of its slices; gives its name, or raises."""
    for _ in range(slices - 1):
        seen.append(name)
        yield
    seen.append(name)
    if fault is not None:
        raise fault
    return name


async def turn(seen: list[str]) -> None:
    """Notes each turn of the loop."""
    while True:
        seen.append("turn")
        await asyncio.sleep(0)


async def test_the_loop_turns_after_every_slice() -> None:
    seen: list[str] = []
    turning = asyncio.create_task(turn(seen))
    assert await Lane().result(work("a", 50, seen)) == "a"
    turning.cancel()
    assert seen.count("a") == 50
    assert "a a" not in " ".join(seen)


async def test_pieces_of_work_take_turns() -> None:
    seen: list[str] = []
    lane = Lane()
    done = await asyncio.gather(*(lane.result(work(name, slices, seen)) for name, slices in (("a", 9), ("b", 2))))
    assert done == ["a", "b"]
    assert "".join(seen) == "ababaaaaaaa"


async def test_some_take_turns_and_the_others_wait_in_order() -> None:
    """Else each of a thousand would take as long as all, and all would hold half of their result in memory."""
    seen: list[str] = []
    lane = Lane()
    await asyncio.gather(*(lane.result(work(name, 2, seen)) for name in "abcdef"))
    assert "".join(seen) == "abcdabcdefef"


async def test_what_was_raised_is_handed_on() -> None:
    with pytest.raises(InvalidRequest, match="no good"):
        await Lane().result(work("a", 3, [], InvalidRequest("no good")))


async def test_a_fault_of_ours_is_logged_and_ends_that_piece_only(caplog: pytest.LogCaptureFixture) -> None:
    lane = Lane()
    failing = asyncio.create_task(lane.result(work("a", 2, [], KeyError("secret"))))
    assert await lane.result(work("b", 5, [])) == "b"
    with pytest.raises(Internal, match=r"^internal error \(KeyError\); the server's log has the details$"):
        await failing
    assert "secret" in caplog.text


async def test_cancelled_work_ends_where_it_is_and_tells_nobody() -> None:
    seen: list[str] = []
    told: list[Any] = []
    lane = Lane()
    piece = lane.enter(work("a", 1000, seen), told.append)
    await lane.result(work("b", 3, seen))
    piece.cancel()
    piece.cancel()
    count = seen.count("a")
    assert 0 < count < 1000
    await lane.result(work("c", 5, seen))
    assert (seen.count("a"), told) == (count, [])


async def test_who_waits_cancels_the_work_by_leaving() -> None:
    seen: list[str] = []
    lane = Lane()
    waiting = asyncio.create_task(lane.result(work("a", 1000, seen)))
    await lane.result(work("b", 3, seen))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    count = seen.count("a")
    await lane.result(work("c", 5, seen))
    assert seen.count("a") == count


async def test_too_many_bytes_are_refused_until_some_have_left() -> None:
    lane = Lane(max_bytes=100)
    first = lane.enter(work("a", 5, []), lambda _: None, size=99)
    second = lane.enter(work("b", 5, []), lambda _: None, size=1000)  # the last one may be of any size
    with pytest.raises(Overloaded, match=r"2 large requests of 1099 bytes are being read already"):
        lane.enter(work("c", 1, []), lambda _: None, size=1)
    assert await lane.result(work("an answer", 1, [])) == "an answer"
    second.cancel()
    assert await lane.result(work("c", 1, []), size=1) == "c"
    first.cancel()


async def test_too_many_pieces_are_refused_until_some_have_left() -> None:
    lane = Lane(max_pieces=2)
    outcomes: list[str | GatewayError] = []
    for name in "ab":
        lane.enter(work(name, 2, []), outcomes.append, size=1)
    with pytest.raises(Overloaded):
        await lane.result(work("c", 1, []), size=1)
    assert await lane.result(work("an answer", 9, [])) == "an answer"
    assert outcomes == ["a", "b"]
    assert await lane.result(work("c", 1, []), size=1) == "c"
