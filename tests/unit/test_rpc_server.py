"""The gRPC server end to end: real channels and the real client against a small data plane."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.proto import SERVICE
from gateway.rpc import server as rpc_server
from gateway.serving.dataplane import DataPlane
from support.rpc import Plane, failure_of, request


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


# --- health, reflection, start and stop ------------------------------------------------------------------------------


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
