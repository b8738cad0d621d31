"""REST bodies that no client would send: 400 (or what fits) with the field and the mend, and the server goes on."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import pytest

from support.rest import binary_body, http_call, post_infer, rest_error
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

GOOD: Final = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
TWO_FLOATS: Final = struct.pack("<2f", 1, 2)
DEEP: Final = 250_000


#: Half of a pair of surrogates, which is no text, in every place that an error's text or an answer might repeat.
HALF_PAIRS: Final = {
    "name of an input": {"inputs": [GOOD | {"name": "\ud800", "data": [float("nan"), 1]}]},
    "name of an input, with nothing wrong in its data": {"inputs": [GOOD | {"name": "\udfff"}]},
    "name of an output": {"inputs": [GOOD | {"data": [float("nan"), 1]}], "outputs": [{"name": "y\ud800"}]},
    "id": {"inputs": [GOOD | {"data": [float("inf"), 1]}], "id": "\ud800"},
    "datatype": {"inputs": [GOOD | {"datatype": "\ud800", "data": [float("nan"), 1]}]},
    "parameter": {"inputs": [GOOD | {"data": [float("nan"), 1]}], "parameters": {"\ud800": "\ud800"}},
    "string": {"inputs": [GOOD | {"datatype": "BYTES", "data": ["\ud800", "NaN"]}]},
}


@pytest.mark.parametrize("case", HALF_PAIRS)
def test_half_a_pair_of_surrogates_is_answered_wherever_it_is(server: Server, case: str) -> None:
    assert rest_error(server, "echo", json.dumps(HALF_PAIRS[case]).encode())


def test_a_pair_of_surrogates_is_text(server: Server) -> None:
    body = {"inputs": [GOOD | {"data": [float("inf"), 1]}], "id": "\U0001f600"}
    reply = post_infer(server, "echo", json.dumps(body).encode())
    assert json.loads(reply.body)["id"] == "\U0001f600"


def test_an_error_repeats_no_megabytes(server: Server) -> None:
    text = rest_error(server, "echo", {"inputs": [GOOD | {"name": "n" * 100_000}]})
    assert len(text) < 3000
    reply = http_call(server, "GET", "/v2/models/echo/versions/" + "9" * 5000)
    assert len(reply.error) < 3000


# --- the body --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"null", b"[]", b'"x"', b"5", b"true", b"{", b'{"inputs": [', b"{}}", b"{'inputs': []}", b"\x00",
     b"\xff", b"\xef\xbb\xbf{}", b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b"NaN", b"Infinity", b"-",
     b"1" * 100_000,
     b'{"inputs": [NaN]}', b'{"inputs": NaN}', b"{\"inputs\": [{\"name\": \"\\ud800\"}]}"],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_a_body_that_is_no_request(server: Server, body: bytes) -> None:
    text = rest_error(server, "echo", body)
    assert "JSON" in text or "request" in text
    assert len(text) < 1000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ["inputs"]),
        ({"inputs": {}}, ["inputs"]),
        ({"inputs": None}, ["inputs"]),
        ({"inputs": []}, ["missing", "x"]),
        ({"inputs": [5]}, ["inputs"]),
        ({"inputs": [None]}, ["inputs"]),
        ({"inputs": [[GOOD]]}, ["inputs"]),
        ({"inputs": [{}]}, ["inputs[0]", "name"]),
        ({"inputs": [GOOD, GOOD]}, ["'x'", "twice"]),
        ({"inputs": [GOOD], "id": 5}, ["id"]),
        ({"inputs": [GOOD], "id": None}, ["id"]),
        ({"inputs": [GOOD], "id": ["a"]}, ["id"]),
        ({"inputs": [GOOD], "outputs": {}}, ["outputs"]),
        ({"inputs": [GOOD], "outputs": ["y"]}, ["outputs"]),
        ({"inputs": [GOOD], "outputs": [{}]}, ["outputs[0]", "name"]),
        ({"inputs": [GOOD], "outputs": [{"name": 5}]}, ["outputs[0].name"]),
        ({"inputs": [GOOD], "outputs": [{"name": ""}]}, ["''"]),
        ({"inputs": [GOOD], "outputs": [{"name": "y", "parameters": 5}]}, ["outputs[0].parameters"]),
        ({"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]}, ["binary_data", "bool"]),
        ({"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, ["binary_data", "bool"]),
        ({"inputs": [GOOD], "parameters": []}, ["parameters"]),
        ({"inputs": [GOOD], "parameters": "x"}, ["parameters"]),
        ({"inputs": [GOOD], "parameters": {"binary_data_output": "true"}}, ["binary_data_output", "bool"]),
        ({"inputs": [GOOD], "parameters": {"timeout": -1}}, ["timeout", "-1"]),
        ({"inputs": [GOOD], "parameters": {"timeout": 1.5}}, ["timeout", "1.5"]),
        ({"inputs": [GOOD], "parameters": {"timeout": 1e30}}, ["timeout", "1e+30"]),
        ({"inputs": [GOOD], "parameters": {"timeout": "5"}}, ["timeout", "'5'"]),
        ({"inputs": [GOOD], "parameters": {"timeout": True}}, ["timeout", "True"]),
        ({"inputs": [GOOD], "parameters": {"timeout": 2**64}}, ["timeout", str(2**64)]),
        ({"inputs": [GOOD], "parameters": {"priority": -1}}, ["priority", "-1"]),
        ({"inputs": [GOOD], "parameters": {"priority": "high"}}, ["priority", "high"]),
        ({"inputs": [GOOD], "parameters": {"triton_enable_empty": True}}, ["triton_enable_empty", "reserved"]),
        ({"inputs": [GOOD], "parameters": {"mine": [1]}}, ["'mine'"]),
        ({"inputs": [GOOD], "parameters": {"mine": {"a": 1}}}, ["'mine'"]),
        ({"inputs": [GOOD], "parameters": {"mine": None}}, ["'mine'"]),
        ({"inputs": [GOOD], "parameters": {"mine": 10**30}}, ["'mine'"]),
        ({"inputs": [GOOD], "parameters": {"mine": -(10**30)}}, ["'mine'"]),
        ({"inputs": [GOOD], "parameters": {"sequence_id": -1}}, ["sequence_id", "-1"]),
        ({"inputs": [GOOD], "parameters": {"sequence_start": "true"}}, ["sequence_start", "true"]),
    ],
    ids=repr,
)  # fmt: skip
def test_a_field_of_the_wrong_kind_is_named(server: Server, fields: dict[str, Any], words: list[str]) -> None:
    text = rest_error(server, "echo", fields)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 5}, ["inputs[0].name"]),
        ({"name": None}, ["inputs[0].name"]),
        ({"name": ""}, ["''"]),
        ({"shape": None}, ["inputs[0].shape"]),
        ({"shape": 2}, ["inputs[0].shape"]),
        ({"shape": "2"}, ["inputs[0].shape"]),
        ({"shape": {}}, ["inputs[0].shape"]),
        ({"shape": ["2"]}, ["inputs[0].shape"]),
        ({"shape": [2.0]}, ["inputs[0].shape"]),
        ({"shape": [1.5]}, ["inputs[0].shape"]),
        ({"shape": [True]}, ["inputs[0].shape"]),
        ({"shape": [None]}, ["inputs[0].shape"]),
        ({"shape": [[2]]}, ["inputs[0].shape"]),
        ({"shape": [-1]}, ["'x'", "-1"]),
        ({"shape": [-(2**63)]}, ["'x'", str(-(2**63))]),
        ({"shape": [2**63]}, ["'x'", str(2**63)]),
        ({"shape": [10**30]}, ["'x'", str(10**30)]),
        ({"shape": [1] * 1000}, ["'x'"]),
        ({"datatype": None}, ["inputs[0].datatype"]),
        ({"datatype": 5}, ["inputs[0].datatype"]),
        ({"datatype": ""}, ["'x'", "''", "FP32"]),
        ({"datatype": "float32"}, ["'x'", "float32", "FP32"]),
        ({"datatype": "FLOAT"}, ["'x'", "FLOAT", "FP32"]),
        ({"datatype": "fp32"}, ["'x'", "fp32", "FP32"]),
        ({"datatype": "FP8"}, ["'x'", "FP8", "FP32"]),
        ({"datatype": "STRING"}, ["'x'", "STRING", "BYTES"]),
        ({"datatype": "FP16"}, ["'x'", "FP16", "binary"]),
        ({"datatype": "BF16"}, ["'x'", "BF16", "binary"]),
        ({"data": None}, ["'x'", "data"]),
        ({"data": 5}, ["'x'", "data"]),
        ({"data": "ab"}, ["'x'", "data"]),
        ({"data": {}}, ["'x'", "data"]),
        ({"data": []}, ["'x'", "[2]", "2", "0"]),
        ({"data": [1]}, ["'x'", "[2]", "2", "1"]),
        ({"data": [1, 2, 3]}, ["'x'", "[2]", "2", "3"]),
        ({"data": [[1, 2], [3]]}, ["'x'", "[2]", "3"]),
        ({"data": [1, "2"]}, ["'x'", "FP32"]),
        ({"data": [1, True]}, ["'x'", "FP32"]),
        ({"data": [1, None]}, ["'x'", "FP32"]),
        ({"data": [1, {}]}, ["'x'", "FP32"]),
        ({"data": [[1], {}]}, ["'x'", "FP32"]),
        ({"data": [1, 10**400]}, ["'x'"]),
        ({"parameters": 5}, ["inputs[0].parameters"]),
        ({"parameters": {"binary_data_size": 8}}, ["'x'", "data", "binary_data_size"]),
    ],
    ids=repr,
)  # fmt: skip
def test_an_input_that_makes_no_sense_is_named(server: Server, change: dict[str, Any], words: list[str]) -> None:
    text = rest_error(server, "echo", {"inputs": [GOOD | change]})
    for word in words:
        assert word in text


@pytest.mark.parametrize("field", ["name", "shape", "datatype", "data"])
def test_an_input_without_a_field_is_told_which(server: Server, field: str) -> None:
    text = rest_error(server, "echo", {"inputs": [{key: value for key, value in GOOD.items() if key != field}]})
    assert field in text


@pytest.mark.parametrize("depth", [101, 120, DEEP])
@pytest.mark.parametrize("place", ['{"name": "x", "shape": [1], "datatype": "FP32", "data": %s}', "%s"])
def test_data_nested_too_deep_is_refused_at_the_limit(server: Server, depth: int, place: str) -> None:
    body = '{"inputs": [' + place % ("[" * depth + "1" + "]" * depth) + "]}"
    text = rest_error(server, "echo", body.encode())
    assert place == "%s" or "100" in text


@pytest.mark.parametrize(
    "place", ['{"inputs": [], "parameters": {"a": %s}}', '{"inputs": [], "unknown": %s}', '{"id": %s}']
)
def test_nesting_is_bounded_everywhere(server: Server, place: str) -> None:
    rest_error(server, "echo", (place % ("[" * DEEP + "]" * DEEP)).encode())


# --- what is not offered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [{"shared_memory_region": "x", "shared_memory_byte_size": 8}])
def test_shared_memory_is_refused_and_says_so(server: Server, parameters: dict[str, Any]) -> None:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": parameters}
    assert "shared memory" in rest_error(server, "echo", {"inputs": [tensor]}, status=501)
    output = {"name": "y", "parameters": parameters}
    assert "shared memory" in rest_error(server, "echo", {"inputs": [GOOD], "outputs": [output]}, status=501)


def test_classification_is_refused_and_says_so(server: Server) -> None:
    output = {"name": "y", "parameters": {"classification": 2}}
    assert "classification" in rest_error(server, "echo", {"inputs": [GOOD], "outputs": [output]}, status=501)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_json_form_in_an_answer(server: Server, datatype: str) -> None:
    tensor = {"name": "x", "shape": [1, 1], "datatype": datatype, "parameters": {"binary_data_size": 2}}
    body, headers = binary_body({"inputs": [tensor]}, b"\0\0")
    text = rest_error(server, f"identity_{datatype.lower()}", body, headers)
    assert "'y'" in text
    assert "binary_data" in text


def test_bytes_that_are_no_text_have_no_json_form_in_an_answer(server: Server) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}
    body, headers = binary_body({"inputs": [tensor]}, struct.pack("<I", 1) + b"\xff")
    text = rest_error(server, "echo_strings", body, headers)
    assert "'y'" in text
    assert "binary_data" in text


def test_json_over_the_limit_is_413(server: Server) -> None:
    body = json.dumps({"inputs": [GOOD], "unknown": "x" * (64 << 20)}).encode()
    text = rest_error(server, "echo", body, status=413)
    assert str(64 << 20) in text
    assert "max_json_bytes" in text
