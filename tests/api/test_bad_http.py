"""HTTP that is wrong around the body: header lengths, codings, framing; answered or closed, and the server goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import struct
import zlib
from typing import Final

import psutil
import pytest

from support.rest import binary_body, connect, post_infer, read_all, talk
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

TENSOR: Final = {"name": "x", "shape": [2], "datatype": "FP32"}
BODY, HEADERS = binary_body({"inputs": [TENSOR | {"parameters": {"binary_data_size": 8}}]}, struct.pack("<2f", 1, 2))
PLAIN: Final = json.dumps({"inputs": [TENSOR | {"data": [1, 2]}]}).encode()
LENGTH: Final = "Inference-Header-Content-Length"
JSON_SIZE: Final = int(HEADERS[LENGTH])


# --- Inference-Header-Content-Length ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["99999999999", "-1", "-0", "1e3", "0x10", "", " ", "+5", "5.0", "1_0", "NaN", "five", "12, 12", "0b1",
     "\u0663".encode().decode("latin-1"),
     str(len(BODY) + 1), str(2**31), str(2**32 + JSON_SIZE), str(2**63), str(2**64 + JSON_SIZE), "9" * 5000],
)  # fmt: skip
def test_a_header_length_that_makes_no_sense_is_refused_by_name(server: Server, value: str) -> None:
    reply = post_infer(server, "echo", BODY, {LENGTH: value})
    assert reply.status == 400
    assert LENGTH in reply.error


@pytest.mark.parametrize("value", ["1", " 12", str(JSON_SIZE - 1), str(JSON_SIZE + 1), str(len(BODY))])
def test_a_header_length_that_is_not_that_of_the_json_is_refused(server: Server, value: str) -> None:
    assert "JSON" in post_infer(server, "echo", BODY, {LENGTH: value}).error


def test_a_header_length_with_blanks_around_is_read(server: Server) -> None:
    """HTTP allows blanks around every header's value."""
    assert post_infer(server, "echo", BODY, {LENGTH: f"  {JSON_SIZE} "}).status == 200


def test_without_the_header_binary_data_is_no_json(server: Server) -> None:
    reply = post_infer(server, "echo", BODY)
    assert reply.status == 400
    assert "JSON" in reply.error


@pytest.mark.parametrize("second", [JSON_SIZE, 1])
def test_a_header_length_that_is_given_twice_is_refused(server: Server, second: int) -> None:
    reply = talk(server, request(f"{LENGTH}: {JSON_SIZE}", f"{LENGTH}: {second}", body=BODY))
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"twice" in reply


# --- Content-Encoding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", PLAIN, 415),
        ("zstd", PLAIN, 415),
        ("gzip, gzip", gzip.compress(gzip.compress(PLAIN)), 415),
        ("x", PLAIN, 415),
        ("gzip", PLAIN, 415),
        ("gzip", b"", 415),
        ("gzip", gzip.compress(PLAIN)[:-1], 415),
        ("gzip", gzip.compress(PLAIN)[:20], 415),
        ("gzip", gzip.compress(PLAIN) + b"more", 415),
        ("gzip", gzip.compress(PLAIN)[:-8] + bytes(8), 415),  # the checksum is wrong
        ("gzip", zlib.compress(PLAIN), 415),
        ("deflate", PLAIN, 415),
        ("deflate", zlib.compress(PLAIN)[2:-4], 415),  # without zlib's frame
        ("gzip", gzip.compress(b"no json"), 400),
        ("gzip", gzip.compress(b""), 400),
    ],
)
def test_a_body_that_is_not_coded_as_it_says(server: Server, coding: str, body: bytes, status: int) -> None:
    reply = post_infer(server, "echo", body, {"Content-Encoding": coding})
    assert reply.status == status
    assert reply.error


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_refused_at_the_limit_and_takes_little_memory(server: Server, coding: str) -> None:
    """Half a gigabyte in half a megabyte; the peak of the server's memory tells what it unpacked."""
    packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS | (16 if coding == "gzip" else 0))
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    assert len(bomb) < 4 << 20
    before = peak_memory(server)
    reply = post_infer(server, "echo", bomb, {"Content-Encoding": coding})
    assert reply.status == 413
    assert str(64 << 20) in reply.error
    assert peak_memory(server) - before < 300 << 20


def peak_memory(server: Server) -> int:
    """The most memory that the gateway has ever had resident, in bytes."""
    with open(f"/proc/{server.process.pid}/status") as status:
        (line,) = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


# --- framing ---------------------------------------------------------------------------------------------------------


def request(
    *headers: str, body: bytes = PLAIN, target: str = "/v2/models/echo/infer", length: str | None = ""
) -> bytes:
    """A request as bytes; ``length`` None leaves ``Content-Length`` out."""
    lines = [f"POST {target} HTTP/1.1", "Host: x", "Connection: close", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length or len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


BROKEN: Final = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9": b"GET /v2 HTTP/9.9\r\n\r\n",
    "unknown method": b"BREW /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes beyond ASCII in the URL": b"GET /v2/models/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "blank in the URL": b"GET /v2/mod els HTTP/1.1\r\nHost: x\r\n\r\n",
    "no URL": b"GET  HTTP/1.1\r\n\r\n",
    "colon only": b"GET : HTTP/1.1\r\nHost: x\r\n\r\n",
    "authority only": b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "NUL in a header": b"GET /v2 HTTP/1.1\r\nHost: a\0b\r\n\r\n",
    "header without a colon": b"GET /v2 HTTP/1.1\r\nHost x\r\n\r\n",
    "negative length": request(length="-5"),
    "length in words": request(length="many"),
    "length beyond 64 bits": request(length=str(2**64 + 5)),
    "two lengths": request("Content-Length: 3"),
    "length and chunks": request("Transfer-Encoding: chunked"),
    "unknown transfer coding": request("Transfer-Encoding: sideways", length=None),
    "chunk size in words": request("Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n0\r\n\r\n", length=None),
    "negative chunk size": request("Transfer-Encoding: chunked", body=b"-1\r\nabc\r\n0\r\n\r\n", length=None),
    "chunk size beyond 64 bits": request("Transfer-Encoding: chunked", body=b"f" * 17 + b"\r\nabc", length=None),
    "chunk longer than it says": request("Transfer-Encoding: chunked", body=b"1\r\nabc\r\n0\r\n\r\n", length=None),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_http_gets_an_error_in_the_protocols_form_or_a_closed_connection(server: Server, case: str) -> None:
    answer = talk(server, BROKEN[case], finish=True)
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert 400 <= status < 500, answer
        assert list(json.loads(body)) == ["error"], answer


@pytest.mark.parametrize("sent", [0, 1, len(PLAIN) - 1])
def test_a_client_that_leaves_in_the_middle_of_a_body_is_let_go(server: Server, sent: int) -> None:
    whole = request()
    with connect(server) as connection:
        connection.sendall(whole[: len(whole) - len(PLAIN) + sent])
        connection.shutdown(socket.SHUT_WR)
        assert not read_all(connection).startswith(b"HTTP/1.1 5")
    server.wait(lambda: not holds_dead_connections(server), "the connection to be closed")


def holds_dead_connections(server: Server) -> bool:
    """Whether the server still holds its end of a connection whose other end is closed."""
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    return any(connection.status == psutil.CONN_CLOSE_WAIT for connection in connections)


def test_headers_of_a_megabyte_do_no_harm(server: Server) -> None:
    answer = talk(server, request(*(f"X-Header-{index}: {'x' * 1000}" for index in range(1000))))
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 431 "))


def test_a_url_of_a_megabyte_does_no_harm(server: Server) -> None:
    answer = talk(server, request(target="/v2/models/" + "x" * (1 << 20) + "/infer"))
    assert answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_an_upgrade_that_is_not_offered_is_ignored(server: Server, protocol: str) -> None:
    headers = f"Host: x\r\nConnection: Upgrade, close\r\nUpgrade: {protocol}\r\nSec-WebSocket-Key: eA=="
    answer = talk(server, f"GET /v2/models/echo HTTP/1.1\r\n{headers}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 "), answer


@pytest.mark.parametrize("cut", [0, 1, len(PLAIN)])
@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_a_request_with_an_offer_to_upgrade_keeps_its_body(server: Server, protocol: str, cut: int) -> None:
    """Java's client offers HTTP/2 with its first request; the body may come with the head or later."""
    head = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nUpgrade: {protocol}\r\n"
    head += "HTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()
    with connect(server) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:cut])
        connection.sendall(body[cut:])
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert b'"data":[1.0,2.0]' in answer


def test_connect_is_refused(server: Server) -> None:
    assert talk(server, b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_body_that_is_announced_as_too_large_is_refused_at_once(server: Server) -> None:
    head = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    answer = talk(server, f"{head}Content-Length: 99999999999999\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert b"larger than the limit" in answer


def test_a_client_that_never_reads_its_answers_does_not_fill_the_servers_memory(server: Server) -> None:
    body, headers = binary_body(
        {"inputs": [TENSOR | {"shape": [1, 1 << 18], "parameters": {"binary_data_size": 1 << 20}}],
         "parameters": {"binary_data_output": True}},
        bytes(1 << 20),
    )  # fmt: skip
    head = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    request = (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + body
    before = server.rss_bytes()
    with connect(server) as connection:
        connection.settimeout(1)
        with contextlib.suppress(TimeoutError):  # the server has stopped reading, as it should
            for _ in range(400):
                connection.sendall(request)
        assert server.rss_bytes() - before < 100 << 20


@pytest.mark.parametrize("order", ["vvvv", "avav", "vava", "aavv", "vvaa", "vaav"])
def test_pipelined_requests_are_answered_in_their_order_whoever_serves_them(server: Server, order: str) -> None:
    """v: an inference, answered on the connection; a: a route of the administration, answered through ASGI."""
    stream = b""
    for number, kind in enumerate(order):
        if kind == "v":
            body = json.dumps({"id": str(number), "inputs": [TENSOR | {"data": [number, 0]}]})
            head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            stream += (head + body).encode()
        else:
            stream += f"GET /admin/v1/models/number-{number} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    stream += b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = talk(server, stream)
    marks = [f'"id":"{n}"' if kind == "v" else f"/admin/v1/models/number-{n}" for n, kind in enumerate(order)]
    places = [answer.find(mark.encode()) for mark in marks]
    assert -1 not in places, answer
    assert places == sorted(places), answer
    assert answer.count(b"HTTP/1.1 ") == len(order) + 1
