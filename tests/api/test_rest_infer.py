"""The forms that an inference request may take over REST, beyond what one client of the protocol sends."""

from __future__ import annotations

import gzip
import http.client
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from support.rest import Reply, binary_body, connect, http_call, post_infer, read_all
from support.server import Server

ONES = [1] * 16
SIMPLE_INPUTS = [{"name": name, "shape": [1, 16], "datatype": "INT32", "data": ONES} for name in ("INPUT0", "INPUT1")]
VECTOR = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}
BINARY_VECTOR = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
TWO_FLOATS = struct.pack("<2f", 1, 2)


def forms(reply: Reply) -> dict[str, str]:
    """Output -> the form in which it came; the binary part has to hold exactly what the head says."""
    assert reply.status == 200, reply
    length = reply.headers.get("inference-header-content-length")
    head = json.loads(reply.body[: int(length)] if length else reply.body)
    assert reply.headers["content-type"] == ("application/octet-stream" if length else "application/json")
    sizes = [output.get("parameters", {}).get("binary_data_size") for output in head["outputs"]]
    assert sum(size or 0 for size in sizes) == (len(reply.body) - int(length) if length else 0)
    assert all(("data" in output) == (size is None) for output, size in zip(head["outputs"], sizes, strict=True))
    return {
        output["name"]: "json" if size is None else "binary"
        for output, size in zip(head["outputs"], sizes, strict=True)
    }


# --- the form of the outputs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "outputs", "expected"),
    [
        (None, None, {"OUTPUT0": "json", "OUTPUT1": "json"}),
        ({}, [], {"OUTPUT0": "json", "OUTPUT1": "json"}),
        ({"binary_data_output": True}, None, {"OUTPUT0": "binary", "OUTPUT1": "binary"}),
        ({"binary_data_output": False}, None, {"OUTPUT0": "json", "OUTPUT1": "json"}),
        ({"binary_data_output": True}, [{"name": "OUTPUT0"}], {"OUTPUT0": "json"}),
        (
            {"binary_data_output": True},
            [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}],
            {"OUTPUT0": "binary", "OUTPUT1": "json"},
        ),
        (
            None,
            [{"name": "OUTPUT1"}, {"name": "OUTPUT0", "parameters": {"binary_data": True}}],
            {"OUTPUT1": "json", "OUTPUT0": "binary"},
        ),
        (
            {"binary_data_output": True},
            [{"name": "OUTPUT0", "parameters": {"binary_data": False}}],
            {"OUTPUT0": "json"},
        ),
    ],
)
def test_listing_outputs_turns_the_binary_default_off_for_them(
    server: Server, parameters: Any, outputs: Any, expected: dict[str, str]
) -> None:
    body = {"inputs": SIMPLE_INPUTS, "parameters": parameters, "outputs": outputs}
    found = forms(post_infer(server, "simple", {key: value for key, value in body.items() if value is not None}))
    assert list(found.items()) == list(expected.items())


def test_the_answer_holds_the_protocols_keys_and_no_others(server: Server) -> None:
    answer = post_infer(server, "echo", {"id": "7", "inputs": [VECTOR]}).json
    assert answer == {
        "id": "7",
        "model_name": "echo",
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}],
    }


def test_without_an_id_the_answer_has_none(server: Server) -> None:
    assert "id" not in post_infer(server, "echo", {"inputs": [VECTOR]}).json


def test_an_empty_binary_output_is_told_in_plain_json(server: Server) -> None:
    head = {"inputs": [VECTOR | {"shape": [0], "data": []}], "parameters": {"binary_data_output": True}}
    reply = post_infer(server, "echo", head)
    assert forms(reply) == {"y": "binary"}
    assert reply.json["outputs"][0] == {
        "name": "y", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0},
    }  # fmt: skip


def test_nan_and_infinities_are_written_as_the_tokens_that_clients_read(server: Server) -> None:
    body = b'{"inputs": [{"name": "x", "shape": [4], "datatype": "FP32", "data": [NaN, Infinity, -Infinity, 1]}]}'
    reply = post_infer(server, "echo", body)
    assert b"[NaN, Infinity, -Infinity, 1.0]" in reply.body or b"[NaN,Infinity,-Infinity,1.0]" in reply.body
    found = reply.json["outputs"][0]["data"]
    assert np.array_equal(found, [np.nan, np.inf, -np.inf, 1], equal_nan=True)


# --- the form of the inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        "[1, 2, 3, 4, 5, 6]",
        "[[1, 2, 3], [4, 5, 6]]",
        "[[[1, 2, 3], [4, 5, 6]]]",
        "[[1, 2], [3, 4], [5, 6]]",
        "[[1], 2, [[3]], [4, [5]], 6]",
        "[" * 90 + "1, 2, 3, 4, 5, 6" + "]" * 90,
        " [\n[1.0,2.0 ,3e0],\t[4,5,60E-1] ] ",
    ],
)
def test_data_may_be_flat_or_nested(server: Server, data: str) -> None:
    body = f'{{"inputs": [{{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": {data}}}]}}'
    answer = post_infer(server, "identity_fp32", body.encode()).json
    assert answer["outputs"][0]["data"] == [1, 2, 3, 4, 5, 6]


def test_unknown_keys_are_ignored(server: Server) -> None:
    body = {"inputs": [VECTOR | {"colour": "red"}], "outputs": [{"name": "y", "x": 1}], "more": {"a": [1]}}
    assert post_infer(server, "echo", body).json["outputs"][0]["data"] == [1, 2]


def test_json_and_binary_inputs_may_be_mixed(server: Server) -> None:
    binary = {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
    body, headers = binary_body({"inputs": [binary, SIMPLE_INPUTS[0]]}, struct.pack("<16i", *range(16)))
    answer = post_infer(server, "simple", body, headers).json
    assert [output["data"] for output in answer["outputs"]] == [
        [1 + value for value in range(16)],
        [1 - value for value in range(16)],
    ]


def test_binary_tensors_follow_in_the_order_of_the_inputs(server: Server) -> None:
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
        for name in ("INPUT1", "INPUT0")
    ]
    body, headers = binary_body({"inputs": inputs}, struct.pack("<16i", *ONES), struct.pack("<16i", *range(16)))
    answer = post_infer(server, "simple", body, headers).json
    assert answer["outputs"][1]["data"] == [value - 1 for value in range(16)]


@pytest.mark.parametrize(
    "value", [str(len(json.dumps({"inputs": [VECTOR]}))), "0" * 12 + str(len(json.dumps({"inputs": [VECTOR]})))]
)
def test_a_header_length_that_covers_the_whole_body_is_plain_json(server: Server, value: str) -> None:
    reply = post_infer(server, "echo", {"inputs": [VECTOR]}, {"Inference-Header-Content-Length": value})
    assert forms(reply) == {"y": "json"}


# --- raw binary requests: the body is the only input -----------------------------------------------------------------

RAW = {"Inference-Header-Content-Length": "0"}


@pytest.mark.parametrize("values", [[], [1.5], [1.0, 2.0, 3.0]])
def test_a_raw_body_is_the_only_input_and_its_size_tells_the_shape(server: Server, values: list[float]) -> None:
    reply = post_infer(server, "echo", struct.pack(f"<{len(values)}f", *values), RAW)
    assert forms(reply) == {"y": "binary"}
    length = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    assert json.loads(reply.body[:length])["outputs"][0]["shape"] == [len(values)]
    assert reply.body[length:] == struct.pack(f"<{len(values)}f", *values)


def test_a_raw_body_for_a_scalar(server: Server) -> None:
    assert post_infer(server, "scalar_fp32", struct.pack("<f", 2.5), RAW).body.endswith(struct.pack("<f", 2.5))


def test_a_raw_body_for_a_batching_model_is_a_batch_of_one(server: Server) -> None:
    reply = post_infer(server, "ragged", struct.pack("<3f", 1, 2, 3), RAW)
    length = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:length])["outputs"][0]["shape"] == [1, 3]
    assert struct.unpack("<3f", reply.body[length:]) == (2, 3, 4)


def test_a_raw_body_for_strings_is_one_string_without_its_length(server: Server) -> None:
    reply = post_infer(server, "one_string", b"\xff any \0 bytes", RAW)
    assert reply.body.endswith(struct.pack("<I", 13) + b"\xff any \0 bytes")


@pytest.mark.parametrize(
    ("model", "size", "words"),
    [
        ("simple", 128, "1 input"),
        ("identity_fp32", 8, "'x'"),
        ("echo", 7, "7 bytes"),
        ("scalar_fp32", 8, "'x'"),
        ("scalar_fp32", 0, "'x'"),
    ],
)
def test_a_raw_body_that_tells_no_shape_is_refused(server: Server, model: str, size: int, words: str) -> None:
    reply = post_infer(server, model, bytes(size), RAW)
    assert reply.status == 400
    assert words in reply.error


# --- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data"]
)
@pytest.mark.parametrize("binary", [False, True])
def test_the_content_type_of_a_request_plays_no_part(server: Server, content_type: str | None, binary: bool) -> None:
    body, headers = binary_body({"inputs": [BINARY_VECTOR if binary else VECTOR]}, TWO_FLOATS if binary else b"")
    headers = headers if binary else {}
    reply = post_infer(server, "echo", body, headers | ({"Content-Type": content_type} if content_type else {}))
    assert reply.json["outputs"][0]["data"] == [1, 2]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_may_come_in_chunks(server: Server, size: int) -> None:
    body, headers = binary_body({"inputs": [BINARY_VECTOR]}, TWO_FLOATS)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    assert post_infer(server, "echo", pieces(), headers).json["outputs"][0]["data"] == [1, 2]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP", " gzip ", "identity"])
def test_a_compressed_body_is_read_and_the_header_length_means_the_plain_one(server: Server, coding: str) -> None:
    body, headers = binary_body({"inputs": [BINARY_VECTOR]}, TWO_FLOATS)
    packed = {"gzip": gzip.compress(body), "deflate": zlib.compress(body)}.get(coding.strip().lower(), body)
    reply = post_infer(server, "echo", packed, headers | {"Content-Encoding": coding})
    assert reply.json["outputs"][0]["data"] == [1, 2]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP"])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("count", [0, 2, 300_000])
def test_an_answer_is_compressed_for_who_asks_for_one_coding(
    server: Server, coding: str, binary: bool, count: int
) -> None:
    values = list(range(count))
    tensor = {"name": "x", "shape": [count], "datatype": "FP32", "data": values}
    body = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    reply = post_infer(server, "echo", body, {"Accept-Encoding": coding})
    assert reply.headers["content-encoding"] == coding.lower()
    plain = gzip.decompress(reply.body) if coding.lower() == "gzip" else zlib.decompress(reply.body)
    if binary and count:
        length = int(reply.headers["inference-header-content-length"])
        assert json.loads(plain[:length])["outputs"][0]["shape"] == [count]
        assert plain[length:] == struct.pack(f"<{count}f", *values)
    else:
        assert json.loads(plain)["outputs"][0].get("data", []) == values


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_the_client_of_triton_gets_compressed_answers(server: Server, coding: str) -> None:
    with tritonclient.http.InferenceServerClient(server.http) as client:
        tensor = tritonclient.http.InferInput("x", [3], "FP32")
        tensor.set_data_from_numpy(np.array([1, 2, 3], np.float32))
        result = client.infer("echo", [tensor], response_compression_algorithm=coding)
        assert result.as_numpy("y").tolist() == [1, 2, 3]


@pytest.mark.parametrize("coding", ["gzip, deflate", "gzip;q=0.5, br;q=1", "*", "identity;q=0", "br", "identity", ""])
def test_an_answer_is_plain_for_who_asks_for_nothing_or_for_many_codings(server: Server, coding: str) -> None:
    reply = post_infer(server, "echo", {"inputs": [VECTOR]}, {"Accept-Encoding": coding})
    assert "content-encoding" not in reply.headers
    assert reply.json["outputs"][0]["data"] == [1, 2]


def test_an_error_is_never_compressed(server: Server) -> None:
    reply = post_infer(server, "echo", {"inputs": []}, {"Accept-Encoding": "gzip"})
    assert "missing" in reply.error


def test_a_query_string_is_ignored(server: Server) -> None:
    body = json.dumps({"inputs": [VECTOR]})
    reply = http_call(server, "POST", "/v2/models/echo/versions/1/infer?test=1&x=a%2Fb", body)
    assert reply.json["outputs"][0]["data"] == [1, 2]


def raw_request(*, close: bool = False, expect: bool = False) -> bytes:
    """One request as bytes."""
    body = json.dumps({"inputs": [VECTOR]}).encode()
    lines = ["POST /v2/models/echo/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += ["Connection: close"] * close + ["Expect: 100-continue"] * expect
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if expect else body)


def test_requests_may_be_sent_without_waiting_for_answers(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(raw_request() * 4 + raw_request(close=True))
        answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 5
    assert answers.count(b'"data":[1.0,2.0]') == 5


def test_an_error_leaves_the_connection_usable(server: Server) -> None:
    good = json.dumps({"inputs": [VECTOR]})
    connection = http.client.HTTPConnection(server.http)
    try:
        for model, body, status in (
            ("echo", "{", 400),
            ("echo", good, 200),
            ("nobody", good, 404),
            ("echo", "[" * 100_000, 400),
            ("echo", "", 400),
            ("echo", good, 200),
        ):
            connection.request("POST", f"/v2/models/{model}/infer", body)
            answer = connection.getresponse()
            answer.read()
            assert (answer.status, answer.will_close) == (status, False)
    finally:
        connection.close()


def test_a_client_that_asks_before_it_sends_the_body_is_told_to_go_on(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(raw_request(close=True, expect=True))
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(json.dumps({"inputs": [VECTOR]}).encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_request_that_arrives_byte_by_byte_is_answered(server: Server) -> None:
    with connect(server) as connection:
        for byte in raw_request(close=True):
            connection.sendall(bytes([byte]))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")
