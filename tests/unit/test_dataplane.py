"""The last steps of a request in the data plane, where an answer and its client's leaving may meet."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from backends.messages import Answers
from gateway.errors import DeadlineExceeded, GatewayError, InvalidRequest, Overloaded
from gateway.inference.request import InferRequest, InferResponse
from gateway.serving.call import Call
from gateway.serving.dataplane import DataPlane
from gateway.workers.channel import Reply
from support.peer import Peer, connected
from support.wait import until


class _Served:
    """What a call needs of a version, with one replica: the peer's channel."""

    def __init__(self, peer: Peer) -> None:
        self.label = "m:1"
        self.validator = SimpleNamespace(check=lambda *_: None)
        self.signature = SimpleNamespace(max_batch_size=0)
        self.record = SimpleNamespace(number=1)
        self.statistics = SimpleNamespace(record_success=self._succeeded, record_failure=self._failed)
        self.replica: Any = SimpleNamespace(id="m:1-0", process=SimpleNamespace(channel=peer.channel))
        self.waiting = 0
        self.full = False
        self.inside = 0
        self.outcomes: list[str] = []
        self.on_room: Any = None

    def pick(self) -> Any:
        return None if self.full else self.replica

    def enter(self) -> None:
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1

    def queue(self, on_room: Any) -> int:
        self.on_room = on_room
        return 7

    def withdraw(self, ticket: int) -> None:
        assert ticket == 7
        self.on_room = None

    def _succeeded(self, *_: int) -> None:
        self.outcomes.append("success")

    def _failed(self, _: int) -> None:
        self.outcomes.append("failure")


def request(**given: Any) -> InferRequest:
    return InferRequest("m", "", [], **given)


def reply(released: list[str]) -> Reply:
    return Reply([], lambda: released.append("yes"), 0, Answers([], 1, 0, 0, 0))


async def test_an_answer_that_comes_as_its_client_leaves_gives_its_memory_back() -> None:
    """Both in one turn of the loop: nobody reads the answer, and its blocks of the worker's arena are free again."""
    manager: Any = None  # not asked
    async with connected() as peer:
        catalog: Any = SimpleNamespace(resolve=lambda *_: _Served(peer))
        waiting = asyncio.create_task(DataPlane(catalog, manager).infer(request()))
        (sent,) = await peer.requests()
        released: list[str] = []
        on_reply = peer.channel._sent[sent.id].on_reply
        assert on_reply is not None
        on_reply(reply(released))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert released == ["yes"]


@pytest.mark.parametrize("end", ["reply", "error", "cancel", "expire", "full", "waited"])
async def test_every_end_is_accounted_for_once_and_leaves_nothing_to_the_garbage_collector(end: str) -> None:
    """A cycle in each request would stop the server for milliseconds now and then."""
    async with connected() as peer:
        served: Any = _Served(peer)
        served.full = end in ("full", "waited")
        got: list[InferResponse | GatewayError] = []
        gc.collect()
        gc.disable()
        try:
            call = Call(served, request(timeout_us=1000 if end in ("expire", "waited") else 20_000_000), got.append)
            call.start()
            if served.full:
                await finish_in_the_queue(served, end, got)
            else:
                await finish_in_the_worker(peer, call, end, got)
            call.cancel()  # too late: nothing happens
            assert served.inside == 0
            assert served.outcomes == ["success" if end == "reply" else "failure"]
            del call
            assert gc.collect() == 0
        finally:
            gc.enable()


async def finish_in_the_worker(peer: Peer, call: Call, end: str, got: list[Any]) -> None:
    (sent,) = await peer.requests()
    if end == "cancel":
        call.cancel()
        assert got == []
    else:
        on_reply = peer.channel._sent[sent.id].on_reply
        assert on_reply is not None
        if end != "expire":
            del peer.channel._sent[sent.id]
            on_reply(reply([]) if end == "reply" else InvalidRequest("no"))
        del on_reply
        await until(lambda: bool(got))
        expected = {"reply": InferResponse, "error": InvalidRequest, "expire": DeadlineExceeded}[end]
        assert [type(outcome) for outcome in got] == [expected]
    got.clear()


async def finish_in_the_queue(served: Any, end: str, got: list[Any]) -> None:
    if end == "full":
        on_room, served.on_room = served.on_room, None
        on_room(Overloaded("no room"))
    await until(lambda: bool(got))
    assert [type(outcome) for outcome in got] == [Overloaded if end == "full" else DeadlineExceeded]
    assert served.on_room is None
    got.clear()
