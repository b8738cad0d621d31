"""What can go wrong for a client, without a word of any protocol: each transport has one table from these classes.

GatewayError
├── InvalidRequest        the request is at fault; the text names field, value, limit and mend
│   ├── PayloadTooLarge   ... by its size
│   └── UnsupportedMedia  ... by its encoding
├── NotFound              no such model, version or thing
├── Conflict              the thing exists already, or its state forbids the change
│   └── Outdated          somebody else has changed it since it was read
├── Unauthenticated       no key, or a wrong one
├── Unsupported           the server (or this model) does not offer that
├── Unavailable           not now: try again later, perhaps elsewhere
│   ├── ModelNotReady     the version is not loaded (yet, or any more)
│   ├── Overloaded        a queue is full; carries ``retry_after_s``
│   └── WorkerDied        the worker went away while it had the request
├── DeadlineExceeded      the client's time is up
├── Cancelled             the client is gone
├── ModelFailed           the model raised while computing
└── Internal              a fault of the server
"""

from __future__ import annotations


class GatewayError(Exception):
    """Base of all errors that an answer can carry; ``str()`` is the text for the client."""


class InvalidRequest(GatewayError):
    """The client can mend it."""


class PayloadTooLarge(InvalidRequest):
    """The body (or what it expands to) is over the limit."""


class UnsupportedMedia(InvalidRequest):
    """A content encoding that the server does not read."""


class NotFound(GatewayError):
    """There is no such model, version or route."""


class Conflict(GatewayError):
    """The change does not fit the present state."""


class Outdated(Conflict):
    """The change was made for a revision that is not the present one."""


class Unauthenticated(GatewayError):
    """A key is needed, or the one given is not known."""


class Unsupported(GatewayError):
    """A feature that is not offered here."""


class Unavailable(GatewayError):
    """Not now."""

    retry_after_s: float | None = None


class ModelNotReady(Unavailable):
    """The version exists and is not ready; it may be after ``retry_after_s`` seconds, ``None`` where nobody knows."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Overloaded(Unavailable):
    """A bound was reached; the text says which."""

    retry_after_s = 1.0


class WorkerDied(Unavailable):
    """The request was lost with its worker."""

    retry_after_s = 1.0


class DeadlineExceeded(GatewayError):
    """The request's time ran out."""


class Cancelled(GatewayError):
    """The client went away."""


class ModelFailed(GatewayError):
    """The model's own failure, with its text."""


class Internal(GatewayError):
    """A fault of ours."""
