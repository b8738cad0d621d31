"""The gRPC server end to end: real channels and the real client against a small data plane."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from backends.spec import TensorSpec
from backends.tensor import Tensor
from gateway import errors
from gateway.inference.request import InferRequest, InferResponse
from gateway.proto import SERVICE
from gateway.proto.model_config_pb2 import TYPE_FP32, ModelConfig, ModelInput
from gateway.rpc import server as rpc_server
from gateway.serving.dataplane import DataPlane, IndexEntry, ModelMetadata, ServerMetadata
from gateway.telemetry.statistics import ModelStatistics


class Plane:
    """A data plane that answers a request's inputs as its outputs, or does what a test tells it to."""

    def __init__(self) -> None:
        self.is_ready = True
        self.failure: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.requests: list[InferRequest] = []
        self.released = 0
        self.counters = ModelStatistics("echo", "1")

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, name: str, version: str = "") -> bool:
        return self.is_ready and name == "echo"

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata("tensorgate", "1.2.3", ("statistics", "parameters"))

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        self._check(name)
        tensors = (TensorSpec("a", "FP32", (-1, 4)),)
        return ModelMetadata("echo", ("1", "2"), "echo", tensors, (*tensors, TensorSpec("s", "BYTES", (-1,))))

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        self._check(name)
        return ModelConfig(
            name=name, max_batch_size=8, input=[ModelInput(name="a", data_type=TYPE_FP32, dims=[4])], backend=version
        )

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        if name:
            self._check(name)
        return [self.counters]

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        entries = [IndexEntry("echo", "1", "READY", ""), IndexEntry("broken", "2", "UNAVAILABLE", "no such file")]
        return entries[:1] if ready_only else entries

    async def infer(self, request: InferRequest) -> InferResponse:
        self.requests.append(request)
        self.arrived.set()
        if self.failure is not None:
            raise self.failure
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return InferResponse(request.model, "1", request.inputs, self._release, request.id)

    def _release(self) -> None:
        self.released += 1

    def _check(self, name: str) -> None:
        if name != "echo":
            raise errors.NotFound(f"Request for unknown model: '{name}' is not found")


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
async def server(plane: Plane) -> AsyncIterator[rpc_server.RpcServer]:
    running = await rpc_server.start(cast(DataPlane, plane), "127.0.0.1:0", health_interval_s=0.01)
    yield running
    await running.stop()


@pytest.fixture
async def channel(server: rpc_server.RpcServer) -> AsyncIterator[grpc.aio.Channel]:
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=limits) as opened:
        yield opened


@pytest.fixture
async def client(server: rpc_server.RpcServer) -> AsyncIterator[aio_client.InferenceServerClient]:
    async with aio_client.InferenceServerClient(f"127.0.0.1:{server.port}") as opened:
        yield opened


def request(raw: bytes = b"\0" * 16, **fields: Any) -> service_pb2.ModelInferRequest:
    head = service_pb2.ModelInferRequest.InferInputTensor(name="a", datatype="FP32", shape=[1, len(raw) // 4])
    return service_pb2.ModelInferRequest(model_name="echo", inputs=[head], raw_input_contents=[raw], **fields)


def input_of(name: str, values: Any, datatype: str) -> aio_client.InferInput:
    given = aio_client.InferInput(name, list(values.shape), datatype)
    given.set_data_from_numpy(values)
    return given


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


# --- what is known ---


async def test_health_and_metadata_through_the_client(client: Any, plane: Plane) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("echo", "1")
    assert not await client.is_model_ready("unknown")
    found = await client.get_server_metadata()
    assert (found.name, found.version, list(found.extensions)) == ("tensorgate", "1.2.3", ["statistics", "parameters"])
    plane.is_ready = False
    assert await client.is_server_live()
    assert not await client.is_server_ready()
    assert not await client.is_model_ready("echo")


async def test_a_model_through_the_client(client: Any, plane: Plane) -> None:
    metadata = await client.get_model_metadata("echo", as_json=True)
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"] == [{"name": "a", "datatype": "FP32", "shape": ["-1", "4"]}]
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["a", "s"]
    config = (await client.get_model_config("echo", "2")).config
    assert (config.name, config.backend, config.max_batch_size, list(config.input[0].dims)) == ("echo", "2", 8, [4])
    plane.counters.record_success(5, 1, 1, 1, 1, batch_rows=2)
    (counters,) = (await client.get_inference_statistics("echo")).model_stats
    assert (counters.inference_count, counters.inference_stats.success.ns) == (2, 5)


async def test_the_repository_index_through_the_client(client: Any, channel: grpc.aio.Channel) -> None:
    index = await client.get_model_repository_index()
    found = [(entry.name, entry.version, entry.state, entry.reason) for entry in index.models]
    assert found == [("echo", "1", "READY", ""), ("broken", "2", "UNAVAILABLE", "no such file")]
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    ready = await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True))
    assert [entry.name for entry in ready.models] == ["echo"]
    other = await failure_of(stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(repository_name="r")))
    assert (other.code(), "'r'" in str(other.details())) == (grpc.StatusCode.UNIMPLEMENTED, True)


@pytest.mark.parametrize("call", ["get_model_metadata", "get_model_config", "get_inference_statistics"])
async def test_an_unknown_model_is_not_found(client: Any, call: str) -> None:
    with pytest.raises(InferenceServerException, match="unknown model: 'nope'") as caught:
        await getattr(client, call)("nope")
    assert caught.value.status() == "StatusCode.NOT_FOUND"


# --- inference ---


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


# --- failures ---


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


# --- health, reflection, start and stop ---


async def test_health_is_serving_exactly_while_ready(channel: grpc.aio.Channel, plane: Plane) -> None:
    stub = health_pb2_grpc.HealthStub(channel)

    async def status(service: str) -> Any:
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

    assert {await status(name) for name in ("", SERVICE, "echo")} == {health_pb2.HealthCheckResponse.SERVING}
    assert await status("broken") == health_pb2.HealthCheckResponse.NOT_SERVING
    unknown = await failure_of(stub.Check(health_pb2.HealthCheckRequest(service="nope")))
    assert (unknown.code(), "'nope'" in str(unknown.details())) == (grpc.StatusCode.NOT_FOUND, True)
    plane.is_ready = False
    assert {await status(name) for name in ("", SERVICE, "echo")} == {health_pb2.HealthCheckResponse.NOT_SERVING}


async def test_a_watcher_sees_every_change_and_is_let_go_at_the_end(
    server: rpc_server.RpcServer, channel: grpc.aio.Channel, plane: Plane
) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    plane.is_ready = False
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    plane.is_ready = True
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    last = asyncio.create_task(watch.read())
    await server.stop(grace_s=60)
    assert (await last).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await watch.code() is grpc.StatusCode.OK


async def test_an_unknown_service_can_be_watched(channel: grpc.aio.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="later"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


async def test_reflection_describes_every_service(server: rpc_server.RpcServer) -> None:
    def ask() -> tuple[set[str], Any, list[str]]:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as opened:
            database = ProtoReflectionDescriptorDatabase(opened)
            pool = DescriptorPool(database)
            names = set(database.get_services())
            services = [pool.FindServiceByName(name).full_name for name in names]
            return names, pool.FindMessageTypeByName("inference.ModelInferRequest"), services

    names, message, services = await asyncio.to_thread(ask)
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert set(services) == names
    assert message.fields_by_name["raw_input_contents"].number == 7


async def test_a_port_in_use_is_said_with_the_mend(server: rpc_server.RpcServer, plane: Plane) -> None:
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{server.port}: .*Address already in use.*--grpc-port"):
        await rpc_server.start(cast(DataPlane, plane), f"127.0.0.1:{server.port}")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "no-such-host.invalid:8001", "127.0.0.1:http"])
async def test_an_address_that_is_none_is_said(plane: Plane, address: str) -> None:
    with pytest.raises(OSError, match=f"cannot serve gRPC at {address}"):
        await rpc_server.start(cast(DataPlane, plane), address)


async def test_a_unix_socket_is_served(plane: Plane, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/rpc.sock"
    running = await rpc_server.start(cast(DataPlane, plane), address)
    assert running.port == 0
    async with grpc.aio.insecure_channel(address) as opened:
        assert len((await service_pb2_grpc.GRPCInferenceServiceStub(opened).ModelInfer(request())).outputs) == 1
    await running.stop()
    with pytest.raises(OSError, match="make its folder writable"):
        await rpc_server.start(cast(DataPlane, plane), f"unix:{tmp_path}/none/rpc.sock")


async def test_a_running_call_may_finish_while_the_server_stops(plane: Plane) -> None:
    running = await rpc_server.start(cast(DataPlane, plane), "127.0.0.1:0")
    plane.hold = asyncio.Event()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as opened:
        call = service_pb2_grpc.GRPCInferenceServiceStub(opened).ModelInfer(request())
        await plane.arrived.wait()
        stopping = asyncio.create_task(running.stop(grace_s=60))
        plane.hold.set()
        assert len((await call).outputs) == 1
        await stopping
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", running.port)) != 0


async def test_without_grace_a_running_call_is_cancelled(plane: Plane) -> None:
    running = await rpc_server.start(cast(DataPlane, plane), "127.0.0.1:0")
    plane.hold = asyncio.Event()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as opened:
        call = service_pb2_grpc.GRPCInferenceServiceStub(opened).ModelInfer(request())
        await plane.arrived.wait()
        await running.stop()
        await plane.cancelled.wait()
        assert (await failure_of(call)).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
