"""The one place where an asynchronous test looks again and again: at the state of processes, which announce nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PERIOD_S = 0.005


async def until(predicate: Callable[[], T | None], timeout_s: float = 20.0) -> T:
    """Wait until ``predicate`` gives something true, and give that. Fails after ``timeout_s``: it never will."""
    try:
        async with asyncio.timeout(timeout_s):
            while not (value := predicate()):
                await asyncio.sleep(_PERIOD_S)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s:g} s in vain for {predicate}") from None
    return value


async def stays(predicate: Callable[[], bool], event: Callable[[], object]) -> None:
    """Until the event, the predicate holds whenever one looks."""

    def look() -> object:
        assert predicate()
        return event()

    await until(look)
