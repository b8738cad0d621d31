"""Rubbish on the channel: only ``WireError`` may come of it, and memory no larger than what was sent."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.messages import (
    Answer,
    Answers,
    Cancel,
    Heartbeat,
    Infer,
    Load,
    LoadReport,
    Ready,
    Refusal,
    Release,
    TensorHead,
    ToGateway,
    ToWorker,
)
from backends.spec import ModelSpec, Signature, TensorSpec
from backends.tensor import Buffer
from backends.wire import MAX_HEADER, MAX_PAYLOAD, PREFIX, FrameReader, WireError, encode

SIGNATURE = Signature("test", (TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "BYTES", (-1,)),), 8)
HEADS = [TensorHead("x", "FP32", (2, 3), 24), TensorHead("s", "BYTES", (1,), 6, 4096)]

#: One of each kind that has something inside.
WHOLE: list[tuple[Any, msgspec.Struct]] = [
    (ToWorker, Load(ModelSpec("m", 1, "echo", "path", 8, None, SIGNATURE.inputs, SIGNATURE.outputs), 0.5)),
    (ToWorker, Infer(1, HEADS, ("y",), 5, 1, {"p": {"deep": [1, None, 2.5]}}, "trace")),
    (ToWorker, Cancel(7)),
    (ToWorker, Release([0, 4096])),
    (ToGateway, Ready(SIGNATURE, "1.0", 16, LoadReport(1, 2, 3, 4, 5, 6))),
    (ToGateway, Answers([Answer(1, HEADS, 3)], 1, 1, 2, 3)),
    (ToGateway, Refusal(3, "deadline", "late")),
    (ToGateway, Heartbeat(1, 2, 3, 4)),
]
both_directions = pytest.mark.parametrize("kind", [ToWorker, ToGateway], ids=["to worker", "to gateway"])


def frame(header: bytes, payload: bytes = b"") -> bytes:
    return PREFIX.pack(len(header), len(payload)) + header + payload


def joined(parts: list[Buffer]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def survives(kind: Any, *chunks: bytes) -> list[Any]:
    """What a reader makes of the chunks up to the first ``WireError``; any other exception is the test's failure."""
    reader: FrameReader[Any] = FrameReader(kind)
    received: list[Any] = []
    try:
        for chunk in chunks:
            received += reader.feed(chunk)
    except WireError as error:
        assert str(error)
    return received


def refused(kind: Any, data: bytes) -> str:
    with pytest.raises(WireError) as caught:
        FrameReader[Any](kind).feed(data)
    return str(caught.value)


# --- bytes ---


@both_directions
@given(chunks=st.lists(st.binary(min_size=1, max_size=64), max_size=5))
def test_random_bytes(kind: Any, chunks: list[bytes]) -> None:
    survives(kind, *chunks)


@both_directions
@given(header=st.binary(min_size=1, max_size=64))
def test_random_bytes_in_a_proper_frame(kind: Any, header: bytes) -> None:
    survives(kind, frame(header))


@given(
    whole=st.sampled_from(WHOLE),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
    place=st.integers(0, 1 << 20),
)
def test_a_good_frame_with_bytes_changed(
    whole: tuple[Any, msgspec.Struct], flips: list[tuple[int, int]], place: int
) -> None:
    kind, message = whole
    data = bytearray(joined(encode(message, [b"payload"])))
    for position, value in flips:
        data[position % len(data)] = value
    place %= len(data)
    survives(kind, *(bytes(part) for part in (data[:place], data[place:]) if part), b"\0" * 64)


@pytest.mark.parametrize(("kind", "message"), WHOLE)
def test_every_byte_of_a_good_header_changed_to_every_value(kind: Any, message: msgspec.Struct) -> None:
    header = msgspec.msgpack.encode(message)
    for position in range(len(header)):
        for value in range(256):
            survives(kind, frame(header[:position] + bytes([value]) + header[position + 1 :]))


@pytest.mark.parametrize(("kind", "message"), WHOLE)
def test_a_header_cut_short_or_with_something_after_it_is_no_message(kind: Any, message: msgspec.Struct) -> None:
    header = msgspec.msgpack.encode(message)
    for end in range(1, len(header)):
        assert refused(kind, frame(header[:end])).startswith("not a message: ")
    for surplus in (b"\0", b"\xc0", header):
        assert refused(kind, frame(header + surplus)).startswith("not a message: ")


@pytest.mark.parametrize(("kind", "message"), WHOLE)
def test_a_message_for_the_other_side_is_refused(kind: Any, message: msgspec.Struct) -> None:
    other = ToGateway if kind is ToWorker else ToWorker
    assert refused(other, joined(encode(message))).startswith("not a message: ")


# --- sizes ---


@both_directions
@pytest.mark.parametrize("size", [0, MAX_HEADER + 1, 1 << 31, (1 << 32) - 1])
def test_a_header_of_an_impossible_size_is_refused_before_it_arrives(kind: Any, size: int) -> None:
    assert refused(kind, PREFIX.pack(size, 0)) == f"header of {size} bytes; 1 to {MAX_HEADER} are allowed"


@both_directions
@pytest.mark.parametrize("size", [MAX_PAYLOAD + 1, 1 << 63, (1 << 64) - 1])
def test_an_oversize_payload_is_refused_before_it_arrives(kind: Any, size: int) -> None:
    assert refused(kind, PREFIX.pack(1, size)) == f"payload of {size} bytes; at most {MAX_PAYLOAD} are allowed"


def test_the_limit_of_the_payload_can_be_lowered() -> None:
    reader: FrameReader[ToWorker] = FrameReader(ToWorker, max_payload=10)
    assert len(reader.feed(joined(encode(Cancel(1), [b"0123456789"])))) == 1
    with pytest.raises(WireError, match="payload of 11 bytes; at most 10 are allowed"):
        reader.feed(joined(encode(Cancel(1), [b"0123456789!"])))


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("header", "payload"), [(MAX_HEADER, 0), (1, MAX_PAYLOAD), (MAX_HEADER, MAX_PAYLOAD)])
def test_a_size_that_is_only_announced_takes_no_memory(header: int, payload: int) -> None:
    def work() -> None:
        reader: FrameReader[ToWorker] = FrameReader(ToWorker)
        assert reader.feed(PREFIX.pack(header, payload)) == []
        for _ in range(100):
            assert reader.feed(b"x" * 1000) == []

    assert peak_of(work) < 1 << 20


@both_directions
@pytest.mark.parametrize("opening", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
@pytest.mark.parametrize("prefix", [b"", b"\x97\x02\x01", b"\x97\x02\x01\x90\x90\x00\x00", b"\x96\x24"])
def test_a_length_that_lies_inside_the_header_takes_no_memory(kind: Any, opening: bytes, prefix: bytes) -> None:
    assert peak_of(lambda: refused(kind, frame(prefix + opening))) < 1 << 20


# --- nesting ---


def with_parameter(value: bytes) -> bytes:
    """An ``Infer`` whose parameter ``p`` is ``value``, msgpack already."""
    header = msgspec.msgpack.encode(Infer(1, [], (), 0, 0, {"p": 0}))
    place = header.index(b"\xa1p") + 2
    return header[:place] + value + header[place + 1 :]


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Python's own limit: a library in this process may have raised it (``torch.compile`` does, for good)."""
    raised = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(raised)


@pytest.mark.usefixtures("usual_recursion_limit")
@pytest.mark.parametrize("depth", [1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k", b"\x92\xc0", b"\xdc\x00\x01"])
def test_deep_nesting_is_refused(opening: bytes, depth: int) -> None:
    assert refused(ToWorker, frame(with_parameter(opening * depth + b"\x01"))).startswith("not a message: ")


def test_shallow_nesting_is_not() -> None:
    ((message, _),) = FrameReader[ToWorker](ToWorker).feed(frame(with_parameter(b"\x91" * 100 + b"\x01")))
    assert isinstance(message, Infer)


@pytest.mark.parametrize(
    "value",
    [
        b"\xc1",  # no type
        b"\xa1\xff",  # no UTF-8
        b"\xa3\xed\xa0\x80",  # a surrogate
        b"\x81\x80\x01",  # a key that cannot be one
        b"\x81\x91\x80\x01",
        b"\xd7\xff" + b"\xff" * 8,  # a timestamp with too many nanoseconds
        b"\xc7\x0c\xff" + b"\0" * 4 + b"\x7f" + b"\xff" * 7,  # ... and one far in the future
        b"\xc7\x03\xff123",  # ... and one of no known size
    ],
)
def test_a_value_that_is_none_is_refused(value: bytes) -> None:
    assert refused(ToWorker, frame(with_parameter(value))).startswith("not a message: ")


# --- types ---


def variants(value: Any) -> Iterator[Any]:
    """A message's plain form with each part in turn replaced by something else, left out, or given once more."""
    yield from (None, True, -1, 1.5, "text", b"bytes", [], [[]], {}, {"a": 1}, 2**64 - 1, -(2**63))
    if isinstance(value, list | tuple):
        parts = list(value)
        yield [*parts, 1]
        for index, part in enumerate(parts):
            yield parts[:index] + parts[index + 1 :]
            for other in variants(part):
                yield [*parts[:index], other, *parts[index + 1 :]]
    if isinstance(value, dict):
        for key, part in value.items():
            yield {name: kept for name, kept in value.items() if name != key}
            for other in variants(part):
                yield value | {key: other}


@pytest.mark.parametrize(("kind", "message"), WHOLE)
def test_wrong_types_anywhere_in_a_message(kind: Any, message: msgspec.Struct) -> None:
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    accepted = 0
    for variant in variants(plain):
        accepted += len(survives(kind, frame(msgspec.msgpack.encode(variant))))
    assert 0 < accepted < sum(1 for _ in variants(plain))


@both_directions
@given(value=st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3), st.lists, max_leaves=8))
def test_any_msgpack_value_in_place_of_a_message(kind: Any, value: object) -> None:
    survives(kind, frame(msgspec.msgpack.encode(value)))


@both_directions
@pytest.mark.parametrize("tag", [-1, 0, 6, 31, 40, 255, 1 << 40, "2", None, 2.0, [2]])
def test_an_unknown_tag_is_no_message(kind: Any, tag: object) -> None:
    assert refused(kind, frame(msgspec.msgpack.encode([tag, 1, 2]))).startswith("not a message: ")
