"""uvicorn's HTTP connection, which serves ``/v2`` itself and leaves everything else to ASGI.

Between httptools' callbacks and the data plane there is one task and nothing else: no scope, no receive and send, no
second system call for the body. Besides, ASGI tells a handler of a client that went away only through ``receive``,
which would cost another task for each request; here the connection cancels it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import PayloadTooLarge
from gateway.rest.answer import Answer, Headers, error_answer, fault_answer
from gateway.rest.v2.app import PREFIX, V2App
from gateway.rest.v2.body import Body, too_large

_PREFIX: Final = PREFIX.encode()
_OFFER: Final = (b"connection", b"upgrade", b"http2-settings")
#: Up to here joining head and body costs less than a gathered write.
_JOIN_BELOW: Final = 64 << 10


class _Exchange:
    """One request under ``/v2`` and its answer."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "task")

    def __init__(self, method: str, path: bytes, headers: Headers, keep_alive: bool, limit: int) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = Body(limit)
        self.task: asyncio.Task[None] | None = None


class Connection(HttpToolsProtocol):
    """One client connection. A subclass made by ``serving`` knows the application."""

    v2: V2App
    _receiving: _Exchange | None = None  # its body is still coming
    _answering: _Exchange | None = None  # its answer is on its way

    @classmethod
    def serving(cls, v2: V2App) -> type[Connection]:
        """The class of connections that serve ``v2``."""
        return type("Connection", (cls,), {"v2": v2})

    def data_received(self, data: bytes) -> None:
        """Part of ``asyncio.Protocol``. An offer to upgrade is declined: the request is served as if it had none.

        The parser would end there (Java's client offers HTTP/2 so, with a body behind), hence the head without the
        offer goes through a new one.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("CONNECT is not offered: this is no proxy.")
                return
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _head_without_offer(self) -> bytes:
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += (name + b": " + value for name, value in self.headers if name not in _OFFER)
        tokens = b",".join(value for name, value in self.headers if name == b"connection").lower().split(b",")
        if b"close" in [token.strip() for token in tokens]:
            lines.append(b"connection: close")
        return b"\r\n".join((*lines, b"", b""))

    # --- httptools' callbacks ---

    def on_headers_complete(self) -> None:
        """A request's head is there: it is ours, or uvicorn's."""
        if self.parser.should_upgrade():
            return  # see data_received
        path, _, _ = self.url.partition(b"?")
        if not path.startswith(b"/"):  # a URL may name the host
            path = httptools.parse_url(self.url).path or b"/"
        if not (path.startswith(_PREFIX) and path[len(_PREFIX) : len(_PREFIX) + 1] in (b"", b"/")):
            super().on_headers_complete()
            return
        method = self.parser.get_method().decode("ascii")
        keep_alive = self.parser.should_keep_alive()
        exchange = _Exchange(method, path, self.headers, keep_alive, self.v2.max_body_bytes)
        if _announced(self.headers) > self.v2.max_body_bytes:
            self._refuse_body(exchange)
            return
        self._receiving = exchange
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        exchange = self._receiving
        if exchange is None:
            if self.cycle is not None:
                super().on_body(body)
            return
        try:
            exchange.body.add(body)
        except PayloadTooLarge:
            self._refuse_body(exchange)

    def _refuse_body(self, exchange: _Exchange) -> None:
        exchange.keep_alive = False  # what is left of the body is not read
        self._receiving = None
        self._write(exchange, fault_answer(too_large(self.v2.max_body_bytes)))

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.parser.should_upgrade():
            return
        exchange = self._receiving
        if exchange is None:
            if self.cycle is not None:
                super().on_message_complete()
            return
        self._receiving = None
        cycle: RequestResponseCycle | None = self.cycle
        if self._answering is None and (cycle is None or cycle.response_complete):
            self._start(exchange)
        else:
            self._wait_in_line(exchange, None)

    # --- serving ---

    def _start(self, exchange: _Exchange) -> None:
        self._answering = exchange
        exchange.task = task = self.loop.create_task(self._serve(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, exchange: _Exchange) -> None:
        try:
            answer = await self.v2.answer(exchange.method, exchange.path, exchange.headers, exchange.body.whole())
        except asyncio.CancelledError:  # the client is gone, or the server's time to drain is up
            exchange.keep_alive = False
            self._write(exchange, error_answer(503, "the server is stopping, the request was not finished in time"))
            raise
        finally:
            self._answering = None
        self._write(exchange, answer)
        if self.flow.write_paused and not self.transport.is_closing():
            self.flow.pause_reading()
            await self.flow.drain()  # a client that does not read its answers gets no more of them
        self.on_response_complete()

    def _write(self, exchange: _Exchange, answer: Answer) -> None:
        if self.transport.is_closing():
            return
        content = [STATUS_LINE[answer.status]]
        for name, value in answer.headers:
            content += (name, b": ", value, b"\r\n")
        content.append(b"content-length: %d\r\n" % len(answer.body))
        content.append(b"\r\n" if exchange.keep_alive else b"connection: close\r\n\r\n")
        if exchange.method != "HEAD":
            content.append(answer.body)
        if len(answer.body) < _JOIN_BELOW:
            self.transport.write(b"".join(content))
        else:
            self.transport.writelines(content)
        if not exchange.keep_alive:
            self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """The next request of the connection, ours or for ASGI (uvicorn calls this for what waited in line, too)."""
        if self._answering is not None:
            self._wait_in_line(cycle, app)
        elif isinstance(cycle, _Exchange):
            self._start(cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def _wait_in_line(self, request: Any, app: Any) -> None:
        """Pipelined: answers leave in the order of the requests. uvicorn's line serves both kinds."""
        self.flow.pause_reading()
        self.pipeline.appendleft((request, app))

    # --- the connection's end ---

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: nobody waits for the answer."""
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._answering is not None and self._answering.task is not None:
            self._answering.task.cancel()

    def shutdown(self) -> None:
        """The server stops: finish what is being answered, then close."""
        exchange = self._answering or self._receiving
        if exchange is not None:
            exchange.keep_alive = False
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered in the protocol's form too."""
        body = msgspec.json.encode({"error": msg})
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


def _announced(headers: Headers) -> int:
    """The size of the body by its head; 0 if that says none (httptools has refused what is no number)."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return 0
