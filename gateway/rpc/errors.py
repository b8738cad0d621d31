"""The one table from the gateway's errors to gRPC status codes."""

from __future__ import annotations

import logging
from typing import Any, Final, NoReturn

import grpc

from gateway import errors

#: Clients take 8 KiB of metadata for a whole answer, and a byte outside ASCII becomes three on the way.
MAX_TEXT: Final = 2000
#: gRPC's own word for "try again in so many milliseconds" (proposal A6); clients with a retry policy follow it.
PUSHBACK: Final = "grpc-retry-pushback-ms"
#: The same in whole seconds, under the name and in the form that HTTP gives it.
RETRY_AFTER: Final = "retry-after"

STATUS: Final[dict[type[errors.GatewayError], grpc.StatusCode]] = {
    errors.GatewayError: grpc.StatusCode.INTERNAL,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    # What gRPC libraries themselves answer to a message over the limit.
    errors.PayloadTooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    # What gRPC prescribes for an encoding that the server does not read.
    errors.UnsupportedMedia: grpc.StatusCode.UNIMPLEMENTED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    # The counterpart of HTTP 409; FAILED_PRECONDITION is 400 to gateways that translate.
    errors.Conflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.Outdated: grpc.StatusCode.ABORTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.ModelNotReady: grpc.StatusCode.UNAVAILABLE,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.WorkerDied: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.ModelFailed: grpc.StatusCode.INTERNAL,
    errors.Internal: grpc.StatusCode.INTERNAL,
}

_log: Final = logging.getLogger(__name__)


def status(error: errors.GatewayError) -> grpc.StatusCode:
    """The code of an error's class, or of its nearest base in the table."""
    return next(STATUS[base] for base in type(error).__mro__ if base in STATUS)


def text(error: errors.GatewayError) -> str:
    """The error's text, short enough for a status message."""
    raw = str(error).encode(errors="replace")
    if len(raw) <= MAX_TEXT:
        return raw.decode()
    return raw[:MAX_TEXT].decode(errors="ignore") + "..."


def trailing_metadata(error: errors.GatewayError) -> tuple[tuple[str, str], ...]:
    """Says when to try again, where the error knows."""
    if isinstance(error, errors.Unavailable) and error.retry_after_s is not None:
        seconds = max(1, round(error.retry_after_s))
        return (PUSHBACK, str(round(error.retry_after_s * 1000))), (RETRY_AFTER, str(seconds))
    return ()


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End the call with the error's status. What is no ``GatewayError`` is our fault: logged whole, told in brief."""
    if not isinstance(error, errors.GatewayError):
        _log.error("a gRPC call failed unexpectedly", exc_info=error)
        error = errors.Internal(f"internal error ({type(error).__name__}); the server's log has the details")
    await context.abort(status(error), text(error), trailing_metadata(error))
