"""REST without a client's help, for requests that no client would send."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from support.server import PATIENCE_S, Server


class Reply(NamedTuple):
    """An HTTP answer; the names of ``headers`` are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error's answer, which is JSON whatever happened."""
        assert self.headers.get("content-type") == "application/json", self
        answer = self.json
        assert list(answer) == ["error"], self
        assert isinstance(answer["error"], str), self
        return str(answer["error"])


def http_call(
    server: Server, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """One HTTP exchange; a ``body`` of an iterator is sent in chunks."""
    connection = http.client.HTTPConnection(server.http, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def index(server: Server) -> list[dict[str, str]]:
    """The repository's index."""
    entries: list[dict[str, str]] = http_call(server, "POST", "/v2/repository/index", b"").json
    return entries


def post_infer(server: Server, model: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """POST to a model; a ``body`` of a dictionary becomes JSON."""
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    return http_call(server, "POST", f"/v2/models/{model}/infer", content, headers)


def rest_error(
    server: Server, model: str, body: Any, headers: Mapping[str, str] | None = None, status: int = 400
) -> str:
    """The text of the error that a POST to a model is answered with; status and form are checked."""
    reply = post_infer(server, model, body, headers)
    assert reply.status == status, reply
    return reply.error


def binary_body(head: Mapping[str, Any], *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request with binary tensors."""
    text = json.dumps(head).encode()
    return b"".join((text, *tensors)), {"Inference-Header-Content-Length": str(len(text))}


def connect(server: Server) -> socket.socket:
    """A bare connection to REST."""
    host, _, port = server.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def talk(server: Server, data: bytes, *, finish: bool = False) -> bytes:
    """Send bytes; everything that comes back until the server closes. ``finish`` says that this was all (which means to
    the server that the client is gone), for data that may leave it waiting for more."""
    with connect(server) as connection:
        with contextlib.suppress(ConnectionError):  # it may have heard enough
            connection.sendall(data)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):  # a reset ends the answer as well
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)
