"""gRPC messages that no client would send: INVALID_ARGUMENT with field and mend, and the server goes on."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, Final

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from support.clients import grpc_channel, grpc_stub, refusal
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
TWO_FLOATS: Final = struct.pack("<2f", 1, 2)
Message = Any
Change = Callable[[Message], object]


def raw(
    model: str = "echo", datatype: str = "FP32", shape: tuple[int, ...] = (2,), data: bytes = TWO_FLOATS
) -> Message:
    """One input ``x`` with raw contents."""
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[data])
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message


def typed(
    field: str, values: Any, model: str = "echo", datatype: str = "FP32", shape: tuple[int, ...] = (2,)
) -> Message:
    """One input ``x`` with typed contents."""
    message = service_pb2.ModelInferRequest(model_name=model)
    getattr(message.inputs.add(name="x", datatype=datatype, shape=shape).contents, field).extend(values)
    return message


def simple(first: bytes | None = None, second: bytes | None = None) -> Message:
    """The two inputs of ``simple``: raw where bytes are given, else typed."""
    message = service_pb2.ModelInferRequest(model_name="simple")
    for name, data in (("INPUT0", first), ("INPUT1", second)):
        tensor = message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        if data is None:
            tensor.contents.int_contents.extend(range(16))
        else:
            message.raw_input_contents.append(data)
    return message


def changed(message: Message, change: Change) -> Message:
    """The message after the change."""
    change(message)
    return message


def refused(server: Server, message: Message, meaning: str = "invalid") -> str:
    """The error's text."""
    with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(message)
    error = refusal(raised.value)
    assert error.meaning == meaning, error
    return error.text


CASES: Final[dict[str, tuple[Message, list[str]]]] = {
    "nothing at all": (service_pb2.ModelInferRequest(), ["''"]),
    "no input": (service_pb2.ModelInferRequest(model_name="echo"), ["missing", "x"]),
    "input without a name": (changed(raw(), lambda m: m.inputs[0].ClearField("name")), ["input 0", "name"]),
    "input without data": (changed(raw(), lambda m: m.ClearField("raw_input_contents")), ["'x'", "[2]", "2", "0"]),
    "the same input twice": (
        changed(raw(), lambda m: (m.inputs.append(m.inputs[0]), m.raw_input_contents.append(TWO_FLOATS))),
        ["'x'", "twice"],
    ),
    "the same output twice": (changed(raw(), lambda m: (m.outputs.add(name="y"), m.outputs.add(name="y"))), ["'y'"]),
    "output without a name": (changed(raw(), lambda m: m.outputs.add()), ["''"]),
    "datatype empty": (raw(datatype=""), ["'x'", "''", "FP32"]),
    "datatype in small letters": (raw(datatype="int64"), ["'x'", "int64", "INT64"]),
    "datatype of another kind": (raw(datatype="FLOAT"), ["'x'", "FLOAT", "FP32"]),
    "datatype of the configuration": (raw(datatype="TYPE_FP32"), ["'x'", "TYPE_FP32", "FP32"]),
    "negative size": (raw(shape=(-1,)), ["'x'", "-1"]),
    "negative size that fits the model": (
        raw("identity_fp32", shape=(-1, 16), data=bytes(64)), ["'x'", "[-1, 16]"],
    ),
    "smallest size": (raw(shape=(-(2**63),)), ["'x'", str(-(2**63))]),
    "a thousand dimensions": (raw(shape=(1,) * 1000), ["'x'", "1000"]),
    "too few bytes": (raw(data=TWO_FLOATS[:7]), ["'x'", "8", "7"]),
    "too many bytes": (raw(data=TWO_FLOATS + b"\0"), ["'x'", "8", "9"]),
    "no bytes": (raw(data=b""), ["'x'", "8", "0"]),
    "raw entries missing": (changed(simple(bytes(64), bytes(64)), lambda m: m.raw_input_contents.pop()), ["INPUT1"]),
    "raw entries left over": (
        changed(raw(), lambda m: m.raw_input_contents.append(TWO_FLOATS)), ["raw_input_contents", "2", "1"],
    ),
    "raw entries without inputs": (
        service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[b""]), ["raw_input_contents"],
    ),
    "first raw, second typed": (simple(bytes(64), None), ["INPUT1", "raw"]),
    "first typed, second raw": (simple(None, bytes(64)), ["INPUT0", "raw"]),
    "raw and typed in one input": (
        changed(typed("fp32_contents", [1, 2]), lambda m: m.raw_input_contents.append(TWO_FLOATS)), ["'x'", "raw"],
    ),
    "two typed fields": (
        changed(typed("fp32_contents", [1, 2]), lambda m: m.inputs[0].contents.int_contents.append(1)),
        ["'x'", "fp32_contents", "int_contents"],
    ),
    "INT32 values for FP32": (typed("int_contents", [1, 2]), ["'x'", "int_contents", "fp32_contents"]),
    "INT32 values for INT64": (
        typed("int_contents", [1], "identity_int64", "INT64", (1, 1)), ["'x'", "int_contents", "int64_contents"],
    ),
    "INT64 values for INT32": (
        typed("int64_contents", [1], "identity_int32", "INT32", (1, 1)), ["'x'", "int64_contents", "int_contents"],
    ),
    "unsigned values for signed": (
        typed("uint_contents", [1], "identity_int32", "INT32", (1, 1)), ["'x'", "uint_contents", "int_contents"],
    ),
    "text for numbers": (typed("bytes_contents", [b"1", b"2"]), ["'x'", "bytes_contents", "fp32_contents"]),
    "FP16 typed": (typed("fp32_contents", [1], "identity_fp16", "FP16", (1, 1)), ["'x'", "FP16", "raw_input_contents"]),
    "BF16 typed": (typed("fp32_contents", [1], "identity_bf16", "BF16", (1, 1)), ["'x'", "BF16", "raw_input_contents"]),
    "fewer values than the shape": (typed("fp32_contents", [1]), ["'x'", "[2]", "1"]),
    "more values than the shape": (typed("fp32_contents", [1, 2, 3]), ["'x'", "[2]", "3"]),
    "reserved parameter": (
        changed(raw(), lambda m: setattr(m.parameters["triton_mine"], "bool_param", True)), ["triton_mine"],
    ),
    "parameter without a value": (changed(raw(), lambda m: m.parameters["mine"].SetInParent()), ["'mine'"]),
    "negative timeout": (
        changed(raw(), lambda m: setattr(m.parameters["timeout"], "int64_param", -1)), ["timeout", "-1"],
    ),
    "timeout in words": (
        changed(raw(), lambda m: setattr(m.parameters["timeout"], "string_param", "5")), ["timeout", "'5'"],
    ),
    "negative priority": (
        changed(raw(), lambda m: setattr(m.parameters["priority"], "int64_param", -1)), ["priority", "-1"],
    ),
    "sequence that begins with a number": (
        changed(raw(), lambda m: setattr(m.parameters["sequence_start"], "int64_param", 1)), ["sequence_start"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_message_of_the_wrong_form_is_refused_by_name(server: Server, case: str) -> None:
    message, words = CASES[case]
    text = refused(server, message, "not found" if case == "nothing at all" else "invalid")
    for word in words:
        assert word in text


@pytest.mark.parametrize("datatype", ["INT8", "INT16", "UINT8", "UINT16"])
@pytest.mark.parametrize("where", ["below", "above", "far above"])
def test_a_typed_integer_out_of_range_is_refused_and_not_wrapped(server: Server, datatype: str, where: str) -> None:
    info = np.iinfo(datatype.lower())
    if where == "below" and info.min == 0:
        where = "just above"
    value = {"below": info.min - 1, "above": info.max + 1, "far above": 2**31 - 1, "just above": info.max + 2}[where]
    field = "uint_contents" if datatype.startswith("U") else "int_contents"
    text = refused(server, typed(field, [0, value], f"identity_{datatype.lower()}", datatype, (1, 2)))
    for word in ("'x'", str(value), datatype, str(info.max)):
        assert word in text


@pytest.mark.parametrize(
    ("model", "datatype", "shape", "data"),
    [
        ("identity_fp32", "FP32", (4, 2**60 + 2), bytes(32)),  # 4 bytes an element: 32, modulo 2**64
        ("identity_fp32", "FP32", (4, 2**60 + 2), bytes(4)),
        ("identity_fp32", "FP32", (2**32, 2**32), b""),
        ("cube", "FP32", (2**33, 2**31, 4), b""),
        ("cube", "FP32", (2**63 - 1,) * 3, bytes(4)),
        ("identity_bytes", "BYTES", (2**32, 2**32), b""),
        ("identity_fp32", "FP32", (0, 2**63 - 1), b""),
    ],
)
def test_a_shape_whose_size_wraps_around_is_refused(
    server: Server, model: str, datatype: str, shape: tuple[int, ...], data: bytes
) -> None:
    assert "'x'" in refused(server, raw(model, datatype, shape, data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"abcd", ["element 0", "offset 0"]),
        (b"\xff\xff\xff\xff", ["element 0", "4294967295"]),
        (struct.pack("<I", 3) + b"abc" + b"\1\0\0", ["element 1", "offset 7"]),
        (struct.pack("<I", 0), ["2", "1"]),
        (struct.pack("<I", 0) * 3, ["2", "3"]),
        (b"", ["2", "0"]),
    ],
)
@pytest.mark.parametrize("model", ["echo_strings", "identity_bytes"])
def test_strings_whose_lengths_lie(server: Server, model: str, data: bytes, words: list[str]) -> None:
    text = refused(server, raw(model, "BYTES", (2,) if model == "echo_strings" else (1, 2), data))
    for word in ("'x'", *words):
        assert word in text


@pytest.mark.parametrize("place", ["inputs", "outputs"])
def test_shared_memory_is_refused_and_says_so(server: Server, place: str) -> None:
    message = raw()
    message.outputs.add(name="y")
    getattr(message, place)[0].parameters["shared_memory_region"].string_param = "x"
    getattr(message, place)[0].parameters["shared_memory_byte_size"].int64_param = 8
    assert "shared memory" in refused(server, message, "unsupported")


def test_classification_is_refused_and_says_so(server: Server) -> None:
    message = raw()
    message.outputs.add(name="y").parameters["classification"].int64_param = 1
    assert "classification" in refused(server, message, "unsupported")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x00" * 100,
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01echo",  # a length of 2**64
        b"\x0a\x10echo",  # a length beyond the end
        b"\x0a\x02\xff\xfe",  # a name that is no UTF-8
        raw().SerializeToString()[:-1],
        raw().SerializeToString() + b"\x3a",
        b"\x3a\x80\x80\x80\x80\x10" + bytes(1 << 16),
        b"\x2b" * 10_000,  # groups in groups
    ],
    ids=lambda data: repr(data[:12]),
)
@pytest.mark.parametrize("method", [INFER, "/inference.GRPCInferenceService/ModelMetadata"])
def test_bytes_that_are_no_message_are_the_clients_fault(server: Server, method: str, data: bytes) -> None:
    with grpc_channel(server) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(method, bytes, bytes)(data)
    assert refusal(raised.value).meaning in ("invalid", "not found"), raised.value


def damage(source: random.Random, data: bytearray) -> None:
    """Change, drop, insert or repeat a few bytes at the beginning, where everything but the tensors is."""
    for _ in range(source.randrange(1, 6)):
        place = source.randrange(min(len(data), 120))
        end = place + source.randrange(1, 20)
        data[place:end] = source.choice(
            [source.randbytes(end - place), b"", source.randbytes(3) + data[place:end], data[place:end] * 2]
        )


def test_random_changes_to_a_message_never_harm(server: Server) -> None:
    """Every answer is a success or the client's fault: the server itself never fails."""
    source = random.Random(11)
    good = [simple(), raw(), raw(shape=(20_000,), data=bytes(80_000))]  # the last is long enough to be cut by hand
    with grpc_channel(server) as channel:
        call = channel.unary_unary(INFER, bytes, bytes)
        for index in range(600):
            data = bytearray(good[index % 3].SerializeToString())
            damage(source, data)
            try:
                call(bytes(data))
            except grpc.RpcError as error:
                assert refusal(error).meaning in ("invalid", "not found", "unsupported"), (error, bytes(data[:200]))


def test_a_long_error_still_arrives_whole_enough_to_read(server: Server) -> None:
    """Metadata of gRPC holds 8 KiB: a longer text must not become another error."""
    text = refused(server, raw(model="\u00fc" * 100_000), "not found")
    assert text.startswith("Request for unknown model: '\u00fc\u00fc\u00fc")


def test_a_message_may_be_larger_than_grpcs_4_mib(server: Server) -> None:
    data = np.arange(5 << 20, dtype=np.float32).tobytes()
    with grpc_stub(server) as stub:
        answer = stub.ModelInfer(raw(shape=(5 << 20,), data=data))
    assert answer.raw_output_contents[0] == data
