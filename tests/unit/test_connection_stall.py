"""Clients that stop in the middle of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.rest import connection
from gateway.rest.answer import Answer
from gateway.rest.connection import Connection
from gateway.rest.v2.app import V2App


class Plain:
    """Answers everything at once."""

    max_body_bytes = 1 << 20

    def answer(self, method: str, path: bytes, headers: Any, body: bytes, reply: Any) -> Answer:
        """Says how long the body was."""
        return Answer(200, b"%d bytes" % len(body))


async def never(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that waits for the whole body."""
    while (await receive())["type"] == "http.request":
        pass


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(connection, "_STALL_S", 0.05)
    config = uvicorn.Config(never, log_config=None, ws="none", lifespan="off")
    config.load()
    state = ServerState()
    protocol = Connection.serving(cast(V2App, Plain()))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def exchange(port: int, *parts: bytes) -> bytes:
    """Send the parts in turns of their own; everything until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "part",
    [b"P", b"POST /v2 HTTP/1.1\r\nHost: ", b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc",
     b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
     b"POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc"],
)  # fmt: skip
async def test_a_client_that_stops_in_the_middle_is_told_and_let_go(port: int, part: bytes) -> None:
    answer = await exchange(port, part)
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b"connection: close" in answer


async def test_a_client_that_never_says_anything_is_let_go(port: int) -> None:
    assert await exchange(port) == b""


async def test_a_stalled_request_behind_another_is_refused_after_it(port: int) -> None:
    whole = b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"
    answer = await exchange(port, whole + whole[:-1])
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert b"2 bytes" in answer
    assert answer.count(b"HTTP/1.1 408 ") == 1


async def test_a_client_that_idles_between_requests_is_only_let_go(port: int) -> None:
    whole = b"POST /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"
    assert (await exchange(port, whole)).count(b"HTTP/1.1 ") == 1
