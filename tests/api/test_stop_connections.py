"""What a stop does to connections over REST: nothing that a client has sent, or is about to, goes without an answer."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.repository import add_echo
from support.rest import connect, read_all
from support.server import Server, running, wait_until

LINE: Final = {"print_bytes": 80}
LIVE: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """With a model that takes as long as it is told."""
    add_echo(tmp_path / "repository", "echo")
    with running(tmp_path, tmp_path / "repository") as started:
        yield started


def inference(**parameters: int) -> bytes:
    """A request with one number."""
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def heads(answers: bytes) -> list[tuple[int, bool]]:
    """Of each answer its status, and whether it says that the connection closes."""
    return [
        (int(status), b"connection: close" in head)
        for status, head in re.findall(rb"HTTP/1\.1 (\d+) [^\r]*\r\n(.*?)\r\n\r\n", answers, re.DOTALL)
    ]


def stopping(server: Server) -> None:
    """Ask it to stop, and wait until it accepts no connection any more."""
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not accepts(server), "the port to be closed")


def accepts(server: Server) -> bool:
    """Whether the port is open."""
    try:
        connect(server).close()
    except ConnectionError:
        return False
    return True


def test_a_client_that_asks_just_when_the_server_stops_is_told_so(server: Server) -> None:
    """On connections that idle: nothing tells their clients in time that the server stops."""
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(100)]
        for connection in idle:
            connection.sendall(inference())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        server.process.send_signal(signal.SIGTERM)
        for connection in idle:
            connection.sendall(inference())
        for connection in idle:
            assert heads(read_all(connection)) in ([(200, True)], [(503, True)], [(200, False)])
    assert server.wait_stopped() == 0


def test_everything_that_was_pipelined_is_answered_and_the_last_one_says_that_it_is_the_last(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(inference(delay_ms=500, **LINE) + LIVE * 5)
        server.wait_for_log("x" * 79)
        server.process.send_signal(signal.SIGTERM)
        assert heads(read_all(connection)) == [(200, False)] * 5 + [(200, True)]
    assert server.wait_stopped() == 0


def test_a_request_that_is_half_sent_when_the_server_stops_is_answered(server: Server) -> None:
    request = inference()
    with connect(server) as connection:
        connection.sendall(request[:-5])
        stopping(server)
        connection.sendall(request[-5:])
        assert heads(read_all(connection)) in ([(200, True)], [(503, True)])
    assert server.wait_stopped() == 0


def test_a_client_that_reads_its_answer_slowly_gets_it_whole_and_then_the_end(server: Server) -> None:
    count = 2 << 20
    tensor = {"name": "x", "shape": [count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    data = struct.pack("<f", 1) * count
    head = f"Host: x\r\nInference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + len(data)}\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(90)
        host, _, port = server.http.rpartition(":")
        connection.connect((host, int(port)))
        connection.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\n" + head.encode() + text + data)
        wait_until(lambda: connection.recv(1, socket.MSG_PEEK), "the answer to begin")
        stopping(server)
        assert len(read_all(connection)) > 4 * count
    assert server.wait_stopped() == 0
