"""Work that may take minutes, and that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[..., T], *arguments: object) -> T:
    """What ``work`` returns or raises, called in a thread of its own.

    ``asyncio.to_thread`` would keep a server that was told to stop until the last gigabyte of a model is digested.
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()  # whoever is cancelled while waiting leaves, and the thread goes on

    def run() -> None:
        try:
            done.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name=f"background {work.__name__}", daemon=True).start()
    return await asyncio.wrap_future(done)
