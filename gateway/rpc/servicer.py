"""``inference.GRPCInferenceService`` over the data plane: bytes in, bytes out.

Messages are parsed here and not by grpc, so that broken bytes are the client's fault (INVALID_ARGUMENT) and large
tensors need no copy. A client that cancels, or whose deadline passes, cancels the handler's task and with it the
inference; ``CancelledError`` is left alone for that.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from gateway.errors import InvalidRequest, Unsupported
from gateway.inference.request import InferRequest
from gateway.inference.slices import Slices
from gateway.proto import POOL, SERVICE
from gateway.proto import inference_pb2 as pb
from gateway.rpc import convert, errors
from gateway.rpc.render import metadata_message, statistics_message

if TYPE_CHECKING:
    from gateway.serving.dataplane import DataPlane

Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[bytes, Context], Awaitable[bytes]]
Request = TypeVar("Request", bound=Message)


def handlers(dataplane: DataPlane) -> grpc.GenericRpcHandler[Any, Any]:
    """Handlers for every call of the service; those that are not offered answer UNIMPLEMENTED."""
    offered = _Servicer(dataplane).handlers()
    for method in POOL.FindServiceByName(SERVICE).methods:
        if method.name not in offered:
            offered[method.name] = _not_offered(method.name, streaming=method.client_streaming)
    return grpc.method_handlers_generic_handler(SERVICE, offered)


class _Servicer:
    """The calls that are offered; the synchronous ones only read the gateway's state."""

    def __init__(self, dataplane: DataPlane) -> None:
        self._dataplane = dataplane

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "ModelInfer": _unary(self.infer),
            "ServerLive": _read(pb.ServerLiveRequest, self.server_live),
            "ServerReady": _read(pb.ServerReadyRequest, self.server_ready),
            "ModelReady": _read(pb.ModelReadyRequest, self.model_ready),
            "ServerMetadata": _read(pb.ServerMetadataRequest, self.server_metadata),
            "ModelMetadata": _read(pb.ModelMetadataRequest, self.model_metadata),
            "ModelConfig": _read(pb.ModelConfigRequest, self.model_config),
            "ModelStatistics": _read(pb.ModelStatisticsRequest, self.model_statistics),
            "RepositoryIndex": _read(pb.RepositoryIndexRequest, self.repository_index),
        }

    async def infer(self, raw: bytes, context: Context) -> bytes:
        request = convert.begin(raw)
        if not isinstance(request, InferRequest):
            request = await self._decoded(request, len(raw))
        remaining = context.time_remaining()
        if remaining is not None:
            # 0 would mean "no limit": a deadline that has passed leaves one microsecond.
            deadline_us = int(remaining * 1e6) or 1
            request.timeout_us = min(request.timeout_us, deadline_us) if request.timeout_us else deadline_us
        metadata = context.invocation_metadata() or ()
        request.headers = [
            (key.encode(), value.encode() if isinstance(value, str) else value) for key, value in metadata
        ]
        request.trace = (request.header(b"traceparent") or b"").decode("latin-1")
        response = await self._dataplane.infer(request)
        try:
            return convert.encode(response)
        finally:
            response.release()

    async def _decoded(self, work: Slices[InferRequest], size: int) -> InferRequest:
        """The request that takes a while to decode."""
        began = time.monotonic_ns()
        request = await self._dataplane.lane.result(work, size)
        if request.timeout_us:  # the client has waited for a while already; 0 would be no limit
            request.timeout_us = max(1, request.timeout_us - (time.monotonic_ns() - began) // 1000)
        return request

    def server_live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._dataplane.live())

    def server_ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._dataplane.ready())

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=self._dataplane.model_ready(request.name, request.version))

    def server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        server = self._dataplane.server_metadata()
        return pb.ServerMetadataResponse(name=server.name, version=server.version, extensions=server.extensions)

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        return metadata_message(self._dataplane.model_metadata(request.name, request.version))

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=self._dataplane.model_config(request.name, request.version))

    def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        statistics = self._dataplane.statistics(request.name, request.version)
        return pb.ModelStatisticsResponse(model_stats=[statistics_message(entry) for entry in statistics])

    def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        if request.repository_name:
            raise Unsupported(
                f"repository_name {request.repository_name!r}: this server has one repository; leave it empty"
            )
        response = pb.RepositoryIndexResponse()
        for entry in self._dataplane.index(ready_only=request.ready):
            response.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
        return response


def _unary(method: Unary) -> grpc.RpcMethodHandler[Any, Any]:
    """A unary call on bytes whose errors become statuses."""

    async def call(raw: bytes, context: Context) -> bytes:
        try:
            return await method(raw, context)
        except Exception as error:  # noqa: BLE001 - the border: every failure becomes a status
            await errors.abort(context, error)

    return grpc.unary_unary_rpc_method_handler(call)


def _read(request_type: type[Request], method: Callable[[Request], Message]) -> grpc.RpcMethodHandler[Any, Any]:
    """A unary call that is answered from memory, at once."""

    async def call(raw: bytes, _context: Context) -> bytes:
        try:
            request = request_type.FromString(raw)
        except DecodeError as error:
            raise InvalidRequest(f"the bytes are no {request_type.DESCRIPTOR.name}: {error}") from error
        return method(request).SerializeToString()

    return _unary(call)


def _not_offered(name: str, *, streaming: bool) -> grpc.RpcMethodHandler[Any, Any]:
    error: Final = Unsupported(f"{name} is not offered by this server")

    async def refuse(_request: bytes, context: Context) -> bytes:
        await errors.abort(context, error)

    async def refuse_stream(_requests: AsyncIterator[bytes], context: Context) -> None:
        await errors.abort(context, error)

    if streaming:
        return grpc.stream_stream_rpc_method_handler(refuse_stream)
    return grpc.unary_unary_rpc_method_handler(refuse)
