"""Hearing of changes that others make in the same database.

The change counter is the truth, and is read again and again. PostgreSQL's notifications only say when: they are lost
with their connection, and then the counter is read more often until there is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

log = logging.getLogger("tensorgate.registry")

CHANNEL: Final = "tensorgate_registry"
#: Seconds between two looks at the counter: with notifications, and without.
_LISTENING_S: Final = 5.0
_POLLING_S: Final = 0.5
_RECONNECT_S: Final = 2.0


async def notify(connection: AsyncConnection) -> None:
    """Tell those who listen, once this transaction is committed."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})


class Watch:
    """Waits for the counter to move. ``revision`` reads it; ``engine`` is None where there are no notifications."""

    def __init__(self, revision: Callable[[], Awaitable[int]], engine: AsyncEngine | None) -> None:
        self._revision = revision
        self._woken = asyncio.Event()
        self._listening = False
        self._listener = asyncio.create_task(self._listen(engine), name="registry notifications") if engine else None

    async def wait(self, known: int, timeout_s: float) -> int:
        """The counter, as soon as it is not ``known``, or after ``timeout_s``. Raises what ``revision`` raises."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            self._woken.clear()
            found = await self._revision()
            left_s = deadline - asyncio.get_running_loop().time()
            if found != known or left_s <= 0:
                return found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), min(left_s, _LISTENING_S if self._listening else _POLLING_S))

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener

    async def _listen(self, engine: AsyncEngine) -> None:
        while True:
            try:
                await self._listen_once(engine)
            except Exception as error:  # noqa: BLE001 - whatever it is, the counter is still read
                log.warning("no notifications from the registry's database, it is read more often: %s", error)
            finally:
                self._listening = False
            self._woken.set()
            await asyncio.sleep(_RECONNECT_S)

    async def _listen_once(self, engine: AsyncEngine) -> None:
        """Until the connection ends."""
        ended = asyncio.Event()
        async with engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            driver.add_termination_listener(lambda _: ended.set())
            await driver.add_listener(CHANNEL, lambda *_: self._woken.set())
            try:
                self._listening = True
                self._woken.set()  # what came before is not announced
                await ended.wait()
            finally:
                await connection.invalidate()
