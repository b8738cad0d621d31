"""Large JSON over REST: the loop turns while it is decoded and encoded, and whoever leaves is forgotten."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from backends.tensor import Tensor, from_numpy
from gateway.errors import DeadlineExceeded, GatewayError
from gateway.inference.request import InferRequest, InferResponse
from gateway.inference.slices import SLICE
from gateway.rest.answer import Answer
from gateway.rest.v2.app import V2App
from gateway.rest.v2.decode import decode
from gateway.serving.call import Call
from gateway.serving.dataplane import DataPlane
from gateway.serving.lane import Lane
from support.wait import until

COUNT = 500_000
Body = Callable[[], bytes]


class Plane:
    """A data plane whose model answers when it is told to."""

    def __init__(self) -> None:
        self.lane = Lane()
        self.requests: list[InferRequest] = []
        self.done: Any = None
        self.after: Call | None = None
        self.released = 0
        self.cancelled = 0
        self.failure: GatewayError | None = None

    def start(self, request: InferRequest, done: Any) -> Plane:
        if self.failure is not None:
            raise self.failure
        self.requests.append(request)
        self.done = done
        return self

    def finish(self, *outputs: Tensor) -> None:
        self.after = self.done(InferResponse("m", "1", list(outputs), self._release))

    def cancel(self) -> None:
        self.cancelled += 1

    def _release(self) -> None:
        self.released += 1


class Asked:
    """A request and what came of it."""

    def __init__(self, plane: Plane, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.plane = plane
        self.answers: list[Answer] = []
        v2 = V2App(cast(DataPlane, plane), 1 << 30, 1 << 30)
        self.call = v2.answer("POST", b"/v2/models/m/infer", headers or [], body, self.answers.append)

    async def decoded(self) -> int:
        """The turns until it has left the lane."""
        return await turns_until(lambda: self.answers or self.plane.requests)

    @property
    def error(self) -> str:
        return str(json.loads(self.answers[0].body)["error"])


async def turns_until(condition: Callable[[], object]) -> int:
    """How often the loop turns until then."""
    turns = 0
    while not condition():
        await asyncio.sleep(0)
        turns += 1
    return turns


def body(datatype: str, data: str, count: int = COUNT, **more: Any) -> bytes:
    """A request whose data is given as text."""
    head = {"inputs": [{"name": "x", "shape": [count], "datatype": datatype, "data": ["HERE"]}], **more}
    return json.dumps(head).replace('["HERE"]', data).encode()


def numbers(**more: Any) -> bytes:
    return body("FP32", f"[{', '.join(['0.125'] * COUNT)}]", **more)


def nested() -> bytes:
    return body("INT8", f"[[{'], ['.join(['7'] * COUNT)}]]")


def strings() -> bytes:
    return body("BYTES", json.dumps(['a,[é"\\'] * COUNT))


def with_constants() -> bytes:
    return body("FP32", f"[{', '.join(['NaN', '1.5'] * (COUNT // 2))}]")


@pytest.mark.parametrize(
    ("given", "element", "times"),
    [
        (numbers, np.float32(0.125).tobytes(), COUNT),
        (nested, b"\x07", COUNT),
        (strings, b'\x07\0\0\0a,[\xc3\xa9"\\', COUNT),
        (with_constants, np.array([np.nan, 1.5], "<f4").tobytes(), COUNT // 2),
    ],
)
async def test_the_loop_turns_while_a_large_request_is_decoded(given: Body, element: bytes, times: int) -> None:
    content = given()
    asked = Asked(Plane(), content)
    assert not isinstance(asked.call, Answer)
    assert await asked.decoded() > len(content) // SLICE
    (request,) = asked.plane.requests
    (tensor,) = request.inputs
    assert bytes(tensor.data) == element * times


async def test_a_large_request_may_be_compressed() -> None:
    content = numbers()
    asked = Asked(Plane(), gzip.compress(content), [(b"content-encoding", b"gzip")])
    assert await asked.decoded() > 2 * len(content) // SLICE
    assert len(asked.plane.requests[0].inputs[0].data) == 4 * COUNT


async def test_a_small_request_is_started_at_once() -> None:
    content = body("FP32", "[1, 2]", 2)
    for headers, sent in ([], content), ([(b"content-encoding", b"gzip")], gzip.compress(content)):
        assert len(Asked(Plane(), sent, headers).plane.requests) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (numbers().replace(b"0.125]", b'"a"]'), rf"Expected `float`, got `str` - at `\$\[{COUNT - 1}\]`$"),
        (numbers().replace(b"0.125]", b"1e40]"), rf"^input 'x' element {COUNT - 1} is 1e\+40, out of range for FP32"),
        (numbers().replace(b"0.125]", b"0.125"), "^failed to parse the request JSON buffer: "),
        (numbers().replace(b"0.125, 0.125]", b"0.125]"), rf"\[{COUNT}\] needs {COUNT} elements, got {COUNT - 1}$"),
        (numbers(id=5), r"^the request does not have the protocol's form: Expected `str`, got `int` - at `\$\.id`$"),
        (numbers(parameters={"p": "a" * (1 << 20)}), r"^the request has \d+ bytes of JSON beside the arrays in 'data'"),
    ],
)
async def test_a_large_request_that_is_wrong_is_refused_as_a_small_one(content: bytes, text: str) -> None:
    asked = Asked(Plane(), content)
    if not isinstance(asked.call, Answer):
        await asked.decoded()
    assert asked.plane.requests == []
    assert asked.answers[0].status == 400
    assert re.search(text, asked.error), asked.error


async def test_what_refuses_the_call_is_the_answer() -> None:
    plane = Plane()
    plane.failure = DeadlineExceeded("too late")
    asked = Asked(plane, numbers())
    await asked.decoded()
    assert (asked.answers[0].status, asked.error) == (504, "too late")


async def test_a_client_that_leaves_while_its_request_is_decoded_is_forgotten() -> None:
    asked = Asked(Plane(), numbers())
    await asyncio.sleep(0)
    assert not isinstance(asked.call, Answer)
    asked.call.cancel()
    asked.call.cancel()
    second = Asked(asked.plane, numbers(id="second"))
    await second.decoded()
    assert [request.id for request in asked.plane.requests] == ["second"]
    assert (asked.answers, asked.plane.cancelled) == ([], 0)


async def test_a_client_that_leaves_later_cancels_the_call() -> None:
    asked = Asked(Plane(), numbers())
    await asked.decoded()
    assert not isinstance(asked.call, Answer)
    asked.call.cancel()
    assert (asked.answers, asked.plane.cancelled) == ([], 1)


async def test_the_time_that_decoding_takes_counts() -> None:
    limit = 60_000_000
    asked = Asked(Plane(), numbers(parameters={"timeout": limit}))
    await asked.decoded()
    late = Asked(Plane(), numbers(parameters={"timeout": 1}))
    await late.decoded()
    assert 0 < asked.plane.requests[0].timeout_us < limit
    assert late.plane.requests[0].timeout_us == 1


# --- answers ---

LARGE_ANSWERS = [
    from_numpy("y", np.full(COUNT, 0.5, np.float32)),
    from_numpy("y", np.array(['ü"'] * COUNT, object)),
    from_numpy("y", np.array([np.nan, 1.0] * (COUNT // 2), np.float32)),
]


@pytest.mark.parametrize("output", LARGE_ANSWERS)
async def test_the_loop_turns_while_a_large_answer_is_encoded(output: Tensor) -> None:
    asked = Asked(Plane(), body("FP32", "[1]", 1))
    asked.plane.finish(output)
    assert await turns_until(lambda: asked.answers) >= len(output.data) // SLICE
    assert (asked.answers[0].status, asked.plane.released) == (200, 1)
    (found,) = json.loads(asked.answers[0].body)["outputs"]
    expected = [element.decode() if isinstance(element, bytes) else element for element in output.numpy().tolist()]
    assert repr(found["data"]) == repr(expected)


async def test_a_large_answer_in_binary_is_given_at_once() -> None:
    asked = Asked(Plane(), body("FP32", "[1]", 1, parameters={"binary_data_output": True}))
    asked.plane.finish(LARGE_ANSWERS[0])
    assert (len(asked.answers), asked.plane.released) == (1, 1)


async def test_an_answer_that_cannot_be_json_is_refused_and_released() -> None:
    asked = Asked(Plane(), body("FP32", "[1]", 1))
    asked.plane.finish(from_numpy("y", np.array([b"good"] * COUNT + [b"\xff"], object)))
    await turns_until(lambda: asked.answers)
    assert (asked.answers[0].status, asked.plane.released) == (400, 1)
    assert asked.error.startswith("output 'y' holds bytes that are not UTF-8")


async def test_a_client_that_leaves_while_its_answer_is_encoded_gives_the_memory_back() -> None:
    asked = Asked(Plane(), body("FP32", "[1]", 1))
    asked.plane.finish(LARGE_ANSWERS[0])
    await asyncio.sleep(0)
    assert asked.plane.after is not None
    asked.plane.after.cancel()
    assert asked.plane.released == 1
    later = Asked(asked.plane, body("FP32", "[1]", 1))
    asked.plane.finish(LARGE_ANSWERS[0])
    await until(lambda: later.answers)
    assert asked.answers == []


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_many_names_take_time_in_proportion(field: str) -> None:
    """To look up each among all before it would take 256 times as long for 16 times as many."""

    def seconds(count: int) -> float:
        entry = {"name": "x", "shape": [0], "datatype": "FP32", "data": []}
        names = [{"name": f"n{number}"} for number in range(count)]
        entries = names if field == "outputs" else [entry | name for name in names]
        body = json.dumps({"inputs": [entry]} | {field: entries}).encode()
        began = time.process_time()
        decode("m", "", body, None, 1 << 30)
        return time.process_time() - began

    seconds(100)
    assert seconds(16_000) < 64 * max(seconds(1_000), 1e-4)
