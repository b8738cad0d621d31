"""Work in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.lifecycle.background import in_background


async def test_what_the_work_returns_and_what_it_raises_arrive() -> None:
    assert await in_background(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_background(divmod, 7, 0)


async def test_whoever_is_cancelled_leaves_and_the_work_ends_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    waiting = asyncio.create_task(in_background(work))
    assert await asyncio.to_thread(begun.wait, 60)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "background work")
    assert thread.daemon, "the process may end without it"
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not ended.is_set()
    may_end.set()
    await asyncio.to_thread(thread.join, 60)
    assert ended.is_set()
    assert not recwarn.list
