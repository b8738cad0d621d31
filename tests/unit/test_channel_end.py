"""How a channel ends: with rubbish, with the end of the file, or because it was cut."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator

import pytest

from backends.messages import Answer, Answers, Cancel, Refusal, TensorHead
from backends.tensor import Buffer
from backends.wire import THRESHOLD, encode
from gateway import errors
from gateway.workers.channel import Channel
from support.asking import Asked
from support.peer import CAPACITY, Peer, ask, connected, large, values


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with connected() as peer:
        yield peer


@pytest.fixture
def channel(peer: Peer) -> Channel:
    return peer.channel


@pytest.fixture
async def nothing_escapes() -> AsyncIterator[None]:
    """No exception reaches the event loop."""
    escaped: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: escaped.append(str(context)))
    yield
    assert escaped == []


async def death_of(sent: Asked) -> str:
    with pytest.raises(errors.WorkerDied) as caught:
        await sent.future
    return str(caught.value)


# --- rubbish ---

HEAD = TensorHead("y", "FP32", (1,), 4)


def answers(*ids: int, head: TensorHead = HEAD) -> list[Buffer]:
    return encode(Answers([Answer(id, [head], 0) for id in ids], len(ids), 0, 0, 0), [bytes(4)] * len(ids))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"garbage, and more of it"], "header of"),
        ([b"\0" * 12], "header of 0 bytes"),
        (encode(Cancel(1)), "not a message"),  # a message for the other side
        (answers(3), "answer to request 3, which was not asked"),
        (answers(1, 1), "answer to request 1, which was not asked"),
        ([*answers(1), *answers(1)], "answer to request 1, which was not asked"),
        ([*answers(1), *encode(Refusal(1, "deadline", ""))], "answer to request 1, which was not asked"),
        (encode(Refusal(77, "deadline", "")), "answer to request 77, which was not asked"),
        (answers(-1), "answer to request -1, which was not asked"),
        (answers(1, head=TensorHead("y", "FP32", (2,), 8)), "cut short: 4 of 8 bytes"),
        (answers(1, head=TensorHead("y", "FP32", (1,), 4, CAPACITY)), "outside the arena"),
        (answers(1, head=TensorHead("y", "FP99", (1,), 4)), "no datatype"),
    ],
)
async def test_rubbish_costs_this_channel_and_no_other(
    channel: Channel, peer: Peer, frames: list[Buffer], reason: str
) -> None:
    async with connected() as other:
        asked = ask(other.channel)
        await other.requests()
        await ends_with(channel, peer, frames, reason)
        await other.answer(asked.id)
        assert values(await asked.future) == [[1.0]]
        assert not other.channel.closed.done()


async def ends_with(channel: Channel, peer: Peer, frames: list[Buffer], reason: str) -> None:
    first, second = ask(channel), ask(channel, [large()])
    assert [request.id for request in await peer.requests(2)] == [1, 2]
    await peer.raw(b"".join(bytes(part) for part in frames))
    await asyncio.wait_for(channel.closed, 20)
    assert reason in channel.fault
    assert channel.fault.startswith("rubbish on the channel: ")
    assert "rubbish on the channel" in await death_of(second)
    assert first.future.done()
    assert not first.future.cancelled()
    first.future.exception()
    with pytest.raises(errors.WorkerDied, match="worker peer has just gone"):
        ask(channel)


@pytest.mark.usefixtures("nothing_escapes")
@pytest.mark.parametrize("seed", range(30))
async def test_random_bytes_never_come_through_to_the_loop(channel: Channel, peer: Peer, seed: int) -> None:
    noise = random.Random(seed)
    sent = ask(channel)
    await peer.requests()
    good = bytearray(b"".join(bytes(part) for part in answers(sent.id)))
    for _ in range(noise.randint(1, 4)):
        good[noise.randrange(len(good))] = noise.randrange(256)
    await peer.raw(bytes(good) + noise.randbytes(64))
    peer.socket.shutdown(socket.SHUT_WR)
    await asyncio.wait_for(channel.closed, 20)
    await asyncio.wait({sent.future}, timeout=20)
    assert sent.future.done()
    sent.future.exception()


# --- the end ---


async def test_the_end_of_the_file_fails_all_that_is_in_flight(channel: Channel, peer: Peer) -> None:
    asked = [ask(channel, [large()]) for _ in range(5)]
    await peer.requests(5)
    await peer.answer(asked[0].id)
    peer.socket.shutdown(socket.SHUT_WR)
    await asyncio.wait_for(channel.closed, 20)
    assert values(await asked[0].future) == [[1.0]]
    for sent in asked[1:]:
        assert await death_of(sent) == ("worker peer died while it had the request; it is being restarted, try again")
    assert channel.in_flight == 0


async def test_a_reset_is_an_end_like_any_other(channel: Channel, peer: Peer) -> None:
    sent = ask(channel)
    peer.socket.close()  # with bytes unread: the other side sees a reset
    await asyncio.wait_for(channel.closed, 20)
    await death_of(sent)


async def test_half_an_answer_before_the_end_is_no_answer(channel: Channel, peer: Peer) -> None:
    sent = ask(channel)
    await peer.requests()
    await peer.raw(b"".join(bytes(part) for part in answers(sent.id))[:-1])
    peer.socket.shutdown(socket.SHUT_WR)
    await death_of(sent)


async def test_the_first_reason_of_an_abort_is_the_one_that_is_told(channel: Channel, peer: Peer) -> None:
    sent = ask(channel)
    channel.abort("no heartbeat")
    channel.abort("something that followed from it")
    assert "died while it had the request: no heartbeat; " in await death_of(sent)


@pytest.mark.usefixtures("nothing_escapes")
async def test_between_the_abort_and_the_end_nothing_is_taken_and_nothing_breaks(channel: Channel, peer: Peer) -> None:
    sent, left = ask(channel), ask(channel)  # are in the outbox
    channel.abort("at once")
    with pytest.raises(errors.WorkerDied):
        ask(channel)
    channel.send(Cancel(1))
    left.abandon()
    await asyncio.wait_for(channel.closed, 20)
    channel.send(Cancel(1))
    left.abandon()
    channel.abort("again")
    await death_of(sent)
    assert not left.future.done()


async def test_a_reply_can_be_read_and_released_after_the_worker_is_gone(channel: Channel, peer: Peer) -> None:
    sent = ask(channel)
    await peer.requests()
    await peer.answer(sent.id, tensors=[large("y", fill=9)])
    reply = await sent.future
    channel.abort("gone")
    await channel.closed
    assert values(reply) == [[9] * THRESHOLD]
    reply.release()


async def test_a_cancelled_request_is_not_failed_again_by_the_end(channel: Channel, peer: Peer) -> None:
    sent = ask(channel)
    sent.abandon()
    channel.abort("gone")
    await channel.closed
    assert not sent.future.done()
