"""Why a request is not read to its end."""

from __future__ import annotations

from typing import Final

from gateway.rest.answer import Answer, Headers, error_answer

#: Bytes of a request's line and headers, and of its trailers. A parser keeps them until they are complete.
_HEAD_LIMIT: Final = 64 << 10

NO_HTTP: Final = error_answer(400, "Invalid HTTP request received.")


class Refused(Exception):
    """Raised in the parser's callbacks, which ends the parsing; ``answer`` is what the client gets."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


def check_head(size: int) -> None:
    """Raises ``Refused`` for a head of so many bytes if that is too large."""
    if size > _HEAD_LIMIT:
        text = (
            f"the request's line and headers (or its trailers) are larger than the limit of {_HEAD_LIMIT} bytes; "
            "send tensors and parameters in the body"
        )
        raise Refused(error_answer(431, text))


def announced(headers: Headers) -> int:
    """The size of the body by its head; 0 if that says none (httptools has refused what is no number)."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return 0
