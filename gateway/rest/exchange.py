"""One request that the connection itself serves, and its answer."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.rest.answer import Answer, Headers, error_answer
from gateway.rest.v2.body import Body
from gateway.serving.call import Call


class Line(Protocol):
    """What an exchange knows of its connection."""

    loop: asyncio.AbstractEventLoop

    def finish(self, exchange: Exchange, answer: Answer) -> None:
        """The answer is there."""


class Exchange:
    """A request under ``/v2`` and its answer; or one that is ``refused``, with the answer to that.

    While it is in flight it is among uvicorn's ``tasks``, whose ``cancel`` is called when the time to drain is up.
    """

    __slots__ = ("body", "call", "headers", "keep_alive", "line", "method", "path", "refused")

    def __init__(self, line: Line, method: str, path: bytes, headers: Headers, keep_alive: bool, limit: int) -> None:
        self.line = line
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = Body(limit)
        self.call: Call | None = None
        self.refused: Answer | None = None

    def reply(self, answer: Answer) -> None:
        """The answer is there."""
        self.line.finish(self, answer)

    def cancel(self, msg: str = "") -> None:
        """The server's time to drain is up. It takes effect in the next turn: who calls it goes through ``tasks``."""
        self.line.loop.call_soon(self._out_of_time)

    def _out_of_time(self) -> None:
        if self.call is not None:
            self.abandon()
            self.keep_alive = False
            self.reply(error_answer(503, "the server is stopping, the request was not finished in time"))

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        if self.call is not None:
            self.call.cancel()


def refusal(line: Line, answer: Answer) -> Exchange:
    """The exchange of a request that was not read to its end, after which the connection closes."""
    exchange = Exchange(line, "", b"", [], keep_alive=False, limit=0)
    exchange.refused = answer
    return exchange


_LENGTH: Final = b"content-length: %d\r\n"


def encode(exchange: Exchange, answer: Answer, keep_alive: bool) -> list[bytes]:
    """The answer as HTTP/1.1."""
    content = [STATUS_LINE[answer.status]]
    for name, value in answer.headers:
        content += (name, b": ", value, b"\r\n")
    content.append(_LENGTH % len(answer.body))
    content.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    if exchange.method != "HEAD":
        content.append(answer.body)
    return content
