"""The lane for work that would hold up others: a slice of it in each turn of the loop, whatever waits here."""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable
from typing import Any, Final

from gateway.errors import GatewayError, Internal, Overloaded
from gateway.inference.slices import Slices, T

log = logging.getLogger("tensorgate.serving")

#: So many take turns; the others wait in order. A short piece of work does not wait for a long one then.
_TURNS: Final = 4
#: Bytes and pieces of work that may be here before no more requests are taken. An answer is always taken.
MAX_BYTES: Final = 256 << 20
MAX_PIECES: Final = 1024


class Work:
    """A piece of work in the lane; ``done`` gets its result or why there is none, unless it is cancelled before."""

    __slots__ = ("_lane", "done", "size", "slices")

    def __init__(self, lane: Lane, slices: Slices[Any], done: Callable[[Any], None], size: int) -> None:
        self._lane = lane
        self.slices: Slices[Any] | None = slices
        self.done = done
        self.size = size

    def cancel(self) -> None:
        """Nobody wants the result any more. Does nothing once there is one."""
        if self.slices is not None:
            self._lane.leave(self)


class Lane:
    """Belongs to one event loop."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_pieces: int = MAX_PIECES) -> None:
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces
        self._pieces: collections.deque[Work] = collections.deque()
        self._bytes = 0
        self._turning = False

    def enter(self, slices: Slices[T], done: Callable[[T | GatewayError], None], size: int = 0) -> Work:
        """Begin; ``done`` is never called from in here. ``size`` is that of a request in bytes, 0 is always taken.

        Raises ``Overloaded`` if too much is here already.
        """
        if size and (self._bytes >= self._max_bytes or len(self._pieces) >= self._max_pieces):
            raise Overloaded(
                f"{len(self._pieces)} large requests of {self._bytes} bytes are being read already (at most "
                f"{self._max_pieces}, or {self._max_bytes} bytes); try again later, or send tensors of numbers in "
                "binary form, which takes no time to read"
            )
        work = Work(self, slices, done, size)
        self._bytes += size
        self._pieces.append(work)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        return work

    async def result(self, slices: Slices[T], size: int = 0) -> T:
        """``enter`` for who would rather wait. A cancelled task cancels the work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(outcome: T | GatewayError) -> None:
            if future.cancelled():
                return
            if isinstance(outcome, GatewayError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        work = self.enter(slices, settle, size)
        try:
            return await future
        finally:
            work.cancel()

    def leave(self, work: Work) -> None:
        """Give up a piece of work."""
        slices, work.slices = work.slices, None
        if slices is not None:
            slices.close()
            self._pieces.remove(work)
            self._bytes -= work.size

    def _turn(self) -> None:
        """One slice of the first, which then lets the others go ahead."""
        if not self._pieces:
            self._turning = False
            return
        asyncio.get_running_loop().call_soon(self._turn)
        work = self._pieces[0]
        assert work.slices is not None  # it is in the lane
        try:
            next(work.slices)
        except StopIteration as end:
            self._end(work, end.value)
        except GatewayError as error:
            self._end(work, error)
        except Exception as error:
            log.exception("a large request or answer failed")
            self._end(work, Internal(f"internal error ({type(error).__name__}); the server's log has the details"))
        else:
            self._pieces.popleft()
            self._pieces.insert(_TURNS - 1, work)

    def _end(self, work: Work, outcome: Any) -> None:
        self.leave(work)
        work.done(outcome)
