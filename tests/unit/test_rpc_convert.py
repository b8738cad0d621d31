"""protobuf to the gateway's request and back: every form of contents and parameters, and every malformed one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2 as theirs

from backends.spec import ITEM_SIZE
from backends.tensor import Tensor, array_to_bytes, from_numpy
from gateway.errors import InvalidRequest, Unsupported
from gateway.inference.request import InferRequest, InferResponse
from gateway.proto.inference_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from gateway.rpc import convert
from gateway.rpc.split import THRESHOLD

Input = ModelInferRequest.InferInputTensor


def request(*inputs: Input, raw: list[bytes] | None = None, **fields: Any) -> InferRequest:
    message = ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw or [], **fields)
    return convert.decode(message.SerializeToString())


def tensor(name: str = "a", datatype: str = "FP32", shape: tuple[int, ...] = (2,), **contents: Any) -> Input:
    return Input(name=name, datatype=datatype, shape=shape, contents=contents or None)


def response(*outputs: Tensor, **fields: Any) -> InferResponse:
    return InferResponse("m", "3", list(outputs), lambda: None, **fields)


# --- requests ---


def test_a_raw_request_with_everything() -> None:
    found = request(
        tensor("a"),
        tensor("b", "INT64", ()),
        raw=[b"\0" * 8, b"\1" * 8],
        model_version="3",
        id="req-1",
        outputs=[ModelInferRequest.InferRequestedOutputTensor(name=name) for name in ("y", "x")],
        parameters={
            "timeout": InferParameter(int64_param=1500),
            "priority": InferParameter(uint64_param=2),
            "sequence_id": InferParameter(string_param="s"),
            "sequence_start": InferParameter(bool_param=True),
            "temperature": InferParameter(double_param=0.5),
            "top": InferParameter(int64_param=-3),
            "triton_enable_empty_final_response": InferParameter(bool_param=True),
        },
    )
    assert found == InferRequest(
        model="m",
        version="3",
        inputs=[Tensor("a", "FP32", (2,), b"\0" * 8), Tensor("b", "INT64", (), b"\1" * 8)],
        outputs=("y", "x"),
        id="req-1",
        parameters={"sequence_id": "s", "sequence_start": True, "temperature": 0.5, "top": -3},
        priority=2,
        timeout_us=1500,
    )


def test_the_least_request() -> None:
    assert request() == InferRequest("m", "", [])


@pytest.mark.parametrize("size", [64, THRESHOLD // 2, THRESHOLD * 2], ids=["small", "medium", "cut by hand"])
def test_a_request_of_the_real_client(size: int) -> None:
    values = np.arange(size // 4, dtype=np.float32)
    given, text = client.InferInput("a", [size // 4], "FP32"), client.InferInput("t", [2], "BYTES")
    given.set_data_from_numpy(values)
    text.set_data_from_numpy(np.array([b"", b"\xff\0x"], dtype=object))
    message = theirs.ModelInferRequest(model_name="m")
    for item in (given, text):
        message.inputs.append(item._get_tensor())
        message.raw_input_contents.append(item._get_content())
    found = convert.decode(message.SerializeToString())
    assert found.inputs[0].numpy().tolist() == values.tolist()
    assert found.inputs[1].numpy().tolist() == [b"", b"\xff\0x"]


def test_a_large_tensor_is_a_view_of_the_bytes_that_came() -> None:
    raw = ModelInferRequest(
        model_name="m", inputs=[tensor(shape=(THRESHOLD,))], raw_input_contents=[b"\0" * THRESHOLD * 4]
    ).SerializeToString()
    (found,) = convert.decode(raw).inputs
    assert isinstance(found.data, memoryview)
    assert found.data.obj is raw


TYPED: list[tuple[str, str, list[Any], Any]] = [
    ("BOOL", "bool_contents", [True, False], np.bool_),
    ("INT8", "int_contents", [-128, 127], np.int8),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1], np.int16),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1], np.int32),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], np.int64),
    ("UINT8", "uint_contents", [0, 255], np.uint8),
    ("UINT16", "uint_contents", [0, 2**16 - 1], np.uint16),
    ("UINT32", "uint_contents", [0, 2**32 - 1], np.uint32),
    ("UINT64", "uint64_contents", [1, 2**64 - 1], np.uint64),
    ("FP32", "fp32_contents", [1.5, float("-inf")], np.float32),
    ("FP64", "fp64_contents", [1e300, float("nan")], np.float64),
]


@pytest.mark.parametrize(("datatype", "field", "values", "dtype"), TYPED)
def test_typed_contents_become_the_binary_form(datatype: str, field: str, values: list[Any], dtype: Any) -> None:
    (found,) = request(tensor("a", datatype, (1, 2), **{field: values})).inputs
    assert found == Tensor("a", datatype, (1, 2), np.array(values, dtype=dtype).tobytes())


def test_typed_bytes_get_their_lengths() -> None:
    elements = [b"", b"\xff\0", "é".encode()]
    (found,) = request(tensor("a", "BYTES", (3,), bytes_contents=elements)).inputs
    assert found.data == array_to_bytes(np.array(elements, dtype=object))
    assert found.numpy().tolist() == elements


@pytest.mark.parametrize("datatype", list(ITEM_SIZE))
def test_a_tensor_without_elements_needs_no_contents(datatype: str) -> None:
    bare, empty = tensor("a", datatype, (0, 3)), Input(name="b", datatype=datatype, shape=[0], contents={})
    assert [found.data for found in request(bare, empty).inputs] == [b"", b""]
    assert request(tensor("a", datatype, (0,)), raw=[b""]).inputs[0].data == b""


def output(name: str, **parameters: InferParameter) -> ModelInferRequest.InferRequestedOutputTensor:
    return ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters)


RAW8 = b"\0" * 8
HUGE = (1 << 62,) * 3


@pytest.mark.parametrize(
    ("inputs", "raw", "said"),
    [
        ([tensor()], [], ["'a'", "[2] needs 2", "has 0"]),
        ([tensor(), tensor("b")], [RAW8], ["'b' has no data", "1 entries for 2"]),
        ([tensor()], [RAW8, RAW8], ["2 entries for 1", "surplus"]),
        ([], [RAW8], ["1 entries for 0", "surplus"]),
        ([tensor(), tensor("b", fp32_contents=[1, 2])], [RAW8], ["'b' has contents", "one form"]),
        ([tensor(fp32_contents=[1, 2])], [RAW8], ["'a' has contents", "one form"]),
        ([tensor(), tensor()], [RAW8, RAW8], ["'a' is given twice"]),
        ([tensor("")], [RAW8], ["input 0 has no name"]),
        ([tensor(datatype="")], [RAW8], ["'a'", "unknown datatype ''", "FP32"]),
        ([tensor(datatype="int64")], [RAW8], ["'a'", "unknown datatype 'int64'", "INT64"]),
        ([tensor(datatype="TYPE_FP32")], [RAW8], ["unknown datatype 'TYPE_FP32'"]),
        ([tensor(shape=(-1, 2))], [RAW8], ["'a'", "[-1, 2] has a negative dimension"]),
        ([tensor(shape=(-1, 2), fp32_contents=[1, 2])], [], ["'a'", "[-1, 2] has a negative dimension"]),
        ([tensor(shape=(1,) * 65)], [RAW8], ["'a'", "65 dimensions", "64"]),
        ([tensor(shape=HUGE, fp32_contents=[1])], [], ["'a'", f"needs {1 << 186}", "has 1"]),
        ([tensor(fp32_contents=[1, 2, 3])], [], ["'a'", "needs 2", "has 3"]),
        ([tensor(datatype="INT64", int_contents=[1, 2])], [], ["'a'", "int_contents", "INT64", "int64_contents"]),
        ([tensor(fp64_contents=[1, 2])], [], ["'a'", "fp64_contents", "FP32", "fp32_contents"]),
        ([tensor(fp32_contents=[1, 2], fp64_contents=[1, 2])], [], ["'a'", "fp32_contents, fp64_contents"]),
        ([tensor(datatype="FP16", fp32_contents=[1, 2])], [], ["'a'", "FP16", "raw_input_contents"]),
        ([tensor(datatype="BF16", uint_contents=[1, 2])], [], ["'a'", "BF16", "raw_input_contents"]),
        ([tensor(datatype="INT8", int_contents=[0, 128])], [], ["'a'", "128 at index 1", "INT8", "-128 to 127"]),
        ([tensor(datatype="INT16", int_contents=[-32769, 0])], [], ["'a'", "-32769 at index 0", "-32768 to 32767"]),
        ([tensor(datatype="UINT8", uint_contents=[256, 0])], [], ["'a'", "256 at index 0", "UINT8", "0 to 255"]),
        ([tensor(datatype="UINT16", uint_contents=[0, 70000])], [], ["'a'", "70000 at index 1", "65535"]),
    ],
)
def test_malformed_inputs_are_refused_by_name(inputs: list[Input], raw: list[bytes], said: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(*inputs, raw=raw)
    assert all(part in str(caught.value) for part in said), str(caught.value)


@pytest.mark.parametrize(
    ("key", "parameter", "said"),
    [
        ("timeout", InferParameter(int64_param=-1), "integer from 0"),
        ("timeout", InferParameter(string_param="5"), "'5'"),
        ("timeout", InferParameter(bool_param=True), "True"),
        ("timeout", InferParameter(double_param=1e30), "1e+30"),
        ("priority", InferParameter(int64_param=-1), "-1"),
        ("sequence_id", InferParameter(int64_param=-1), "-1"),
        ("sequence_id", InferParameter(double_param=1), "1.0"),
        ("sequence_start", InferParameter(string_param="true"), "bool"),
        ("sequence_end", InferParameter(int64_param=1), "bool"),
        ("triton_final_response", InferParameter(bool_param=True), "reserved"),
        ("mine", InferParameter(), "no value"),
    ],
)
def test_malformed_parameters_are_refused_by_name(key: str, parameter: InferParameter, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(parameters={key: parameter})
    assert f"parameter {key!r}" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("key", "parameter"),
    [
        ("classification", InferParameter(int64_param=3)),
        ("shared_memory_region", InferParameter(string_param="r")),
        ("shared_memory_byte_size", InferParameter(int64_param=8)),
    ],
)
def test_extensions_that_change_the_answer_are_refused(key: str, parameter: InferParameter) -> None:
    with pytest.raises(Unsupported, match="output 'y'"):
        request(outputs=[output("y", **{key: parameter})])
    if key != "classification":
        with pytest.raises(Unsupported, match="input 'a'"):
            request(Input(name="a", datatype="FP32", shape=[2], parameters={key: parameter}))


def test_parameters_of_tensors_that_change_nothing_are_let_pass() -> None:
    note = {"note": InferParameter(string_param="x")}
    given = Input(name="a", datatype="FP32", shape=[2], parameters=note)
    found = request(given, raw=[RAW8], outputs=[output("y", **note)])
    assert (found.inputs, found.outputs) == ([Tensor("a", "FP32", (2,), RAW8)], ("y",))


def test_an_output_requested_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="output 'y' is requested twice"):
        request(outputs=[output("y"), output("x"), output("y")])


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"rubbish" * 8000])
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="no ModelInferRequest"):
        convert.decode(raw)


def test_a_shape_of_a_hundred_thousand_dimensions_costs_no_arithmetic() -> None:
    with pytest.raises(InvalidRequest, match="100000 dimensions"):
        request(Input(name="a", datatype="FP32", shape=[1 << 62] * 100_000, contents={"fp32_contents": [1]}))


# --- responses ---


def test_a_response_is_raw_and_in_order() -> None:
    given = response(
        from_numpy("x", np.array([[1.0, 2.0]], dtype=np.float32)),
        from_numpy("empty", np.empty((0, 3), dtype=np.int64)),
        from_numpy("text", np.array([b"", b"ab"], dtype=object)),
        id="req-1",
        parameters={"flag": True, "n": -1, "big": 2**64 - 1, "f": 0.5, "s": "é"},
    )
    found = ModelInferResponse.FromString(convert.encode(given))
    assert (found.model_name, found.model_version, found.id) == ("m", "3", "req-1")
    heads = [(o.name, o.datatype, list(o.shape)) for o in found.outputs]
    assert heads == [("x", "FP32", [1, 2]), ("empty", "INT64", [0, 3]), ("text", "BYTES", [2])]
    assert list(found.raw_output_contents) == [
        np.array([1.0, 2.0], dtype="<f4").tobytes(), b"", b"\0\0\0\0\2\0\0\0ab",
    ]  # fmt: skip
    assert {key: getattr(p, p.WhichOneof("parameter_choice") or "") for key, p in found.parameters.items()} == {
        "flag": True, "n": -1, "big": 2**64 - 1, "f": 0.5, "s": "é",
    }  # fmt: skip
    assert found.parameters["big"].WhichOneof("parameter_choice") == "uint64_param"


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 3 << 20])
def test_the_real_client_reads_outputs_of_every_size(size: int) -> None:
    values = np.arange(size, dtype=np.uint8)
    raw = convert.encode(response(from_numpy("y", values), from_numpy("z", values[::-1])))
    result = client.InferResult(theirs.ModelInferResponse.FromString(raw))
    assert result.as_numpy("y").tolist() == values.tolist()
    assert result.as_numpy("z").tolist() == values[::-1].tolist()


class Claims:
    """A buffer that says it is large."""

    def __len__(self) -> int:
        return convert.MAX_ANSWER + 1


def test_an_answer_over_the_limit_of_protobuf_is_refused() -> None:
    with pytest.raises(Unsupported, match=f"{convert.MAX_ANSWER + 1} bytes.*at most {convert.MAX_ANSWER}"):
        convert.encode(response(Tensor("y", "UINT8", (1,), Claims())))
