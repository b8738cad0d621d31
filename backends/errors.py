"""Errors that cross the border between a worker and the gateway.

An error crosses as ``kind`` and ``text``: the gateway has no framework with which to unpickle a framework's exception.

    BackendError
    ├── LoadFailed         the model cannot be served; the text says why and what to do
    │   ├── MissingExtra   the framework is not installed in the worker's interpreter
    │   └── OutOfMemory    the model does not fit
    ├── InvalidInput       this request's tensors are at fault (the client can mend it)
    └── InferenceFailed    the framework failed while computing
"""


class BackendError(Exception):
    """Base of all errors raised by a backend; ``kind`` is its name on the wire."""

    kind = "backend"


class LoadFailed(BackendError):
    """The model cannot be loaded."""

    kind = "load_failed"


class MissingExtra(LoadFailed):
    """The framework's package is missing; the text holds the install command."""

    kind = "missing_extra"


class OutOfMemory(LoadFailed):
    """The model needs more memory than there is; the text holds both numbers."""

    kind = "out_of_memory"


class InvalidInput(BackendError):
    """The request's tensors do not fit the model."""

    kind = "invalid_input"


class InferenceFailed(BackendError):
    """The framework raised while computing."""

    kind = "inference_failed"
