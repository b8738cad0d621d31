"""Inference over gRPC: what arrives, what is answered, and what a failure looks like."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from tritonclient.grpc import service_pb2, service_pb2_grpc

from backends.tensor import Tensor
from gateway import errors
from gateway.inference.request import InferRequest, InferResponse
from gateway.proto import SERVICE
from gateway.rpc import server as rpc_server
from gateway.serving.dataplane import DataPlane
from support.rpc import Plane, failure_of, input_of, request


async def test_inference_through_the_client(client: Any, plane: Plane) -> None:
    numbers = np.arange(8, dtype=np.float32).reshape(2, 4)
    texts = np.array([b"", b"\xff\0", "é".encode()], dtype=object)
    outputs = [aio_client.InferRequestedOutput("s"), aio_client.InferRequestedOutput("a")]
    inputs = [input_of("a", numbers, "FP32"), input_of("s", texts, "BYTES")]
    result = await client.infer("echo", inputs, "1", outputs, "req-1", priority=2, timeout=9_000_000)
    assert result.as_numpy("a").tolist() == numbers.tolist()
    assert result.as_numpy("s").tolist() == texts.tolist()
    assert (result.get_response().id, result.get_response().model_version) == ("req-1", "1")
    (seen,) = plane.requests
    assert (seen.version, seen.outputs, seen.priority, seen.timeout_us) == ("1", ("s", "a"), 2, 9_000_000)
    assert plane.released == 1


async def test_the_blocking_client_works_too(server: rpc_server.RpcServer) -> None:
    def use() -> Any:
        with sync_client.InferenceServerClient(f"127.0.0.1:{server.port}") as opened:
            given = sync_client.InferInput("a", [1, 4], "FP32")
            given.set_data_from_numpy(np.ones((1, 4), np.float32))
            return opened.infer("echo", [given], compression_algorithm="gzip").as_numpy("a")

    assert (await asyncio.to_thread(use)).tolist() == [[1, 1, 1, 1]]


async def test_typed_contents_are_answered_raw(channel: grpc.aio.Channel) -> None:
    head = service_pb2.ModelInferRequest.InferInputTensor(
        name="a", datatype="INT8", shape=[2], contents={"int_contents": [-1, 2]}
    )
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    found = await stub.ModelInfer(service_pb2.ModelInferRequest(model_name="echo", inputs=[head]))
    assert list(found.raw_output_contents) == [b"\xff\2"]
    assert not found.outputs[0].HasField("contents")


async def test_messages_are_larger_than_grpcs_four_megabytes(client: Any) -> None:
    values = np.arange(5 << 20, dtype=np.float32)
    result = await client.infer("echo", [input_of("a", values, "FP32")])
    assert np.array_equal(result.as_numpy("a"), values)


async def test_a_bound_on_messages_can_be_set(plane: Plane) -> None:
    running = await rpc_server.start(cast(DataPlane, plane), "127.0.0.1:0", max_message_bytes=1000)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as opened:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(opened)
            await stub.ModelInfer(request(b"\0" * 400))
            found = await failure_of(stub.ModelInfer(request(b"\0" * 4000)))
            bomb = await failure_of(stub.ModelInfer(request(b"\0" * 400_000), compression=grpc.Compression.Gzip))
        assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert bomb.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        await running.stop()


async def test_a_bound_on_requests_is_none_on_answers(plane: Plane) -> None:
    running = await rpc_server.start(cast(DataPlane, plane), "127.0.0.1:0", max_message_bytes=1)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as opened:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(opened)
            metadata = await stub.ServerMetadata(service_pb2.ServerMetadataRequest())
        assert metadata.ByteSize() > 1
    finally:
        await running.stop()


@pytest.mark.parametrize(
    ("timeout_s", "parameter_us", "low", "high"),
    # grpc rounds a deadline up on the wire, by at most a second here
    [(30.0, 0, 1, 31_000_000), (30.0, 5_000, 5_000, 5_000), (30.0, 90_000_000, 1, 31_000_000), (None, 7, 7, 7)],
)
async def test_the_smaller_of_deadline_and_timeout_counts(
    channel: grpc.aio.Channel, plane: Plane, timeout_s: float | None, parameter_us: int, low: int, high: int
) -> None:
    message = request()
    if parameter_us:
        message.parameters["timeout"].int64_param = parameter_us
    await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=timeout_s)
    assert low <= plane.requests[0].timeout_us <= high


async def test_without_a_deadline_there_is_no_limit(channel: grpc.aio.Channel, plane: Plane) -> None:
    await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request())
    assert (plane.requests[0].timeout_us, plane.requests[0].trace) == (0, "")


async def test_the_trace_context_travels(channel: grpc.aio.Channel, plane: Plane) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    await stub.ModelInfer(request(), metadata=(("traceparent", trace),))
    assert plane.requests[0].trace == trace


# --- failures --------------------------------------------------------------------------------------------------------


async def test_a_client_that_cancels_cancels_the_inference(channel: grpc.aio.Channel, plane: Plane) -> None:
    plane.hold = asyncio.Event()
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    call = stub.ModelInfer(request())
    await plane.arrived.wait()
    call.cancel()
    await plane.cancelled.wait()
    plane.hold = None
    assert len((await stub.ModelInfer(request())).outputs) == 1


async def test_a_deadline_that_passes_cancels_the_inference(channel: grpc.aio.Channel, plane: Plane) -> None:
    plane.hold = asyncio.Event()
    call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request(), timeout=0.05)
    assert (await failure_of(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await plane.cancelled.wait()


async def test_a_client_that_is_gone_cancels_the_inference(server: rpc_server.RpcServer, plane: Plane) -> None:
    plane.hold = asyncio.Event()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
        call = service_pb2_grpc.GRPCInferenceServiceStub(opened).ModelInfer(request())
        await plane.arrived.wait()
    await plane.cancelled.wait()
    assert call.cancelled()


async def test_an_error_becomes_its_status_with_text_and_pushback(channel: grpc.aio.Channel, plane: Plane) -> None:
    plane.failure = errors.Overloaded("queue of model 'écho' is full (64 requests)")
    found = await failure_of(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request()))
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert found.details() == "queue of model 'écho' is full (64 requests)"
    trailing: Any = found.trailing_metadata()
    assert trailing["grpc-retry-pushback-ms"] == "1000"


async def test_a_very_long_error_arrives(channel: grpc.aio.Channel, plane: Plane) -> None:
    plane.failure = errors.InvalidRequest("é" * 100_000)
    found = await failure_of(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request()))
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(found.details()).endswith("é...")


async def test_a_fault_of_ours_is_logged_and_not_told(
    channel: grpc.aio.Channel, plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    plane.failure = KeyError("secret")
    found = await failure_of(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request()))
    assert found.code() is grpc.StatusCode.INTERNAL
    assert found.details() == "internal error (KeyError); the server's log has the details"
    assert any("secret" in str(record.exc_info) for record in caplog.records)


async def test_memory_is_released_also_when_the_answer_cannot_be_encoded(
    channel: grpc.aio.Channel, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def infer(request: InferRequest) -> InferResponse:
        return InferResponse(request.model, "1", [Tensor("\udcff", "FP32", (1,), b"")], plane._release)

    monkeypatch.setattr(plane, "infer", infer)
    found = await failure_of(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request()))
    assert found.code() is grpc.StatusCode.INTERNAL
    assert plane.released == 1


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "RepositoryIndex"])
async def test_bytes_that_are_no_message_are_the_clients_fault(channel: Any, method: str) -> None:
    found = await failure_of(channel.unary_unary(f"/{SERVICE}/{method}")(b"\xff\xff"))
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"no {method}Request" in str(found.details())


async def test_a_malformed_request_is_refused_and_the_next_one_served(channel: grpc.aio.Channel) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    message = request()
    message.inputs[0].shape[0] = -1
    found = await failure_of(stub.ModelInfer(message))
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "input 'a': shape [-1, 4]" in str(found.details())
    assert len((await stub.ModelInfer(request())).outputs) == 1


async def test_every_other_call_of_the_service_is_refused_by_name(channel: grpc.aio.Channel) -> None:
    offered = {
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelConfig",
        "ModelStatistics", "RepositoryIndex",
    }  # fmt: skip
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    others = [method for method in methods if method.name not in offered]
    assert len(others) == 11
    untyped: Any = channel  # the stubs of grpc demand serialisers, which bytes do not need
    for method in others:
        path = f"/{SERVICE}/{method.name}"
        stream = method.client_streaming
        found = await failure_of(untyped.stream_stream(path)().read() if stream else untyped.unary_unary(path)(b""))
        assert found.code() is grpc.StatusCode.UNIMPLEMENTED
        assert found.details() == f"{method.name} is not offered by this server"
