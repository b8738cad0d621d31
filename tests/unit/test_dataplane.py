"""The last steps of a request in the data plane, where an answer and its client's leaving may meet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from backends.messages import Answers
from gateway.inference.request import InferRequest
from gateway.lifecycle.catalog import Catalog
from gateway.serving.dataplane import DataPlane
from gateway.workers.channel import Reply
from support.peer import connected


async def test_an_answer_that_comes_as_its_client_leaves_gives_its_memory_back() -> None:
    """Both in one turn of the loop: nobody reads the answer, and its blocks of the worker's arena are free again."""
    manager: Any = None  # not asked
    dataplane = DataPlane(Catalog(), manager)
    async with connected() as peer:
        replica: Any = SimpleNamespace(id="m:1-0", process=SimpleNamespace(channel=peer.channel))
        call = asyncio.create_task(dataplane._call(replica, InferRequest("m", "", []), 0))
        (request,) = await peer.requests()
        released: list[str] = []
        reply = Reply([], lambda: released.append("yes"), 0, Answers([], 1, 0, 0, 0))
        peer.channel._sent[request.id].future.set_result(reply)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert released == ["yes"]
