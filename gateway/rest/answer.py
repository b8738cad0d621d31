"""An answer over HTTP as a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from gateway.errors import GatewayError
from gateway.rest.errors import headers_of, status_of

Headers = list[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
OCTETS: Final = (b"content-type", b"application/octet-stream")

#: Characters of an error's text, and what is shown of a longer one.
_LONGEST: Final = 2000
_BEGINNING: Final = 1000
_END: Final = 500


class Answer(NamedTuple):
    """A whole answer; ``content-length`` is added by who sends it."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


#: Gets the answer to a request.
Reply = Callable[[Answer], None]


def json_answer(value: Any, status: int = 200) -> Answer:
    """A value as JSON."""
    return Answer(status, msgspec.json.encode(value), (JSON,))


def error_answer(status: int, text: str, *headers: tuple[bytes, bytes]) -> Answer:
    """The protocol's error form, ``{"error": text}``, which every client of it reads.

    A text may repeat what a client sent: the middle of a long one is left out (the mend is at its end), and half pairs
    of surrogates are replaced.
    """
    if len(text) > _LONGEST:
        text = f"{text[:_BEGINNING]} ... ({len(text)} characters) ... {text[-_END:]}"
    sendable = text.encode(errors="replace").decode()
    return Answer(status, msgspec.json.encode({"error": sendable}), (JSON, *headers))


def fault_answer(error: GatewayError) -> Answer:
    """An error of ours with its status and headers."""
    return error_answer(status_of(error), str(error), *headers_of(error))


def our_fault() -> Answer:
    """What a client is told of a fault of ours."""
    return error_answer(500, "internal error of the server; its log has the details")
