"""A gRPC server on a small data plane, and ways to reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import grpc
import pytest
import tritonclient.grpc.aio as aio_client

from gateway.rpc import server as rpc_server
from gateway.serving.dataplane import DataPlane
from support.rpc import Plane


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
