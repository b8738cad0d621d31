"""While one request of many megabytes is read, checked or answered, the others are served."""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any, Final

import numpy as np
import pytest

from support.clients import Refused, floats, grpc_stub, infer, typed_message
from support.clients import Request as Asked
from support.rest import connect
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

COUNT: Final = 1_500_000
#: Small requests that are answered while the large one is on its way. It takes hundreds of turns of the loop, and a
#: small one some of them; if the loop were held up there would be none, or the one that was read before.
SERVED: Final = 10


def rest_request(model: str, body: bytes, length: int | None = None) -> bytes:
    """The bytes of a POST."""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n"
    if length is not None:
        head += f"Inference-Header-Content-Length: {length}\r\n"
    return f"{head}\r\n".encode() + body


def json_request(model: str, datatype: str, count: int, values: list[Any]) -> bytes:
    tensor = {"name": "x", "shape": [count], "datatype": datatype, "data": values}
    return rest_request(model, json.dumps({"inputs": [tensor]}).encode())


def binary_strings(count: int, elements: int) -> bytes:
    data = struct.pack("<I4s", 4, b"abcd") * elements
    head = {"name": "x", "shape": [count], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [head]}).encode()
    return rest_request("echo_strings", text + data, len(text))


#: Each is refused when it has been read to its end: all of its time is the gateway's.
REFUSED: Final = {
    "JSON numbers": lambda: json_request("echo", "FP32", COUNT + 1, [0.123456] * COUNT),
    "JSON strings": lambda: json_request("echo_strings", "BYTES", COUNT + 1, ["abcd"] * COUNT),
    "BYTES in binary": lambda: binary_strings(COUNT + 1, COUNT),
}


def is_answered(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def small_ones_until(server: Server, connection: socket.socket, protocol: str) -> int:
    """How many small requests are answered before there is an answer on the connection."""
    count = 0
    if protocol == "grpc":
        with grpc_stub(server) as stub:
            message = typed_message(Asked("echo", floats(1, 2)))
            while not is_answered(connection):
                assert len(stub.ModelInfer(message).outputs) == 1
                count += 1
    else:
        small = json_request("echo", "FP32", 2, [1, 2])
        with connect(server) as other:
            while not is_answered(connection):
                other.sendall(small)
                assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
                count += 1
    return count


def whole_answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """Status line and body."""
    with connection.makefile("rb") as stream:
        status, size = stream.readline(), 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b": ")
            size = int(value) if name == b"content-length" else size
        return status, stream.read(size)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
@pytest.mark.parametrize("kind", REFUSED)
def test_others_are_served_while_a_large_request_is_read(server: Server, kind: str, protocol: str) -> None:
    request = REFUSED[kind]()
    with connect(server) as connection:
        connection.sendall(request[:-1])
        connection.sendall(request[-1:])
        assert small_ones_until(server, connection, protocol) >= SERVED
        status, body = whole_answer(connection)
    assert status.startswith(b"HTTP/1.1 400 ")
    assert str(COUNT + 1) in json.loads(body)["error"]


def test_others_are_served_while_a_large_answer_is_encoded(server: Server) -> None:
    data = np.full(COUNT, 0.1234567, np.float32)
    head = {"name": "x", "shape": [COUNT], "datatype": "FP32", "parameters": {"binary_data_size": data.nbytes}}
    text = json.dumps({"inputs": [head]}).encode()
    with connect(server) as connection:
        connection.sendall(rest_request("echo", text + data.tobytes(), len(text)))
        assert small_ones_until(server, connection, "rest") >= SERVED
        status, body = whole_answer(connection)
    assert status.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["outputs"][0]["data"] == [0.1234567] * COUNT


@pytest.mark.parametrize("protocol", ["rest", "rest-json", "grpc", "grpc-typed"])
def test_large_tensors_come_back_as_they_went(server: Server, protocol: str) -> None:
    numbers = np.arange(100_000, dtype=np.float32)
    strings = np.array([b"a%d" % number for number in range(100_000)], object)
    assert infer(protocol, server, "echo", {"x": numbers}).outputs["y"].tolist() == numbers.tolist()
    assert infer(protocol, server, "echo_strings", {"x": strings}).outputs["y"].tolist() == strings.tolist()


def test_clients_that_leave_in_the_middle_of_it_leave_nothing_behind(server: Server) -> None:
    request = REFUSED["JSON numbers"]()
    for _ in range(5):
        with connect(server) as connection:
            connection.sendall(request)
    with pytest.raises(Refused, match="expected"):
        infer("rest", server, "echo", {})
