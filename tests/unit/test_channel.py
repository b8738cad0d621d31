"""The gateway's end of a channel over a real socket pair, against a peer that follows a script."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from backends.messages import Answer, Answers, Cancel, Heartbeat, Hello, Refusal, Release, TensorHead
from backends.tensor import Buffer, Tensor
from backends.wire import MAX_HEADER, THRESHOLD, encode
from gateway import errors
from gateway.workers.channel import Channel
from support.peer import CAPACITY, Peer, ask, connected, floats, large, used_by_requests, values
from support.wait import until


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with connected() as peer:
        yield peer


@pytest.fixture
def channel(peer: Peer) -> Channel:
    return peer.channel


# --- requests and answers ---


async def test_a_request_arrives_with_all_that_was_given(channel: Channel, peer: Peer) -> None:
    given = {"outputs": ("y",), "timeout_us": 9, "priority": 3, "parameters": {"p": [1, "a"]}, "trace": "00-1"}
    tensors = [*floats(1.0, 2.0), Tensor("e", "BYTES", (0,), b"")]
    sent = ask(channel, tensors, **given)
    ((message, payload),) = await peer.take()
    received = peer.reader.read(message.tensors, payload)[0]
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in received] == [
        (t.name, t.datatype, t.shape, bytes(t.data)) for t in tensors
    ]
    assert {field: getattr(message, field) for field in given} == given
    assert message.id == sent.id


async def test_each_answer_goes_to_who_asked_in_whatever_order_they_come(channel: Channel, peer: Peer) -> None:
    asked = [ask(channel) for _ in range(5)]
    assert channel.in_flight == 5
    await peer.requests(5)
    for number in (3, 0, 4):
        await peer.answer(asked[number].id, tensors=floats(float(number)))
    await peer.answer(asked[1].id, asked[2].id, tensors=floats(9.0))
    replies = [await sent.future for sent in asked]
    assert [values(reply) for reply in replies] == [[[0.0]], [[9.0]], [[9.0]], [[3.0]], [[4.0]]]
    assert channel.in_flight == 0


async def test_a_reply_tells_of_its_batch_and_of_its_time_in_the_queue(channel: Channel, peer: Peer) -> None:
    asked = [ask(channel), ask(channel)]
    await peer.requests(2)
    batch = await peer.answer(asked[0].id, asked[1].id)
    reply = await asked[1].future
    assert (reply.batch, reply.queue_ns) == (batch, 7)
    assert peer.batches == [(2, 1, 2, 3)]


async def test_frames_of_one_turn_leave_together_and_in_order(channel: Channel, peer: Peer) -> None:
    asked = [ask(channel, floats(float(number))) for number in range(50)]
    received = await peer.take(50)
    assert [message.id for message, _ in received] == [sent.id for sent in asked]
    assert [np.frombuffer(payload, "<f4").tolist() for _, payload in received] == [[float(n)] for n in range(50)]


async def test_answers_arrive_however_the_stream_is_cut(channel: Channel, peer: Peer) -> None:
    asked = [ask(channel) for _ in range(20)]
    await peer.requests(20)
    inline: list[Buffer] = []
    stream = b""
    for sent in asked:
        inline = []
        heads = peer.writer.place([large(fill=sent.id), *floats(float(sent.id))], inline)
        parts = encode(Answers([Answer(sent.id, heads, 0)], 1, 0, 0, 0), inline)
        stream += b"".join(bytes(part) for part in (*parts, *encode(Heartbeat(1, 2, 3, 4))))
    chance = random.Random(7)
    while stream:
        size = chance.randint(1, 90)
        await peer.raw(stream[:size])
        stream = stream[size:]
        await asyncio.sleep(0)
    for sent in asked:
        reply = await sent.future
        assert values(reply) == [[sent.id] * THRESHOLD, [float(sent.id)]]
        reply.release()
    await until(lambda: len(peer.messages) == 20)


async def test_other_messages_go_to_their_listener_and_show_that_the_worker_lives(channel: Channel, peer: Peer) -> None:
    before = channel.heard_at
    await peer.send(Hello(1, 2), Heartbeat(1, 2, 3, 4))
    await until(lambda: len(peer.messages) == 2)
    assert peer.messages == [Hello(1, 2), Heartbeat(1, 2, 3, 4)]
    assert channel.heard_at > before


# --- refusals ---


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("invalid_input", errors.InvalidRequest),
        ("inference_failed", errors.ModelFailed),
        ("cancelled", errors.Cancelled),
        ("deadline", errors.DeadlineExceeded),
        ("load_failed", errors.Internal),
        ("", errors.Internal),
        ("from a later version", errors.Internal),
    ],
)
async def test_a_refusal_is_an_error_with_the_workers_text(
    channel: Channel, peer: Peer, kind: str, error: type[errors.GatewayError]
) -> None:
    sent, other = ask(channel, [large()]), ask(channel)
    await peer.requests(2)
    await peer.send(Refusal(sent.id, kind, "the reason"))
    with pytest.raises(error, match="^the reason$") as caught:
        await sent.future
    assert type(caught.value) is error
    assert (channel.in_flight, used_by_requests(channel)) == (1, 0)
    await peer.answer(other.id)
    assert values(await other.future) == [[1.0]]


# --- cancellation ---


async def test_a_request_that_nobody_waits_for_is_cancelled_and_its_answer_returns_the_memory(
    channel: Channel, peer: Peer
) -> None:
    sent = ask(channel, [large()])
    await peer.requests()
    sent.abandon()
    ((message, _),) = await peer.take()
    assert message == Cancel(sent.id)
    assert used_by_requests(channel) > 0  # the worker may be reading it
    batch = await peer.answer(sent.id, tensors=[large("y")])
    await until(lambda: channel.in_flight == 0)
    assert used_by_requests(channel) == 0
    await peer.send(Heartbeat(1, 0, 0, 0))
    ((release, _),) = await peer.take()
    assert release == Release([batch.answers[0].tensors[0].offset])


async def test_a_cancelled_request_may_be_refused_instead(channel: Channel, peer: Peer) -> None:
    sent = ask(channel, [large()])
    await peer.requests()
    sent.abandon()
    await peer.send(Refusal(sent.id, "cancelled", "the client is gone"))
    await until(lambda: channel.in_flight == 0)
    assert used_by_requests(channel) == 0
    assert not channel.closed.done()


async def test_what_was_answered_is_not_cancelled_any_more(channel: Channel, peer: Peer) -> None:
    sent = ask(channel)
    await peer.requests()
    await peer.answer(sent.id)
    await sent.future
    sent.abandon()
    channel.send(Release([]))
    ((message, _),) = await peer.take()
    assert message == Release([])


# --- memory ---


async def test_every_block_comes_back_in_both_directions(channel: Channel, peer: Peer) -> None:
    for turn in range(40):
        asked = [ask(channel, [large(fill=turn + n), *floats(2.0), large("z", 3 * THRESHOLD)]) for n in range(3)]
        received = await peer.take(3 if turn == 0 else 4)  # after the first, with what is released
        for message, _ in received:
            if isinstance(message, Release):
                peer.writer.release(TensorHead("", "UINT8", (), 0, offset) for offset in message.offsets)
        await peer.answer(*(sent.id for sent in asked), tensors=[large("y", fill=turn), *floats(3.0)])
        for sent in asked:
            reply = await sent.future
            assert values(reply) == [[turn] * THRESHOLD, [3.0]]
            reply.release()
            reply.release()  # a second call gives nothing back twice
        assert used_by_requests(channel) == 0
    await peer.send(Heartbeat(0, 0, 0, 0))
    ((release, _),) = await peer.take()
    peer.writer.release(TensorHead("", "UINT8", (), 0, offset) for offset in release.offsets)
    assert peer.writer.allocator.used_bytes == 0


async def test_a_worker_that_hears_nothing_else_gets_its_blocks_back_with_its_next_heartbeat(
    channel: Channel, peer: Peer
) -> None:
    sent = ask(channel)
    await peer.requests()
    batch = await peer.answer(sent.id, tensors=[large("y"), large("z")])
    (await sent.future).release()
    await peer.send(Heartbeat(1, 0, 0, 0))
    ((message, _),) = await peer.take()
    assert message == Release([head.offset for head in batch.answers[0].tensors])
    await peer.send(Heartbeat(1, 0, 0, 0))
    channel.send(Cancel(99))
    assert [message for message, _ in await peer.take()] == [Cancel(99)]  # nothing is released twice


async def test_when_the_arena_is_full_tensors_travel_inline(channel: Channel, peer: Peer) -> None:
    blocks = CAPACITY // THRESHOLD
    asked = [ask(channel, [large(fill=n)]) for n in range(blocks + 5)]
    received = await peer.take(len(asked))
    offsets = [message.tensors[0].offset for message, _ in received]
    assert [offset >= 0 for offset in offsets] == [True] * blocks + [False] * 5
    for n, (message, payload) in enumerate(received):
        (tensor,) = peer.reader.read(message.tensors, payload)[0]
        assert bytes(tensor.data) == bytes([n]) * THRESHOLD
    await peer.answer(asked[0].id)
    await asked[0].future
    ask(channel, [large()])
    ((message, _),) = await peer.take()
    assert message.tensors[0].offset == offsets[0]


@pytest.mark.parametrize("size", [THRESHOLD - 1, THRESHOLD, CAPACITY, CAPACITY + 1, 20 << 20])
async def test_tensors_of_any_size_go_there_and_back(channel: Channel, peer: Peer, size: int) -> None:
    tensor = large(size=size, fill=5)
    sent = ask(channel, [tensor])
    ((message, payload),) = await peer.take()
    (received,) = peer.reader.read(message.tensors, payload)[0]
    assert bytes(received.data) == tensor.data
    await peer.answer(sent.id, tensors=[tensor])
    reply = await sent.future
    assert bytes(reply.tensors[0].data) == tensor.data
    reply.release()
    assert used_by_requests(channel) == 0


@pytest.mark.parametrize(
    "parameters",
    [{"p": 1 << 70}, {"p": "\ud800"}, {"p": "x" * MAX_HEADER}, {"p": object()}],
    ids=["too large a number", "a surrogate", "too long a text", "no value"],
)
async def test_a_request_that_fits_no_message_is_refused_and_leaves_nothing_behind(
    channel: Channel, peer: Peer, parameters: dict[str, Any]
) -> None:
    with pytest.raises(errors.InvalidRequest, match="cannot be passed on to the model"):
        ask(channel, [large()], parameters=parameters)
    assert (channel.in_flight, used_by_requests(channel)) == (0, 0)
    sent = ask(channel)
    assert [message.id for message in await peer.requests()] == [sent.id]
    await peer.answer(sent.id)
    await sent.future
