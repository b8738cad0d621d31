"""What must hold for every message: cutting equals parsing, and tensors come back as they went."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from backends.tensor import from_numpy
from gateway.errors import GatewayError
from gateway.inference.request import InferRequest, InferResponse
from gateway.inference.slices import whole
from gateway.proto.inference_pb2 import ModelInferRequest, ModelInferResponse
from gateway.rpc import convert, cut
from gateway.rpc.split import split

Input = ModelInferRequest.InferInputTensor

NAMES = st.text(min_size=1, max_size=8)
SHAPES = st.lists(st.integers(0, 4), max_size=3)
#: Datatype, its typed field, and one value of it.
TYPED: list[tuple[str, str, st.SearchStrategy[Any]]] = [
    ("BOOL", "bool_contents", st.booleans()),
    ("INT8", "int_contents", st.integers(-(2**7), 2**7 - 1)),
    ("INT16", "int_contents", st.integers(-(2**15), 2**15 - 1)),
    ("INT32", "int_contents", st.integers(-(2**31), 2**31 - 1)),
    ("INT64", "int64_contents", st.integers(-(2**63), 2**63 - 1)),
    ("UINT8", "uint_contents", st.integers(0, 2**8 - 1)),
    ("UINT16", "uint_contents", st.integers(0, 2**16 - 1)),
    ("UINT32", "uint_contents", st.integers(0, 2**32 - 1)),
    ("UINT64", "uint64_contents", st.integers(0, 2**64 - 1)),
    ("FP32", "fp32_contents", st.floats(width=32, allow_nan=False)),
    ("FP64", "fp64_contents", st.floats(allow_nan=False)),
    ("BYTES", "bytes_contents", st.binary(max_size=5)),
]


@st.composite
def messages(draw: st.DrawFn) -> ModelInferRequest:
    message = ModelInferRequest(model_name=draw(NAMES), id=draw(st.text(max_size=4)))
    message.inputs.extend(Input(name=name, datatype="FP32", shape=[1]) for name in draw(st.lists(NAMES, max_size=3)))
    message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=300), max_size=4)))
    for key in draw(st.lists(NAMES, max_size=2)):
        message.parameters[key].int64_param = 1
    return message


def put_together(parts: tuple[bytes, list[memoryview]]) -> ModelInferRequest:
    message = ModelInferRequest.FromString(parts[0])
    assert not message.raw_input_contents
    message.raw_input_contents.extend(bytes(content) for content in parts[1])
    return message


@given(messages())
def test_cutting_a_message_loses_nothing(message: ModelInferRequest) -> None:
    parts = split(message.SerializeToString())
    assert parts is not None
    assert put_together(parts) == message


@given(messages(), messages())
def test_fields_in_any_order_are_cut_as_protobuf_merges_them(one: ModelInferRequest, two: ModelInferRequest) -> None:
    raw = one.SerializeToString() + two.SerializeToString()
    parts = split(raw)
    assert parts is not None
    assert put_together(parts) == ModelInferRequest.FromString(raw)


@given(st.data())
def test_of_broken_bytes_cutting_makes_nothing_that_protobuf_would_refuse(data: st.DataObject) -> None:
    raw = bytearray(data.draw(messages()).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    parts = split(bytes(raw))
    try:
        whole = ModelInferRequest.FromString(bytes(raw))
    except DecodeError:
        whole = None
    try:
        cut = put_together(parts) if parts is not None else whole
    except DecodeError:
        cut = None
    assert cut == whole


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_an_error_for_the_client(raw: bytes) -> None:
    try:
        model = convert.decode(raw).model
    except GatewayError as error:
        model = str(error)
    assert isinstance(model, str)


@given(st.data(), st.sampled_from(TYPED), SHAPES)
def test_typed_contents_hold_the_same_values_as_the_binary_form(
    data: st.DataObject, kind: tuple[str, str, st.SearchStrategy[Any]], shape: list[int]
) -> None:
    datatype, field, one = kind
    count = math.prod(shape)
    values = data.draw(st.lists(one, min_size=count, max_size=count))
    message = ModelInferRequest(inputs=[Input(name="a", datatype=datatype, shape=shape, contents={field: values})])
    (found,) = convert.decode(message.SerializeToString()).inputs
    assert found.shape == tuple(shape)
    assert found.numpy().reshape(-1).tolist() == values


ARRAYS = arrays.arrays(
    dtype=st.sampled_from([np.dtype(code) for code in ("?", "<i1", "<u2", "<i4", "<u8", "<f2", "<f4", "<f8")]),
    shape=arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@given(st.dictionaries(NAMES, ARRAYS, max_size=3), st.text(max_size=5))
def test_outputs_come_back_as_they_went(outputs: dict[str, Any], id: str) -> None:
    tensors = [from_numpy(name, array) for name, array in outputs.items()]
    found = ModelInferResponse.FromString(convert.encode(InferResponse("m", "1", tensors, lambda: None, id=id)))
    assert found.id == id
    assert [output.name for output in found.outputs] == list(outputs)
    for head, raw, array in zip(found.outputs, found.raw_output_contents, outputs.values(), strict=True):
        assert tuple(head.shape) == array.shape
        assert raw == array.tobytes()


# --- large messages: the same outcome, wherever they are divided -----------------------------------------------------


def outcome(decode: Callable[[bytes], InferRequest], raw: bytes) -> Any:
    """What was decoded, with the data as bytes; or the error's class and text."""
    try:
        request = decode(raw)
    except GatewayError as error:
        return type(error), str(error)
    for tensor in request.inputs:
        tensor.data = bytes(tensor.data)
    return request


def in_slices(raw: bytes) -> InferRequest:
    return whole(convert._decode_in_slices(raw))


@pytest.fixture
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes a slice: they end inside of everything."""
    monkeypatch.setattr(cut, "SLICE", 9)
    monkeypatch.setattr(cut, "_SLICE_FIELDS", 3)


@st.composite
def typed_messages(draw: st.DrawFn) -> ModelInferRequest:
    message = ModelInferRequest(model_name=draw(NAMES), id=draw(st.text(max_size=4)))
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        datatype, field, values = draw(st.sampled_from(TYPED))
        given = draw(st.lists(values, max_size=20))
        count = draw(st.sampled_from([len(given), len(given), len(given), 7]))
        message.inputs.add(name=name, datatype=draw(st.sampled_from([datatype] * 5 + ["FP16"])), shape=[count])
        getattr(message.inputs[-1].contents, field).extend(given)
    if draw(st.integers(0, 4)) == 0:
        message.raw_input_contents.append(b"raw")
    return message


@pytest.mark.usefixtures("tiny_slices")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(typed_messages() | messages())
def test_typed_contents_are_packed_in_slices_as_in_one_go(message: ModelInferRequest) -> None:
    raw = message.SerializeToString()
    found, expected = outcome(in_slices, raw), outcome(convert.decode, raw)
    if len(message.inputs) > 1 and isinstance(expected, tuple):
        assert isinstance(found, tuple)  # of two faults either may be told
    else:
        assert repr(found) == repr(expected)


@pytest.mark.usefixtures("tiny_slices")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.floats(width=32), max_size=9), max_size=3), st.booleans())
def test_contents_that_come_in_several_fields_belong_together(values: list[list[float]], single: bool) -> None:
    raw = Input(name="x", datatype="FP32", shape=[sum(map(len, values))]).SerializeToString()
    for some in values:
        packed = np.array(some, "<f4").tobytes()
        parts = [packed[place : place + 4] for place in range(0, len(packed), 4)]
        content = b"".join(b"\x35" + part for part in parts) if single else b"\x32" + bytes([len(packed)]) + packed
        raw += b"\x2a" + bytes([len(content)]) + content
    raw = b"\x2a" + (bytes([len(raw)]) if len(raw) < 128 else bytes([len(raw) & 127 | 128, len(raw) >> 7])) + raw
    found = outcome(in_slices, raw)
    assert repr(found) == repr(outcome(convert.decode, raw))
    assert found.inputs[0].data == b"".join(np.array(some, "<f4").tobytes() for some in values)


@pytest.mark.usefixtures("tiny_slices")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_broken_bytes_are_refused_in_slices_too(data: st.DataObject) -> None:
    raw = bytearray(data.draw(typed_messages()).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        request = in_slices(bytes(raw))
    except GatewayError:
        return
    for tensor in request.inputs:
        tensor.data = bytes(tensor.data)
    assert request == outcome(convert.decode, bytes(raw))
