"""The gRPC server: the inference service, health and reflection on one port of grpcio's asyncio server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gateway.network import bind
from gateway.proto import SERVICE, descriptor_set
from gateway.rpc import health, servicer

if TYPE_CHECKING:
    from gateway.serving.dataplane import DataPlane

#: Tensors are as large as they are: the bounds are the data plane's, not grpc's 4 MiB.
UNLIMITED: Final = -1
MAX_PORT: Final = 65535


class RpcServer:
    """A running server."""

    def __init__(self, server: grpc.aio.Server, port: int, checker: health.HealthServicer) -> None:
        #: The port that is bound; the one asked for, unless that was 0. 0 for a Unix socket.
        self.port = port
        self._server = server
        self._health = checker

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new calls at once, let running ones finish within ``grace_s``, cancel the rest."""
        self._health.stop()
        await self._server.stop(grace_s)


async def start(
    dataplane: DataPlane, address: str, *, max_message_bytes: int = UNLIMITED, health_interval_s: float = 0.5
) -> RpcServer:
    """Serve ``dataplane`` at ``address`` (``host:port``, ``[ipv6]:port`` or ``unix:path``; port 0 takes a free one).

    ``max_message_bytes`` bounds a request, after decompression. Raises ``OSError`` with the mend
    if the address cannot be bound.
    """
    server = grpc.aio.server(options=_options(max_message_bytes))
    checker = health.HealthServicer(dataplane, health_interval_s)
    server.add_generic_rpc_handlers((servicer.handlers(dataplane), checker.handlers()))
    services = (SERVICE, health.NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(services, server, pool=_reflection_pool())
    port = _bind(server, address)
    await server.start()
    return RpcServer(server, port, checker)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", UNLIMITED),
        # A second server on a port in use has to fail; sharing it would split the traffic silently.
        ("grpc.so_reuseport", 0),
        # A client that vanished without a word is found out after 80 s, and its requests are cancelled.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Load balancers and meshes ping every few seconds; grpc's default of 5 minutes would cut them off.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _reflection_pool() -> DescriptorPool:
    """All services of this server in one pool: ours live in a pool of their own, the others in the default one."""
    pool = DescriptorPool()
    for file in descriptor_set().file:
        pool.AddSerializedFile(file.SerializeToString())
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return pool


def _bind(server: grpc.aio.Server, address: str) -> int:
    """The port that was bound. grpc says only that it failed; the reason comes from trying once more by hand."""
    unix = address.startswith("unix:")
    number = address.rpartition(":")[2]
    if not unix and not (number.isdecimal() and int(number) <= MAX_PORT):
        # grpc takes 65536 + n for n, and names for the ports of /etc/services
        raise OSError(f"cannot serve gRPC at {address}: the port has to be a number from 0 to {MAX_PORT}")
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(_bind_failure(address)) from error
    if port == 0:
        raise OSError(_bind_failure(address))
    return 0 if unix else port


def _bind_failure(address: str) -> str:
    if address.startswith("unix:"):
        return f"cannot serve gRPC at {address}: make its folder writable, and the path shorter than 108 bytes"
    host, _, port = address.rpartition(":")
    reason = "the address cannot be bound"
    try:
        bind(host, int(port)).close()
    except (OSError, ValueError) as error:
        reason = str(error)
    return (
        f"cannot serve gRPC at {address}: {reason}; stop what uses port {port} or choose another with --grpc-port"
        " (0 takes a free one)"
    )
