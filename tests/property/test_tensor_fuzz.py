"""Tensors on the channel that are not what they say: only ``WireError`` may come of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from backends.arena import MIN_BLOCK, Mapping, create
from backends.messages import (
    Infer,
    TensorHead,
)
from backends.spec import ITEM_SIZE, Signature, TensorSpec
from backends.tensor import Tensor
from backends.wire import TensorReader, WireError, encode
from gateway.errors import InvalidRequest
from gateway.inference.validation import Validator
from support import messages

CAPACITY = 4 * MIN_BLOCK


@pytest.fixture(scope="module")
def arena() -> Iterator[Mapping]:
    fd = create("test-arena", CAPACITY)
    mapping = Mapping(fd, writable=False)
    os.close(fd)
    yield mapping
    mapping.close()


numbers = st.one_of(st.integers(-9, 70), st.sampled_from([CAPACITY - 1, CAPACITY, 1 << 31, (1 << 63) - 1, -(1 << 63)]))
heads = st.builds(
    TensorHead,
    name=st.text(max_size=3),
    datatype=st.sampled_from([*ITEM_SIZE, "", "fp32", "FP8"]),
    shape=st.lists(numbers, max_size=3).map(tuple),
    size=numbers,
    offset=st.just(-1) | numbers,
)


@given(heads=st.lists(heads, max_size=3), payload=st.binary(max_size=80), start=st.integers(0, 90))
def test_a_tensor_that_was_read_lies_where_it_may_and_is_what_it_says(
    arena: Mapping, heads: list[TensorHead], payload: bytes, start: int
) -> None:
    try:
        tensors, _ = TensorReader(arena).read(heads, memoryview(payload), start)
    except WireError:
        return
    for head, tensor in zip(heads, tensors, strict=True):
        assert len(tensor.data) == head.size
        assert tensor.datatype in ITEM_SIZE
        if tensor.datatype != "BYTES":
            assert tensor.numpy().shape == head.shape


@given(tensor=messages.tensors(), wrong=heads)
def test_a_head_that_does_not_fit_its_bytes_is_refused(tensor: Any, wrong: TensorHead) -> None:
    good = TensorHead(tensor.name, tensor.datatype, tensor.shape, len(tensor.data))
    head = msgspec.structs.replace(good, shape=wrong.shape, size=wrong.size)
    assume((head.shape, head.size) != (good.shape, good.size))
    assume(tensor.datatype != "BYTES")  # the number of its elements is not known without looking at them
    try:
        (read,), _ = TensorReader(None).read([head], memoryview(tensor.data))
    except WireError:
        return
    assert read.numpy().nbytes == head.size <= good.size  # another tensor that fits as well


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (TensorHead("x", "FP32", (2,), 8, 0), "points into an arena, this channel has none"),
        (TensorHead("x", "FP32", (3,), 12), "is cut short: 8 of 12 bytes"),
        (TensorHead("x", "FP32", (2,), -8), "is cut short"),
        (TensorHead("x", "FP32", (1,), 8), r"of FP32 and shape \[1\] comes with 8 bytes"),
        (TensorHead("x", "FP32", (-2, -1), 8), r"shape \[-2, -1\] comes with 8 bytes"),
        (TensorHead("x", "FP32", (0, -1), 0), r"shape \[0, -1\] comes with 0 bytes"),
        (TensorHead("x", "BYTES", (-1,), 8), r"shape \[-1\] comes with 8 bytes"),
        (TensorHead("x", "float32", (2,), 8), "is of 'float32', which is no datatype"),
        (TensorHead("x", "FP32", (1 << 62, 4), 0), "comes with 0 bytes"),
        (TensorHead("x", "FP32", (0, 1 << 62), 0), "is larger than any memory"),
    ],
)
def test_why_a_tensor_is_refused(head: TensorHead, reason: str) -> None:
    with pytest.raises(WireError, match=f"tensor 'x' .*{reason}"):
        TensorReader(None).read([head], memoryview(bytes(8)))


ANY_SHAPE = {
    (datatype, rank): Validator("m", Signature("test", (TensorSpec("x", datatype, (-1,) * rank),), ()))
    for datatype in ITEM_SIZE
    for rank in range(4)
}


@given(
    datatype=st.sampled_from(sorted(ITEM_SIZE)),
    shape=st.lists(st.one_of(numbers, st.just(1 << 64)), max_size=3).map(tuple),
    data=st.binary(max_size=24),
)
@example("UINT16", (0, (1 << 63) - 1), b"")
@example("FP32", (-1, -1), bytes(4))
@example("BYTES", (0, 1 << 64), b"")
def test_what_the_gateway_lets_pass_costs_no_worker_its_life(
    datatype: str, shape: tuple[int, ...], data: bytes
) -> None:
    tensor = Tensor("x", datatype, shape, data)
    try:
        ANY_SHAPE[datatype, len(shape)].check([tensor], ())
    except InvalidRequest:
        return
    head = TensorHead("x", datatype, shape, len(data))
    try:
        encode(Infer(1, [head]))
    except WireError:
        return  # refused before it is sent
    (read,), _ = TensorReader(None).read([head], memoryview(data))
    assert read.numpy().shape == shape


@pytest.mark.parametrize(("offset", "size"), [(CAPACITY, 4), (CAPACITY - 3, 4), (0, CAPACITY + 4), (1 << 62, 4)])
def test_a_tensor_outside_the_arena_is_refused(arena: Mapping, offset: int, size: int) -> None:
    head = TensorHead("x", "UINT8", (size,), size, offset)
    with pytest.raises(WireError, match="lies outside the arena"):
        TensorReader(arena).read([head], memoryview(b""))
