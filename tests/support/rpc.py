"""A data plane for tests of the gRPC server, and what clients send it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import tritonclient.grpc.aio as aio_client
from tritonclient.grpc import service_pb2

from backends.spec import TensorSpec
from gateway import errors
from gateway.inference.request import InferRequest, InferResponse
from gateway.proto.model_config_pb2 import TYPE_FP32, ModelConfig, ModelInput
from gateway.serving.dataplane import IndexEntry, ModelMetadata, ServerMetadata
from gateway.serving.lane import Lane
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
        self.lane = Lane()
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


def request(raw: bytes = b"\0" * 16, **fields: Any) -> service_pb2.ModelInferRequest:
    """One row of FP32 for the model ``echo``."""
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
