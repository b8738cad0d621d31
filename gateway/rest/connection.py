"""uvicorn's HTTP connection, which serves ``/v2`` itself and leaves everything else to ASGI.

Between httptools' callbacks and the data plane there is nothing else: no task, no scope, no receive and send, no second
system call for the body. Besides, ASGI tells a handler of a client that went away only through ``receive``, which would
cost a task for each request; here the connection cancels it.

The end of what a client sends counts as its leaving: most clients close both ways at once, and nothing tells them from
one that still reads.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.errors import PayloadTooLarge
from gateway.rest.answer import Answer, error_answer, fault_answer
from gateway.rest.exchange import Exchange, encode, refusal
from gateway.rest.refusal import NO_HTTP, Refused, announced, check_head
from gateway.rest.v2.app import PREFIX, V2App
from gateway.rest.v2.body import too_large
from gateway.serving.call import Call

_PREFIX: Final = PREFIX.encode()
_OFFER: Final = (b"connection", b"upgrade", b"http2-settings")
#: Up to here joining head and body costs less than a gathered write.
_JOIN_BELOW: Final = 64 << 10
#: Pipelined requests that may wait in line before no more is read, and the size of a body that suffices for that.
_LINE_LIMIT: Final = 16
_LINE_BODY_LIMIT: Final = 64 << 10
#: Seconds that a client may take between two parts of a request.
_STALL_S: Final = 60.0
#: Seconds that an idle connection stays open when the server stops: its client may have sent a request already.
_LAST_CHANCE_S: Final = 0.2


class Connection(HttpToolsProtocol):
    """One client connection. A subclass made by ``serving`` knows the application."""

    v2: V2App
    _receiving: Exchange | None = None  # its body is still coming
    _answering: Exchange | None = None  # its answer is on its way
    _partial = False  # between the first byte of a request and its last
    _in_head = False
    _head_size = 0  # of the head, then of the trailers
    _heard = False  # whether the parser came a step further with what arrived last
    _unheard = 0  # bytes since then
    _deaf = False  # refused: nothing more is read
    _stopping = False

    @classmethod
    def serving(cls, v2: V2App) -> type[Connection]:
        """The class of connections that serve ``v2``."""
        return type("Connection", (cls,), {"v2": v2})

    # --- what arrives ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that says nothing is let go as well."""
        super().connection_made(transport)
        self._watch(_STALL_S)

    def data_received(self, data: bytes) -> None:
        """Part of ``asyncio.Protocol``."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._heard = False
        try:
            self._parse(data)
            if not self._heard:
                self._unheard += len(data)
                check_head(self._unheard)
        except Refused as refused:
            self._refuse(refused.answer)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.answer if isinstance(cause, Refused) else NO_HTTP)
        else:
            if self._partial:
                self._watch(_STALL_S)

    def _parse(self, data: bytes | memoryview) -> None:
        """An offer to upgrade is declined: the request is served as if it had none.

        The parser would end there (Java's client offers HTTP/2 so, with a body behind), hence the head without the
        offer goes through a new one.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self.parser.get_method() == b"CONNECT":
                    raise Refused(error_answer(400, "CONNECT is not offered: this is no proxy.")) from None
                head, data = self._head_without_offer(), memoryview(data)[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(head)
            else:
                return

    def _head_without_offer(self) -> bytes:
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += (name + b": " + value for name, value in self.headers if name not in _OFFER)
        tokens = b",".join(value for name, value in self.headers if name == b"connection").lower().split(b",")
        if b"close" in [token.strip() for token in tokens]:
            lines.append(b"connection: close")
        return b"\r\n".join((*lines, b"", b""))

    def _refuse(self, answer: Answer) -> None:
        """The request that is coming is answered in its turn, and nothing after it is read."""
        self._deaf = True
        self._receiving = None
        cycle = self._last_cycle()
        if cycle is None or cycle.response_complete or not cycle.more_body:
            self._enter(refusal(self, answer))
        elif self.pipeline and self.pipeline[0][0] is cycle:  # it was to be ASGI's
            self.pipeline.popleft()
            self._wait_in_line(refusal(self, answer), None)
        else:  # ASGI is serving it
            cycle.disconnected = True
            cycle.message_event.set()
            if not cycle.response_started:
                self._write(refusal(self, answer), answer)
            self.transport.close()

    def _watch(self, seconds: float) -> None:
        """uvicorn's timer for idle connections serves a client that stalls as well."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for a while."""
        if not self._partial or self._deaf:
            super().timeout_keep_alive_handler()
        elif self.flow.read_paused:  # it is we who do not read
            self._watch(_STALL_S)
        else:
            text = f"the request did not go on for {_STALL_S:.0f} s; send it in one go"
            self._refuse(error_answer(408, text))

    # --- httptools' callbacks ---

    def on_message_begin(self) -> None:
        """The first byte of a request. What ASGI needs is made where it is known to be ASGI's."""
        self._heard = self._partial = self._in_head = True
        self._unheard = self._head_size = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self.url += url
        self._head_size += len(url)
        check_head(self._head_size)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: those are dropped, nothing here has a use for them."""
        self._head_size += len(name) + len(value) + 4
        check_head(self._head_size)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request's head is there: it is ours, or uvicorn's."""
        self._heard = True
        self._in_head = False
        self._unheard = self._head_size = 0
        if self.parser.should_upgrade():
            return  # see _parse
        path = self._path()
        if not (path.startswith(_PREFIX) and path[len(_PREFIX) : len(_PREFIX) + 1] in (b"", b"/")):
            self._leave_to_asgi()
            return
        if announced(self.headers) > self.v2.max_body_bytes:
            raise Refused(fault_answer(too_large(self.v2.max_body_bytes)))
        method = self.parser.get_method().decode("ascii")
        keep_alive = self.parser.should_keep_alive()
        self._receiving = Exchange(self, method, path, self.headers, keep_alive, self.v2.max_body_bytes)
        if self.expect_100_continue and self._is_free():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _path(self) -> bytes:
        path, _, _ = self.url.partition(b"?")
        if path.startswith(b"/"):
            return path
        named = httptools.parse_url(self.url).path  # a URL may name the host, and nothing else
        if named is None:
            self.url = named = b"/"
        return named

    def _leave_to_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._heard = True
        self._unheard = 0
        if self._receiving is not None:
            try:
                self._receiving.body.add(body)
            except PayloadTooLarge as error:
                raise Refused(fault_answer(error)) from None
        elif self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.parser.should_upgrade():
            return
        self._heard = True
        self._partial = False
        exchange = self._receiving
        if exchange is not None:
            self._receiving = None
            self._enter(exchange)
        elif self.cycle is not None:
            super().on_message_complete()

    # --- serving ---

    def _last_cycle(self) -> RequestResponseCycle | None:
        return self.cycle  # uvicorn declares it without the None that it starts with

    def _is_free(self) -> bool:
        cycle = self._last_cycle()
        return self._answering is None and (cycle is None or cycle.response_complete)

    def _enter(self, exchange: Exchange) -> None:
        if self._is_free():
            self._start(exchange)
        else:
            self._wait_in_line(exchange, None)

    def _start(self, exchange: Exchange) -> None:
        self._answering = exchange
        outcome = exchange.refused or self._serve(exchange)
        if isinstance(outcome, Answer):
            self.finish(exchange, outcome)
        else:
            exchange.call = outcome
            self.tasks.add(exchange)  # type: ignore[arg-type]

    def _serve(self, exchange: Exchange) -> Answer | Call:
        body = exchange.body.whole()
        return self.v2.answer(exchange.method, exchange.path, exchange.headers, body, exchange.reply)

    def finish(self, exchange: Exchange, answer: Answer) -> None:
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
        if self._is_last() and not self._deaf:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """The next request of the connection, if one waits."""
        super().on_response_complete()
        if self.transport.is_closing() or self._deaf:
            return
        if len(self.pipeline) >= _LINE_LIMIT:
            self.flow.pause_reading()
        if self._partial:
            self._watch(_STALL_S)

    def _is_last(self) -> bool:
        """Whether the server stops, and nothing more of this connection has come."""
        return self._stopping and not self.pipeline and self._receiving is None

    def _write(self, exchange: Exchange, answer: Answer) -> None:
        if self.transport.is_closing():
            return
        keep_alive = exchange.keep_alive and not self._is_last()
        content = encode(exchange, answer, keep_alive)
        if len(answer.body) < _JOIN_BELOW:
            self.transport.write(b"".join(content))
        else:
            self.transport.writelines(content)
        if exchange.refused is not None and self.transport.can_write_eof():
            # Closing now would reset the connection, and a client that still sends lose the answer. That is done
            # when the client has closed it, or as with any idle connection.
            self.transport.write_eof()
        elif not keep_alive:
            self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """The next request of the connection, ours or for ASGI (uvicorn calls this for what waited in line, too)."""
        if self._answering is not None:
            self._wait_in_line(cycle, app)
        elif isinstance(cycle, Exchange):
            self._answering = cycle
            self.loop.call_soon(self._start, cycle)  # not at once: thousands may be in line, each inside the last one
        else:
            super()._start_asgi_task(cycle, app)

    def _wait_in_line(self, request: Any, app: Any) -> None:
        """Pipelined: answers leave in the order of the requests. uvicorn's line serves both kinds.

        Reading goes on for a while, because only so is it noticed that the client has left.
        """
        self.pipeline.appendleft((request, app))
        large = isinstance(request, Exchange) and request.body.size > _LINE_BODY_LIMIT
        if large or len(self.pipeline) >= _LINE_LIMIT:
            self.flow.pause_reading()

    # --- the connection's end ---

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: nobody waits for the answer."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        if self._answering is not None:
            self.tasks.discard(self._answering)
            self._answering.abandon()

    def shutdown(self) -> None:
        """The server stops: answer what has come and what is on its way here, then close."""
        self._stopping = True
        self.loop.call_later(_LAST_CHANCE_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._is_free() and self._receiving is None:
            self.transport.close()
        elif self.cycle is not None:
            self.cycle.keep_alive = False
