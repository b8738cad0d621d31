"""What a worker writes to standard output and error: line by line into the log, the last lines kept for a reason."""

from __future__ import annotations

import asyncio
import collections
import logging
from typing import Final

log = logging.getLogger("tensorgate.worker")

_TAIL_LINES: Final = 20
_MAX_LINE: Final = 16 << 10


class Output(asyncio.Protocol):
    """Reads one end of a pipe; ``closed`` is done when nobody holds the other end any more, or after ``close``."""

    def __init__(self, name: str) -> None:
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._name = name
        self._rest = b""
        self._cut = False  # the line at hand was too long: its beginning is kept, the rest of it is dropped
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of ``asyncio.Protocol``."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Part of ``asyncio.Protocol``."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._keep(line)
            self._cut = False
        if len(rest) > _MAX_LINE:
            self._keep(rest)
            self._cut, rest = True, b""
        self._rest = rest

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of ``asyncio.Protocol``."""
        if self._rest:
            self._keep(self._rest)
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        """Read no more, whoever still holds the other end."""
        if self._transport is not None:
            self._transport.close()

    def _keep(self, line: bytes) -> None:
        if self._cut:
            return
        text = line[:_MAX_LINE].decode(errors="replace").rstrip()
        if len(line) > _MAX_LINE:
            text += " ... (cut)"
        self.tail.append(text)
        log.info("[%s] %s", self._name, text)
