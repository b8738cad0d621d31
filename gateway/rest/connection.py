"""uvicorn's HTTP connection, which serves ``/v2`` itself and leaves everything else to ASGI.

Between httptools' callbacks and the data plane there is nothing else: no task, no scope, no receive and send, no second
system call for the body. Besides, ASGI tells a handler of a client that went away only through ``receive``, which would
cost a task for each request; here the connection cancels it.
"""

from __future__ import annotations

from typing import Any, Final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import PayloadTooLarge
from gateway.rest.answer import Answer, Headers, error_answer, fault_answer
from gateway.rest.v2.app import PREFIX, V2App
from gateway.rest.v2.body import Body, too_large
from gateway.serving.call import Call

_PREFIX: Final = PREFIX.encode()
_OFFER: Final = (b"connection", b"upgrade", b"http2-settings")
#: Up to here joining head and body costs less than a gathered write.
_JOIN_BELOW: Final = 64 << 10


class _Exchange:
    """One request under ``/v2`` and its answer.

    While it is in flight it is among uvicorn's ``tasks``, whose ``cancel`` is called when the time to drain is up.
    """

    __slots__ = ("body", "call", "connection", "headers", "keep_alive", "method", "path")

    def __init__(
        self, connection: Connection, method: str, path: bytes, headers: Headers, keep_alive: bool, limit: int
    ) -> None:
        self.connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = Body(limit)
        self.call: Call | None = None

    def reply(self, answer: Answer) -> None:
        """The answer is there."""
        self.connection.finish(self, answer)

    def cancel(self, msg: str = "") -> None:
        """The server's time to drain is up. It takes effect in the next turn: who calls it goes through ``tasks``."""
        self.connection.loop.call_soon(self._out_of_time)

    def _out_of_time(self) -> None:
        if self.call is not None:
            self.abandon()
            self.keep_alive = False
            self.reply(error_answer(503, "the server is stopping, the request was not finished in time"))

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        if self.call is not None:
            self.call.cancel()


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
        exchange = _Exchange(self, method, path, self.headers, keep_alive, self.v2.max_body_bytes)
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
        body = exchange.body.whole()
        outcome = self.v2.answer(exchange.method, exchange.path, exchange.headers, body, exchange.reply)
        if isinstance(outcome, Answer):
            self.finish(exchange, outcome)
        else:
            exchange.call = outcome
            self.tasks.add(exchange)  # type: ignore[arg-type]

    def finish(self, exchange: _Exchange, answer: Answer) -> None:
        """Send the answer, and go on with the next request of the connection."""
        exchange.call = None
        self.tasks.discard(exchange)
        self._write(exchange, answer)
        if self.flow.write_paused and not self.transport.is_closing():
            self.flow.pause_reading()
            task = self.loop.create_task(self._go_on_when_read())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        else:
            self._answering = None
            self.on_response_complete()

    async def _go_on_when_read(self) -> None:
        """A client that does not read its answers gets no more of them."""
        try:
            await self.flow.drain()
        finally:
            self._answering = None
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
            self._answering = cycle
            self.loop.call_soon(self._start, cycle)  # not at once: thousands may be in line, each inside the last one
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
        if self._answering is not None:
            self.tasks.discard(self._answering)
            self._answering.abandon()

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
