"""Rubbish on REST, from a seeded generator: always told to be the client's fault, or the connection is closed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

import psutil
import pytest

from support.rest import talk
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

METHODS: Final = ("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "", "X" * 100)
SEGMENTS: Final = (
    "v2", "v1", "models", "echo", "simple", "infer", "versions", "1", "2", "stats", "config", "ready", "health", "live",
    "repository", "index", "", ".", "..", "%2e%2e", "%2F", "%", "%zz", "%00", "\u00fc", "%C3%BC", "*", "//",
    "a" * 300, "?x", "#y",
)  # fmt: skip
GOOD: Final = '{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}'
#: What a JSON body is made of.
TOKENS: Final = (
    "{", "}", "[", "]", ",", ":", '"inputs"', '"x"', '"name"', '"shape"', '"datatype"', '"FP32"', '"data"',
    '"outputs"', '"id"',
    '"parameters"', '"binary_data_size"', "1", "-1", "1e400", "NaN", "Infinity", "true", "null", '"\\u0000"',
    '"\\ud800"', "9" * 30,
)  # fmt: skip
HEADERS: Final = (
    "Inference-Header-Content-Length: {n}", "Inference-Header-Content-Length: x", "Content-Encoding: gzip",
    "Content-Encoding: \xff",
    "Transfer-Encoding: chunked", "Expect: 100-continue", "Content-Type: \0", "Connection: upgrade",
    "Upgrade: websocket",
    "Accept-Encoding: gzip", "{x}: {x}", ": empty", "no colon", " folded", "Content-Length: {n}",
)  # fmt: skip


def some_bytes(source: random.Random) -> bytes:
    """Anything."""
    return source.randbytes(source.randrange(0, 400))


def some_json(source: random.Random) -> bytes:
    """Tokens of a request in any order."""
    return " ".join(source.choices(TOKENS, k=source.randrange(0, 40))).encode()


def damaged(source: random.Random) -> bytes:
    """A good request in which a few characters are changed."""
    text = list(GOOD)
    for _ in range(source.randrange(1, 5)):
        place = source.randrange(len(text))
        text[place : place + source.randrange(0, 4)] = source.choices(
            '{}[]":,0-1.eNx\\ \x00\u00fc', k=source.randrange(0, 4)
        )
    return "".join(text).encode()


def some_request(source: random.Random) -> bytes:
    """A request whose parts may make sense or not; now and then it is cut short."""
    body = source.choice([some_bytes, some_json, damaged])(source)
    target = "/" + "/".join(source.choices(SEGMENTS, k=source.randrange(0, 7)))
    if source.random() < 0.6:
        target = f"/v2/models/{source.choice(['echo', 'simple', 'identity_bytes', 'nobody'])}/infer"
    noise = source.randbytes(3).decode("latin-1")
    headers = [
        header.format(n=source.randrange(0, 500), x=noise)
        for header in source.sample(HEADERS, k=source.randrange(0, 4))
    ]
    if source.random() < 0.8:
        headers.append(f"Content-Length: {len(body)}")
    method = "POST" if source.random() < 0.6 else source.choice(METHODS)
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""])
    whole = head.encode("utf-8" if source.random() < 0.5 else "latin-1", errors="replace") + body
    return whole[: source.randrange(len(whole))] if source.random() < 0.1 else whole


@pytest.mark.parametrize("make", [some_request, some_bytes])
@pytest.mark.parametrize("seed", range(3))
def test_rubbish_is_answered_or_the_connection_closed(
    server: Server, make: Callable[[random.Random], bytes], seed: int
) -> None:
    source = random.Random(seed)
    before = open_files(server)
    for _ in range(300):
        sent = make(source)
        for status, body in answers_in(talk(server, sent, finish=True)):
            assert status < 500 or status == 501, (sent, status, body)
            if status >= 400 and body:
                assert list(json.loads(body)) == ["error"], (sent, body)
    server.wait(lambda: open_files(server) <= before, f"at most {before} open files, as before")


def open_files(server: Server) -> int:
    """Descriptors that the gateway has open, connections among them."""
    return int(psutil.Process(server.process.pid).num_fds())


def answers_in(received: bytes) -> list[tuple[int, bytes]]:
    """Status and body of every answer."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        status = int(lines[0].split()[1])
        size = int(headers.get("content-length", 0))
        body, received = rest[:size], rest[size:]
        if received and not received.startswith(b"HTTP/"):  # no body follows the head of an answer to HEAD
            body, received = b"", rest
        if not received.startswith(b"HTTP/"):
            received = b""
        if status >= 200:
            found.append((status, body))
    return found
