"""One inference request and its answer, as every transport sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backends.tensor import Tensor


class InferRequest(msgspec.Struct):
    """``version`` "" leaves the choice to the server; ``outputs`` empty asks for all; ``timeout_us`` 0 is none.

    ``timeout_us`` counts from the moment in which the data plane takes the request, over queue and execution.
    ``headers`` are those of HTTP, or gRPC's metadata; names in lower case.
    """

    model: str
    version: str
    inputs: list[Tensor]
    outputs: tuple[str, ...] = ()
    id: str = ""
    parameters: dict[str, Any] = {}
    priority: int = 0
    timeout_us: int = 0
    trace: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()

    def header(self, name: bytes) -> bytes | None:
        """The value of a header (the first of that name), None without it."""
        return next((value for key, value in self.headers if key == name), None)

    def parameter(self, name: str) -> object:
        """The value of a parameter, None without it."""
        return self.parameters.get(name)


class InferResponse(msgspec.Struct):
    """The outputs look into the worker's memory until ``release`` is called: encode first, then release, always."""

    model: str
    version: str
    outputs: list[Tensor]
    release: Callable[[], None]
    id: str = ""
    parameters: dict[str, Any] = {}
