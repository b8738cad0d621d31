"""Large typed contents over gRPC: the loop turns while they are decoded, and whoever leaves is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.inference.request import InferRequest
from gateway.inference.slices import SLICE, whole
from gateway.rpc import convert, cut
from gateway.serving.lane import Lane
from support.rpc import Plane, failure_of

COUNT = 400_000
GIVEN: dict[str, tuple[str, Any, bytes]] = {
    "FP32": ("fp32_contents", 0.5, np.float32(0.5).tobytes()),
    "INT64": ("int64_contents", -1, b"\xff" * 8),
    "INT8": ("int_contents", -2, b"\xfe"),
    "BOOL": ("bool_contents", True, b"\x01"),
    "BYTES": ("bytes_contents", b"abc", b"\x03\0\0\0abc"),
}


def message(datatype: str = "INT64", count: int = COUNT, **more: Any) -> Any:
    field, value, _ = GIVEN[datatype]
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="a", datatype=datatype, shape=[count])
    getattr(tensor.contents, field).extend([value] * COUNT)
    return service_pb2.ModelInferRequest(model_name="echo", inputs=[tensor], **more)


def stub(channel: grpc.aio.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.mark.parametrize("datatype", GIVEN)
async def test_large_contents_are_decoded_in_slices(datatype: str) -> None:
    raw = message(datatype).SerializeToString()
    work = convert.begin(raw)
    assert not isinstance(work, InferRequest)
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            (tensor,) = end.value.inputs
            break
        slices += 1
    assert slices >= len(raw) // SLICE
    assert bytes(tensor.data) == GIVEN[datatype][2] * COUNT


async def test_the_loop_turns_while_they_are_decoded(
    channel: grpc.aio.Channel, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = began = 0
    begin = convert.begin

    def noticed(raw: bytes) -> Any:
        nonlocal began
        began = turns
        return begin(raw)

    monkeypatch.setattr(convert, "begin", noticed)
    given = message("BYTES")
    call = asyncio.ensure_future(stub(channel).ModelInfer(given))
    while not plane.arrived.is_set():
        await asyncio.sleep(0)
        turns += 1
    assert turns - began > given.ByteSize() // SLICE
    await call


async def test_they_are_served(channel: grpc.aio.Channel, plane: Plane) -> None:
    answer = await stub(channel).ModelInfer(message(id="big"))
    assert list(answer.raw_output_contents) == [b"\xff" * 8 * COUNT]
    assert [request.id for request in plane.requests] == ["big"]


def test_raw_contents_need_no_slices() -> None:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="a", datatype="FP32", shape=[COUNT])
    raw = service_pb2.ModelInferRequest(inputs=[tensor], raw_input_contents=[bytes(4 * COUNT)]).SerializeToString()
    assert isinstance(convert.begin(raw), InferRequest)


async def test_contents_that_are_wrong_are_refused_as_small_ones_are(channel: grpc.aio.Channel, plane: Plane) -> None:
    found = await failure_of(stub(channel).ModelInfer(message(count=COUNT + 1)))
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"input 'a': shape [{COUNT + 1}] needs {COUNT + 1} value(s), the request has {COUNT};" in str(
        found.details()
    )
    wrong = message("INT8")
    wrong.inputs[0].contents.int_contents[COUNT - 1] = 200
    found = await failure_of(stub(channel).ModelInfer(wrong))
    assert f"input 'a': value 200 at index {COUNT - 1} does not fit datatype INT8" in str(found.details())
    assert plane.requests == []


async def test_what_is_large_beside_the_contents_is_refused(channel: grpc.aio.Channel) -> None:
    found = await failure_of(stub(channel).ModelInfer(message(id="a" * cut.MAX_HEADS)))
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"more than {cut.MAX_HEADS} bytes beside the inputs' contents" in str(found.details())


def test_fields_that_nobody_knows_are_passed_over() -> None:
    unknown = b"\xa0\x06\x96\x01" + b"\xa5\x06abcd" + b"\xa1\x06abcdefgh" + b"\xa2\x06\x02ab"  # field 100, each form
    work = convert.begin(unknown + message().SerializeToString() + unknown)
    assert not isinstance(work, InferRequest)
    assert len(whole(work).inputs[0].data) == 8 * COUNT


async def test_a_full_lane_refuses(channel: grpc.aio.Channel, plane: Plane) -> None:
    plane.lane = Lane(max_pieces=0)
    found = await failure_of(stub(channel).ModelInfer(message()))
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_client_that_leaves_while_its_request_is_decoded_is_forgotten(
    channel: grpc.aio.Channel, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    def endless(*_: object) -> Any:
        began.set()
        try:
            while True:
                yield
        finally:
            ended.set()

    monkeypatch.setattr(convert, "cut", endless)
    call = stub(channel).ModelInfer(message())
    await began.wait()
    call.cancel()
    await ended.wait()
    monkeypatch.undo()
    await stub(channel).ModelInfer(message(id="second"))
    assert [request.id for request in plane.requests] == ["second"]


async def test_the_time_that_decoding_takes_counts(channel: grpc.aio.Channel, plane: Plane) -> None:
    given = message()
    for limit in (60_000_000, 1):
        given.parameters["timeout"].int64_param = limit
        await stub(channel).ModelInfer(given)
    first, second = (request.timeout_us for request in plane.requests)
    assert 0 < first < 60_000_000
    assert second == 1
