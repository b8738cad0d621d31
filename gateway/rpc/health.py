"""``grpc.health.v1``: SERVING exactly while the data plane is ready, for the server or for one model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2

from gateway.proto import SERVICE

if TYPE_CHECKING:
    from gateway.serving.dataplane import DataPlane

NAME: Final = "grpc.health.v1.Health"

_Status: Final = health_pb2.HealthCheckResponse
Context = grpc.aio.ServicerContext[Any, Any]


class HealthServicer:
    """Answers for the services "" and ``inference.GRPCInferenceService`` (the server), and for every model's name.

    Health is asked of the data plane each time and never kept, so it cannot be out of date.
    """

    def __init__(self, dataplane: DataPlane, interval_s: float = 0.5) -> None:
        """``interval_s``: how often a watched service is looked at."""
        self._dataplane = dataplane
        self._interval_s = interval_s
        self._stopping = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Handlers for the calls of the service."""
        parse, dump = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, parse, dump),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, parse, dump),
            },
        )

    async def check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """The status now; NOT_FOUND for a name that is neither service nor model."""
        status = self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            text = f"no service or model {request.service!r}; ask for '' or {SERVICE!r} or a model's name"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The status now and after every change, until the client leaves or the server stops."""
        last = None
        while True:
            stopping = self._stopping.is_set()  # read before the status, which then is the last one
            status = self._status(request.service)
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            if stopping:
                return
            await self._pause()

    def stop(self) -> None:
        """Nothing is serving from now on, and whoever watches is told so and let go."""
        self._stopping.set()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._interval_s):
                await self._stopping.wait()
        except TimeoutError:
            return  # time to look again

    def _status(self, service: str) -> Any:
        if service not in ("", SERVICE) and all(entry.name != service for entry in self._dataplane.index()):
            return _Status.SERVICE_UNKNOWN
        if self._stopping.is_set():
            return _Status.NOT_SERVING
        ready = self._dataplane.ready() if service in ("", SERVICE) else self._dataplane.model_ready(service)
        return _Status.SERVING if ready else _Status.NOT_SERVING
