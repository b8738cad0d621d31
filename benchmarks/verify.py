"""Checks, before any load, that the exact bytes of the load get the right answer.

The load generators look no further than a status code; here the real client's parser reads the
answer, and its numbers have to be those of onnxruntime.
"""

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from benchmarks.load import GRPC_METHOD
from benchmarks.payloads import Body
from benchmarks.servers import Server

Expected = Mapping[str, np.ndarray[Any, Any]]
TIMEOUT_S = 30.0
GRPC_OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


class WrongAnswer(Exception):
    """The server refused the request or computed something else."""


def verify(server: Server, model: str, encoding: str, body: Body, expected: Expected) -> int:
    """Length in bytes of the good answer's body (gRPC: with its prefix); raises ``WrongAnswer``."""
    if encoding == "grpc":
        return verify_grpc(server.grpc_address, body, expected)
    return verify_rest(server.infer_url(model), body, expected)


def verify_rest(url: str, body: Body, expected: Expected) -> int:
    request = urllib.request.Request(url, body.path.read_bytes(), body.headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            content, length = answer.read(), answer.headers.get("Inference-Header-Content-Length")
    except urllib.error.HTTPError as refusal:
        raise WrongAnswer(f"HTTP {refusal.code}: {refusal.read()[:300]!r}") from refusal
    parse = tritonclient.http.InferenceServerClient.parse_response_body
    try:
        compare(parse(content, header_length=int(length) if length else None), expected)
    except (ValueError, KeyError, InferenceServerException) as unreadable:
        raise WrongAnswer(f"unreadable answer: {unreadable}") from unreadable
    return len(content)


def verify_grpc(address: str, body: Body, expected: Expected) -> int:
    message = body.path.read_bytes()[5:]
    with grpc.insecure_channel(address, options=GRPC_OPTIONS) as channel:
        call = channel.unary_unary(GRPC_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            content: bytes = call(message, timeout=TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as refusal:
            raise WrongAnswer(str(refusal)) from refusal
    response = service_pb2.ModelInferResponse.FromString(content)
    compare(tritonclient.grpc.InferResult(response), expected)
    return len(content) + 5


def compare(result: Any, expected: Expected) -> None:
    for name, array in expected.items():
        got = result.as_numpy(name)
        if got is None or got.shape != array.shape:
            raise WrongAnswer(f"output {name}: {None if got is None else got.shape}, not {array.shape}")
        if not np.allclose(got, array, rtol=1e-3, atol=1e-4):
            raise WrongAnswer(f"output {name} differs by {np.abs(got - array).max()}")
