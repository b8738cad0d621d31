"""Runs a gateway: opens the registry, serves REST and gRPC, and on a signal drains and stops in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
import uvloop

from gateway.bootstrap import Gateway, build
from gateway.rest.connection import Connection
from gateway.rpc import server as rpc
from gateway.settings import ConfigurationError, Settings
from registry.errors import StoreError

log = logging.getLogger("tensorgate")

_BACKLOG = 2048
_GRPC_MOST = 2**31 - 1  # bytes: larger than any message can be


class _HttpServer(uvicorn.Server):
    """uvicorn, except that signals are the whole server's business and not its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM; the process's exit code. Raises ``ConfigurationError`` if it cannot start."""
    try:
        uvloop.run(_serve(settings))
    except (StoreError, OSError) as error:
        raise ConfigurationError(str(error)) from error
    return 0


async def _serve(settings: Settings) -> None:
    stopping = _stop_on_signal()
    gateway = build(settings)
    listener = _listen(settings.host, settings.http_port)
    try:
        await gateway.store.open()
        await gateway.controlplane.sync_repositories(settings.model_repository)
        address = f"{_bracketed(settings.host)}:{settings.grpc_port}"
        limit = settings.max_body_bytes if settings.max_body_bytes < _GRPC_MOST else rpc.UNLIMITED
        grpc_server = await rpc.start(gateway.dataplane, address, max_message_bytes=limit)
        http_url = f"http://{_bracketed(settings.host)}:{listener.getsockname()[1]}"
        async with _running(gateway, listener, grpc_server, settings.drain_timeout_s):
            _relax_garbage_collector()
            log.info("serving REST on %s and gRPC on %s:%d", http_url, _bracketed(settings.host), grpc_server.port)
            await stopping.wait()
            log.info("stopping: requests in flight get %.0f s", settings.drain_timeout_s)
            gateway.dataplane.drain()
    finally:
        listener.close()
        await gateway.store.close()
    log.info("stopped")


@asynccontextmanager
async def _running(
    gateway: Gateway, listener: socket.socket, grpc_server: rpc.RpcServer, drain_timeout_s: float
) -> AsyncIterator[None]:
    """REST and the manager run inside; afterwards both transports finish what they have, then the workers do."""
    http = _HttpServer(
        uvicorn.Config(
            gateway.app,
            http=Connection.serving(gateway.v2),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            date_header=False,
            timeout_graceful_shutdown=round(drain_timeout_s),
        )
    )
    async with asyncio.TaskGroup() as tasks:
        manager = tasks.create_task(gateway.manager.run(), name="manager")
        serving = tasks.create_task(http.serve(sockets=[listener]), name="REST")
        yield
        http.should_exit = True
        await asyncio.gather(serving, grpc_server.stop(drain_timeout_s))
        manager.cancel()


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ``ConfigurationError`` if the port is in use or the address is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve REST at {host}:{port}: {error.strerror}; stop what uses port {port} or choose another with "
            "--http-port (0 takes a free one)"
        ) from error
    return listener


def _relax_garbage_collector() -> None:
    """What was made so far stays for ever, and a request makes no cycles: look for garbage less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stop_on_signal() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; a second one ends the process at once."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        log.info("received %s", number.name)
        stopping.set()
        loop.remove_signal_handler(number)  # the next one has its default effect

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, log.info, "no setting can be read again while running in this release")
    return stopping
