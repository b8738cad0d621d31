"""The last steps of a request in the data plane, where an answer and its client's leaving may meet."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.messages import Answers
from backends.spec import Signature, TensorSpec
from backends.tensor import Tensor, from_numpy
from gateway.errors import DeadlineExceeded, GatewayError, InvalidRequest, ModelNotReady, Overloaded
from gateway.inference.request import InferRequest, InferResponse
from gateway.inference.slices import SLICE_ELEMENTS
from gateway.inference.validation import Validator, walk
from gateway.lifecycle.state import VersionState
from gateway.serving.call import Inference
from gateway.serving.dataplane import DataPlane
from gateway.serving.lane import Lane
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
        catalog: Any = SimpleNamespace(route=lambda *_: _Served(peer), shadows=lambda *_: [])
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
            timeout_us = 1000 if end in ("expire", "waited") else 20_000_000
            call = Inference(served, request(timeout_us=timeout_us), got.append, Lane())
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


async def finish_in_the_worker(peer: Peer, call: Inference, end: str, got: list[Any]) -> None:
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


# --- large BYTES tensors ---

ELEMENTS = 200_000
STRINGS = from_numpy("x", np.array([b"abc"] * ELEMENTS, object))


def reading(peer: Peer, data: bytes, got: list[Any], lane: Lane, **given: Any) -> tuple[Any, Inference]:
    """A version that takes strings, and a call that has begun to read them."""
    served: Any = _Served(peer)
    served.validator = Validator("m", Signature("test", (TensorSpec("x", "BYTES", (-1,)),), ()))
    served.state = VersionState.READY
    tensor = Tensor("x", "BYTES", (ELEMENTS,), data)
    call = Inference(served, InferRequest("m", "", [tensor], **given), got.append, lane)
    call.start()
    return served, call


async def test_the_loop_turns_while_a_large_bytes_tensor_is_checked() -> None:
    async with connected() as peer:
        turns = 0
        reading(peer, STRINGS.data, [], Lane())
        while not peer.channel.in_flight:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= ELEMENTS // SLICE_ELEMENTS
        (sent,) = await peer.requests()
        assert sent.tensors[0].size == len(STRINGS.data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (STRINGS.data[7:], f"expected {ELEMENTS} string elements for inference input 'x' of shape [{ELEMENTS}], got "),
        (
            STRINGS.data[:-1],
            f"input 'x' of BYTES is malformed: element {ELEMENTS - 1} at offset {7 * (ELEMENTS - 1)}: ",
        ),
    ],
)
async def test_a_large_bytes_tensor_that_is_wrong_is_refused(data: bytes, text: str) -> None:
    async with connected() as peer:
        got: list[Any] = []
        served, call = reading(peer, data, got, Lane())
        await until(lambda: got)
        assert type(got[0]) is InvalidRequest
        assert str(got[0]).startswith(text)
        call.cancel()
        assert (served.inside, served.outcomes, peer.channel.in_flight) == (0, ["failure"], 0)


@pytest.mark.parametrize("end", ["cancel", "expire", "failed", "full"])
async def test_a_call_may_end_while_its_tensors_are_read(end: str) -> None:
    async with connected() as peer:
        got: list[Any] = []
        lane = Lane(max_bytes=1)
        served, call = reading(peer, STRINGS.data, got, lane, timeout_us=1 if end == "expire" else 0)
        if end == "cancel":
            call.cancel()
        elif end == "full":
            with pytest.raises(Overloaded):
                reading(peer, STRINGS.data, [], lane)
            call.cancel()
        elif end == "failed":
            served.state, served.not_ready = VersionState.FAILED, lambda: ModelNotReady("it has failed")
        if end in ("expire", "failed"):
            await until(lambda: got)
            assert type(got[0]) is (DeadlineExceeded if end == "expire" else ModelNotReady)
        await lane.result(walk((STRINGS,)))  # whatever was in it before has left
        assert (served.inside, served.outcomes, peer.channel.in_flight) == (0, ["failure"], 0)


async def test_what_the_transport_does_with_the_answer_is_cancelled_with_the_call() -> None:
    async with connected() as peer:
        cancelled: list[str] = []
        encoding = SimpleNamespace(cancel=lambda: cancelled.append("yes"))
        served: Any = _Served(peer)
        call = Inference(served, request(), lambda _: encoding, Lane())
        call.start()
        (sent,) = await peer.requests()
        on_reply = peer.channel._sent.pop(sent.id).on_reply
        assert on_reply is not None
        on_reply(reply([]))
        call.cancel()
        assert (cancelled, served.outcomes) == (["yes"], ["success"])
