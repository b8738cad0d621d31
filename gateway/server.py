"""Runs a gateway: opens the registry, serves REST and gRPC, and on a signal drains and stops in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
import uvloop

from gateway.bootstrap import Gateway, build
from gateway.errors import GatewayError
from gateway.network import bind, endpoint
from gateway.rest.connection import Connection
from gateway.rpc import server as rpc
from gateway.settings.errors import ConfigurationError
from gateway.settings.schema import Settings
from gateway.settings.sources import unknown_variables
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
    for doubt in (*unknown_variables(), *_missing_interpreters(settings)):
        log.warning("%s", doubt)
    try:
        uvloop.run(_serve(settings))
    except (StoreError, GatewayError, OSError) as error:
        raise ConfigurationError(str(error)) from error
    return 0


def _missing_interpreters(settings: Settings) -> list[str]:
    """No reason not to start: the models of the other frameworks can be served."""
    return [
        f"interpreters.{framework} = {path} does not exist or cannot be executed: models of {framework} will fail to "
        "load; give the path of a Python, or install the framework beside the server and leave the setting out"
        for framework, path in settings.interpreters.items()
        if not (path.is_file() and os.access(path, os.X_OK))
    ]


async def _serve(settings: Settings) -> None:
    stopping = _stop_on_signal()
    gateway = build(settings)
    listener = _listen(settings.host, settings.http_port)
    try:
        await gateway.store.open()
        address = endpoint(settings.host, settings.grpc_port)
        limit = settings.max_body_bytes if settings.max_body_bytes < _GRPC_MOST else rpc.UNLIMITED
        grpc_server = await rpc.start(gateway.dataplane, address, max_message_bytes=limit)
        http_address = endpoint(settings.host, listener.getsockname()[1])
        grpc_address = endpoint(settings.host, grpc_server.port)
        log.info("serving REST on http://%s and gRPC on %s", http_address, grpc_address)
        async with _running(gateway, listener, grpc_server, settings):
            _relax_garbage_collector()
            await stopping.wait()
            log.info("stopping: requests in flight get %.0f s", settings.drain_timeout_s)
            gateway.dataplane.drain()
    finally:
        listener.close()
        await gateway.store.close()
    log.info("stopped")


@asynccontextmanager
async def _running(
    gateway: Gateway, listener: socket.socket, grpc_server: rpc.RpcServer, settings: Settings
) -> AsyncIterator[None]:
    """REST and the manager run inside; afterwards both transports finish what they have, then the workers do.

    Both transports answer from the start: that the server lives, and that it is not ready while the repositories are
    read (a digest of many gigabytes takes minutes) and the models load.
    """
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
            timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        )
    )
    async with _single_failure(), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(http.serve(sockets=[listener]), name="REST")
        manager = tasks.create_task(_manage(gateway, settings), name="manager")
        yield
        gateway.manager.drain_by(time.monotonic() + settings.drain_timeout_s)
        gateway.controlplane.events.close()
        http.should_exit = True
        await asyncio.gather(serving, grpc_server.stop(settings.drain_timeout_s))
        manager.cancel()


@asynccontextmanager
async def _single_failure() -> AsyncIterator[None]:
    """What a task group raises, as what its first task raised."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _manage(gateway: Gateway, settings: Settings) -> None:
    await gateway.controlplane.sync_repositories(settings.model_repository)
    await gateway.manager.run()


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ``ConfigurationError`` if the port is in use or the address is not this machine's."""
    try:
        listener = bind(host, port)
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
