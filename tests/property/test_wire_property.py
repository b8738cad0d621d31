"""The codec of the channel gives back what it was given, in both directions, however the stream is cut."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.arena import MIN_BLOCK, Mapping, create
from backends.messages import (
    Answer,
    Answers,
    Cancel,
    Drain,
    Heartbeat,
    Hello,
    Infer,
    Progress,
    Refusal,
    TensorHead,
    ToGateway,
    ToWorker,
)
from backends.tensor import Buffer, Tensor
from backends.wire import MAX_HEADER, MAX_PAYLOAD, PREFIX, FrameReader, TensorReader, TensorWriter, WireError, encode
from support import messages

THRESHOLD = 64
CAPACITY = 8 * MIN_BLOCK  # little, so that many examples fill it
Received = list[tuple[Any, bytes]]


@pytest.fixture(scope="module")
def arena() -> Iterator[tuple[Mapping, Mapping]]:
    """The writing and the reading end of one arena."""
    fd = create("test-arena", CAPACITY)
    writable, readable = Mapping(fd, writable=True), Mapping(fd, writable=False)
    os.close(fd)
    yield writable, readable
    writable.close()
    readable.close()


def joined(frames: Iterable[Iterable[Buffer]]) -> bytes:
    return b"".join(bytes(part) for frame in frames for part in frame)


def receive(kind: Any, chunks: Iterable[bytes]) -> Received:
    reader: FrameReader[Any] = FrameReader(kind)
    return [(message, bytes(payload)) for chunk in chunks for message, payload in reader.feed(chunk)]


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    """The stream in chunks; a socket never gives an empty one."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges) if end > start]


# --- messages ---


@given(sent=st.lists(messages.to_worker, min_size=1, max_size=4), places=st.lists(st.integers(0, 10_000), max_size=6))
def test_the_worker_receives_what_the_gateway_sent(sent: list[ToWorker], places: list[int]) -> None:
    chunks = cut(joined(map(encode, sent)), places)
    assert receive(ToWorker, chunks) == [(message, b"") for message in sent]


@given(sent=st.lists(messages.to_gateway, min_size=1, max_size=4), places=st.lists(st.integers(0, 10_000), max_size=6))
def test_the_gateway_receives_what_the_worker_sent(sent: list[ToGateway], places: list[int]) -> None:
    chunks = cut(joined(map(encode, sent)), places)
    assert receive(ToGateway, chunks) == [(message, b"") for message in sent]


# --- tensors ---


def content(tensors: Iterable[Tensor]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in tensors]


def through(
    writer: TensorWriter, reader: TensorReader, sent: list[Tensor], infer: Infer, places: list[int]
) -> tuple[list[TensorHead], list[Tensor]]:
    """The tensors' heads, and the tensors as they arrive with a request."""
    inline: list[Buffer] = []
    infer = msgspec.structs.replace(infer, tensors=writer.place(sent, inline))
    frames: FrameReader[ToWorker] = FrameReader(ToWorker)
    ((message, payload),) = [
        got for chunk in cut(joined([encode(infer, inline)]), places) for got in frames.feed(chunk)
    ]
    assert message == infer
    received, end = reader.read(message.tensors, payload)
    assert end == len(payload)
    return infer.tensors, received


some_tensors = st.lists(messages.tensors(), max_size=4)
some_places = st.lists(st.integers(0, 1 << 20), max_size=4)


@given(sent=some_tensors, infer=messages.infers, places=some_places)
def test_a_requests_tensors_arrive_inline(sent: list[Tensor], infer: Infer, places: list[int]) -> None:
    heads, received = through(TensorWriter(None), TensorReader(None), sent, infer, places)
    assert content(received) == content(sent)
    assert all(head.offset == -1 for head in heads)


@given(sent=some_tensors, infer=messages.infers, places=some_places)
def test_a_requests_tensors_arrive_through_the_arena(
    arena: tuple[Mapping, Mapping], sent: list[Tensor], infer: Infer, places: list[int]
) -> None:
    writer = TensorWriter(arena[0], THRESHOLD)
    heads, received = through(writer, TensorReader(arena[1]), sent, infer, places)
    assert content(received) == content(sent)
    assert all(head.size >= THRESHOLD for head in heads if head.offset >= 0)
    writer.release(heads)
    assert writer.allocator.used_bytes == 0


@given(batch=st.lists(some_tensors, max_size=4), places=some_places, data=st.data())
def test_every_answer_of_a_batch_arrives_with_its_own_tensors(
    arena: tuple[Mapping, Mapping], batch: list[list[Tensor]], places: list[int], data: st.DataObject
) -> None:
    writer, reader = TensorWriter(arena[0], THRESHOLD), TensorReader(arena[1])
    inline: list[Buffer] = []
    sent = data.draw(messages.answers([writer.place(outputs, inline) for outputs in batch]))
    frames: FrameReader[ToGateway] = FrameReader(ToGateway)
    ((message, payload),) = [got for chunk in cut(joined([encode(sent, inline)]), places) for got in frames.feed(chunk)]
    assert message == sent
    assert isinstance(message, Answers)
    place = 0
    for answer, outputs in zip(message.answers, batch, strict=True):
        received, place = reader.read(answer.tensors, payload, place)
        assert content(received) == content(outputs)
        writer.release(answer.tensors)
    assert place == len(payload)
    assert writer.allocator.used_bytes == 0


def test_a_full_arena_sends_the_rest_inline_in_the_right_order(arena: tuple[Mapping, Mapping]) -> None:
    writer, reader = TensorWriter(arena[0], THRESHOLD), TensorReader(arena[1])
    sent = [Tensor(str(n), "UINT8", (CAPACITY // 4,), bytes([n]) * (CAPACITY // 4)) for n in range(6)]
    heads, received = through(writer, reader, sent, Infer(1, []), [100, 70_000])
    assert content(received) == content(sent)
    assert [head.offset >= 0 for head in heads] == [True, True, True, True, False, False]


def test_what_arrives_whole_is_not_copied(arena: tuple[Mapping, Mapping]) -> None:
    inline: list[Buffer] = []
    heads = TensorWriter(None).place([Tensor("x", "UINT8", (5,), b"bytes")], inline)
    frame = joined([encode(Infer(1, heads), inline)])
    ((_, payload),) = FrameReader[ToWorker](ToWorker).feed(frame)
    assert payload.obj is frame
    (tensor,), _ = TensorReader(None).read(heads, payload)
    assert tensor.data.obj is frame


# --- the stream, cut everywhere ---

TO_WORKER: list[tuple[ToWorker, bytes]] = [
    (Infer(1, [TensorHead("a", "UINT8", (5,), 5)], ("y",), 10, 2, {"p": [1, "two"]}, "trace"), b"12345"),
    (Cancel(1), b""),
    (Infer(2, [TensorHead("a", "UINT8", (0,), 0), TensorHead("b", "INT16", (), 2)]), b"\0\1"),
    (Drain(), b""),
]
TO_GATEWAY: list[tuple[ToGateway, bytes]] = [
    (Hello(1, 2), b""),
    (Progress("reading", 1, 2, 5), b""),
    (Answers([Answer(1, [TensorHead("y", "FP16", (2,), 4)], 9), Answer(2, [], 0)], 2, 1, 2, 3), b"\0\1\2\3"),
    (Refusal(3, "deadline", "too late"), b""),
    (Heartbeat(1, 0, 0, 4096), b""),
]
both_directions = pytest.mark.parametrize(
    ("kind", "frames"), [(ToWorker, TO_WORKER), (ToGateway, TO_GATEWAY)], ids=["to worker", "to gateway"]
)


@both_directions
def test_a_stream_arrives_wherever_it_is_cut_in_two(kind: Any, frames: Received) -> None:
    stream = joined(encode(message, [payload]) for message, payload in frames)
    for place in range(1, len(stream)):
        assert receive(kind, [stream[:place], stream[place:]]) == frames


@both_directions
def test_a_stream_arrives_wherever_it_is_cut_in_three(kind: Any, frames: Received) -> None:
    stream = joined(encode(message, [payload]) for message, payload in frames[:3])
    for first in range(1, len(stream)):
        for second in range(first + 1, len(stream)):
            assert receive(kind, [stream[:first], stream[first:second], stream[second:]]) == frames[:3]


@both_directions
@pytest.mark.parametrize("size", range(1, 30))
def test_a_stream_arrives_in_chunks_of_any_size(kind: Any, frames: Received, size: int) -> None:
    stream = joined(encode(message, [payload]) for message, payload in frames * 3)
    assert receive(kind, [stream[start : start + size] for start in range(0, len(stream), size)]) == frames * 3


@both_directions
def test_a_message_is_given_as_soon_as_its_last_byte_is_there_and_never_twice(kind: Any, frames: Received) -> None:
    reader: FrameReader[Any] = FrameReader(kind)
    for message, payload in frames * 2:
        *early, last = joined([encode(message, [payload])])
        assert [got for byte in early for got in reader.feed(bytes([byte]))] == []
        assert [(got, bytes(rest)) for got, rest in reader.feed(bytes([last]))] == [(message, payload)]


@hypothesis.settings(max_examples=20)
@given(size=st.integers(1, 1 << 17), chunk=st.integers(1, 1 << 14))
def test_a_large_payload_is_put_together_from_any_chunks(size: int, chunk: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    sent = (Infer(7, [TensorHead("x", "UINT8", (len(payload),), len(payload))]), payload)
    stream = joined([encode(sent[0], [payload]), encode(Cancel(7))])
    chunks = [stream[start : start + chunk] for start in range(0, len(stream), chunk)]
    assert receive(ToWorker, chunks) == [sent, (Cancel(7), b"")]


def test_a_frame_says_its_sizes_first() -> None:
    prefix, header, *payload = encode(Cancel(5), [b"abc", memoryview(b"de")])
    assert PREFIX.unpack(prefix) == (len(header), 5)
    assert b"".join(bytes(part) for part in payload) == b"abcde"


# --- the sender's side: what nobody would take is not sent ---


@pytest.mark.parametrize(
    "parameters",
    [{"p": 1 << 64}, {"p": -(1 << 63) - 1}, {"p": "\ud800"}, {"\udcff": 1}, {"p": object()}, {"p": b"x" * MAX_HEADER}],
    ids=["too large", "too small", "a surrogate", "a surrogate in a name", "no value", "too long"],
)
def test_a_message_that_cannot_be_sent_is_an_error_of_the_sender(parameters: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="cannot be encoded|header of "):
        encode(Infer(1, [], parameters=parameters))


def test_parameters_nested_too_deeply_are_an_error_of_the_sender() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(WireError, match="cannot be encoded"):
        encode(Infer(1, [], parameters={"p": deep}))
    while deep:  # taken apart one by one: freeing it whole recurses in C
        deep = deep.pop()


def test_a_payload_over_the_limit_is_an_error_of_the_sender() -> None:
    half = memoryview(bytearray(1 << 20))
    with pytest.raises(WireError, match="payload of "):
        encode(Cancel(1), [half] * (MAX_PAYLOAD // len(half) + 1))
