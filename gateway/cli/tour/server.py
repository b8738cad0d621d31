"""The tour's server: started as a child, waited for, ended in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import msgspec

from gateway.cli.errors import CommandFailed
from gateway.network import bind, endpoint
from gateway.settings.schema import Settings

LOG_NAME: Final = "server.log"
_START_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
#: After the server's own time to drain.
_STOP_GRACE_S: Final = 10.0
_TAIL_LINES: Final = 8


class Server(msgspec.Struct, frozen=True):
    """A server that answers."""

    http_url: str
    grpc_address: str
    log_file: Path
    process: subprocess.Popen[bytes]


@contextmanager
def running(settings: Settings, config: Path | None) -> Iterator[Server]:
    """Start a server, and end it afterwards whatever happens. Raises ``CommandFailed`` with its last words."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log_file = settings.data_dir / LOG_NAME
    with log_file.open("wb") as log:
        # A session of its own: Ctrl-C reaches the tour, which ends the server in order.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway", "serve", *_flags(settings, config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://{endpoint(settings.host, settings.http_port)}"
    server = Server(url, endpoint(settings.host, settings.grpc_port), log_file, process)
    try:
        _wait_live(server)
        yield server
    finally:
        _stop(process, settings.drain_timeout_s + _STOP_GRACE_S)


def free_port(host: str, preferred: int) -> int:
    """``preferred`` if nothing uses it, or else any free one."""
    for port in (preferred, 0):
        with suppress(OSError), bind(host, port) as probe:  # in use: the next one is any
            return int(probe.getsockname()[1])
    raise CommandFailed(f"no port of {host} can be bound: is the address this machine's?")


def _flags(settings: Settings, config: Path | None) -> Iterator[str]:
    if config:
        yield f"--config={config}"
    if settings.insecure:
        yield "--insecure"
    for key in ("host", "http_port", "grpc_port", "data_dir", "database", "log_format", "log_level"):
        yield f"--{key.replace('_', '-')}={getattr(settings, key)}"


def _wait_live(server: Server) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise CommandFailed(f"the server ended while it started; its last words:\n{_tail(server.log_file)}")
        try:
            if httpx.get(f"{server.http_url}/v2/health/live", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(_POLL_S)
    raise CommandFailed(f"the server did not answer within {_START_TIMEOUT_S:g} s; see {server.log_file}")


def _stop(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
