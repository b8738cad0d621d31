"""The table error class -> HTTP status, for every HTTP surface."""

from __future__ import annotations

from typing import Final

from gateway import errors

#: 499: the client closed the request (a convention of nginx; nobody is left to read it).
STATUS: Final[dict[type[errors.GatewayError], int]] = {
    errors.InvalidRequest: 400,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMedia: 415,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Outdated: 412,
    errors.Unauthenticated: 401,
    errors.Unsupported: 501,
    errors.Unavailable: 503,
    errors.ModelNotReady: 503,
    errors.Overloaded: 503,
    errors.WorkerDied: 503,
    errors.DeadlineExceeded: 504,
    errors.Cancelled: 499,
    errors.ModelFailed: 500,
    errors.Internal: 500,
}


def status_of(error: errors.GatewayError) -> int:
    """The HTTP status of an error; a test asserts that every class has one."""
    return STATUS[type(error)]


def headers_of(error: errors.GatewayError) -> list[tuple[bytes, bytes]]:
    """Headers that go with it: ``Retry-After`` in whole seconds."""
    if isinstance(error, errors.Unavailable) and error.retry_after_s is not None:
        return [(b"retry-after", str(max(1, round(error.retry_after_s))).encode())]
    if isinstance(error, errors.Unauthenticated):
        return [(b"www-authenticate", b"Bearer")]
    return []
