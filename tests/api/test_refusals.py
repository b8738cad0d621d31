"""Requests that the connection refuses before they are read to their end, alone and behind others."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
from collections.abc import Iterable
from typing import Final

import pytest

from support.rest import connect, read_all, talk
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

#: Bytes that a head or the trailers may have.
LIMIT: Final = 64 << 10
LINE: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
CHUNKED: Final = b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n"
#: A request whose trailers are to come; to the protocol, and to the administration.
POST: Final = b"POST /v2 HTTP/1.1\r\n" + CHUNKED + b"0\r\n"
ADMIN_POST: Final = b"POST /admin/v1/models HTTP/1.1\r\n" + CHUNKED + b"0\r\n"


def inference(number: int, milliseconds: int = 0) -> bytes:
    """An inference that says its number in the answer, and takes some time."""
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [number]}
    body = json.dumps({"id": str(number), "inputs": [tensor], "parameters": {"delay_ms": milliseconds}}).encode()
    return b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def statuses(answers: bytes) -> list[int]:
    """The statuses of answers on one connection, in their order."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


def send_until_refused(server: Server, start: bytes, parts: Iterable[bytes]) -> tuple[bytes, int]:
    """Send as long as the server listens; what it answered, and how many bytes were sent."""
    sent = 0
    with connect(server) as connection:
        connection.sendall(start)
        with contextlib.suppress(ConnectionError):
            for part in parts:
                if answers(connection):
                    break
                connection.sendall(part)
                sent += len(part)
        return read_all(connection), sent


def answers(connection: socket.socket) -> bool:
    """Whether something can be read."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(90)


# --- size of the head ------------------------------------------------------------------------------------------------


OVER: Final = {
    "one header": LINE + b"X: " + b"x" * LIMIT + b"\r\n\r\n",
    "many headers": LINE + b"X: y\r\n" * (LIMIT // 6 + 2) + b"\r\n",
    "URL": b"GET /v2/" + b"x" * LIMIT + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "query": b"GET /v2?" + b"x" * LIMIT + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "of another route": b"GET /admin/v1/models HTTP/1.1\r\nX: " + b"x" * LIMIT + b"\r\n\r\n",
    "trailer": POST + b"X: " + b"x" * LIMIT + b"\r\n\r\n",
    "trailers": POST + b"X: y\r\n" * (LIMIT // 6 + 2) + b"\r\n",
    "trailer of another route": ADMIN_POST + b"X: " + b"x" * LIMIT + b"\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("case", OVER)
def test_a_head_over_the_limit_is_refused_with_the_limit(server: Server, case: str) -> None:
    answer = talk(server, OVER[case])
    assert statuses(answer) == [431], answer
    assert b"65536 bytes" in answer


ENDLESS: Final = {
    "header": (LINE + b"X: ", b"x" * 65536),
    "name of a header": (LINE, b"x" * 65536),
    "headers": (LINE, b"X: y\r\n" * 10000),
    "URL": (b"GET /v2/", b"x" * 65536),
    "method": (b"", b"G" * 65536),
    "trailer": (POST + b"X: ", b"x" * 65536),
    "trailers": (POST, b"X: y\r\n" * 10000),
    "blank lines": (b"", b"\r\n" * 30000),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_head_that_never_ends_is_not_kept(server: Server, case: str) -> None:
    start, part = ENDLESS[case]
    before = server.rss_bytes()
    answer, sent = send_until_refused(server, start, itertools.repeat(part, 1000))
    assert statuses(answer) in ([431], [400]), answer
    assert sent < 50 << 20, "it went on reading"
    assert server.rss_bytes() - before < 10 << 20


@pytest.mark.parametrize("size", [LIMIT // 2, LIMIT - 1000])
def test_a_head_below_the_limit_is_read(server: Server, size: int) -> None:
    assert statuses(talk(server, LINE + b"Connection: close\r\nX: " + b"x" * size + b"\r\n\r\n")) == [200]


def test_the_limit_is_for_each_request_and_not_for_the_connection(server: Server) -> None:
    request = LINE + b"X: " + b"x" * (LIMIT // 2) + b"\r\n\r\n"
    assert statuses(talk(server, request * 20 + LINE + b"Connection: close\r\n\r\n")) == [200] * 21


def test_trailers_are_no_headers(server: Server) -> None:
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    trailer = b"Content-Encoding: br\r\nInference-Header-Content-Length: 5\r\nConnection: close\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\n" + CHUNKED + chunk + trailer)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


# --- in their turn ---------------------------------------------------------------------------------------------------


REFUSED: Final = {
    "announced body": (413, b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{}"),
    "head": (431, OVER["one header"]),
    "rubbish": (400, b"RUBBISH\r\n\r\n"),
    "rubbish in a body": (400, b"POST /v2 HTTP/1.1\r\n" + CHUNKED + b"zz\r\n"),
    "rubbish in another route's body": (400, b"POST /admin/v1/models HTTP/1.1\r\n" + CHUNKED + b"zz\r\n"),
    "CONNECT": (400, b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n"),
}  # fmt: skip
BEFORE: Final = {
    "nothing": ([], b""),
    "an inference": ([200], inference(1, 200)),
    "inferences": ([200, 200], inference(1, 200) + inference(2)),
    "another route": ([401], b"GET /admin/v1/models HTTP/1.1\r\nHost: x\r\n\r\n"),
    "both": ([200, 401], inference(1, 200) + b"GET /admin/v1/models HTTP/1.1\r\nHost: x\r\n\r\n"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("before", BEFORE)
def test_a_refusal_waits_for_the_answers_before_it_and_is_the_last(server: Server, before: str, case: str) -> None:
    (expected, first), (status, second) = BEFORE[before], REFUSED[case]
    answer = talk(server, first + second + inference(9))
    assert statuses(answer) == [*expected, status], answer
    assert b'"id":"9"' not in answer
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    assert b"connection: close" in last
    assert list(json.loads(last.partition(b"\r\n\r\n")[2])) == ["error"]


def test_a_body_that_turns_out_too_large_is_refused_though_its_client_goes_on_sending(server: Server) -> None:
    """Not with a reset, which would take the answer from the client as well."""
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(head)
        for _ in range(100):
            connection.sendall(bytes(65536))
        assert statuses(read_all(connection)) == [413]


# --- many on one connection ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_thousands_of_offers_to_upgrade_are_declined(server: Server, body: bytes) -> None:
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert statuses(talk(server, request * 3000 + LINE + b"Connection: close\r\n\r\n")) == [200] * 3001


def test_a_url_that_is_nothing_but_a_host_is_that_of_the_root(server: Server) -> None:
    answers = [
        talk(server, b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % url)
        for url in (b"/", b"http://localhost", b"http://localhost/")
    ]
    assert len({tuple(statuses(answer)) for answer in answers}) == 1
    assert statuses(answers[0]) == [404]
