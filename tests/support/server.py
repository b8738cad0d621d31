"""A real server: a process of its own on free ports, with its log, ended as an operator would end it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import psutil

T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[2]
#: How long anything that is waited for may take before the test is said to have failed.
PATIENCE_S: Final = 90.0

_SERVING: Final = re.compile(r"serving REST on http://(\S+) and gRPC on (\S+)")
#: Words of a log that tell of a fault of the server's own, whatever the client did.
_FAULTS: Final = ("Traceback", "Exception in ASGI", "never retrieved", "failed unexpectedly", "internal error")


class Server:
    """A running server; made by ``running``. ``http`` and ``grpc`` are ``host:port``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.http = ""
        self.grpc = ""
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name="server log", daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Where REST is."""
        return f"http://{self.http}"

    @property
    def log(self) -> str:
        """Everything that the server wrote so far."""
        return "\n".join(self.lines)

    def rss_bytes(self) -> int:
        """Resident memory of the gateway's process, workers not counted."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def workers(self) -> dict[str, psutil.Process]:
        """The worker processes that are alive, by the name that the server's log calls them."""
        found = dict(re.findall(r"worker (\S+) is ready \(pid (\d+)", self.log))  # the last one of a name counts
        return {name: psutil.Process(int(pid)) for name, pid in found.items() if psutil.pid_exists(int(pid))}

    def worker(self, model: str, version: int = 1) -> psutil.Process:
        """The worker process of a model's only replica."""
        return self.workers()[f"{model}:{version}-0"]

    def faults(self) -> list[str]:
        """Lines of the log that tell of a fault of the server's own."""
        return [line for line in self.lines if any(word in line for word in _FAULTS)]

    def is_alive(self) -> bool:
        """Whether the process runs and answers that it does."""
        return self.process.poll() is None and status_of(f"{self.url}/v2/health/live") == 200

    def is_ready(self, model: str = "") -> bool:
        """Whether the server, or one of its models, says that it is ready."""
        path = f"models/{model}/ready" if model else "health/ready"
        return status_of(f"{self.url}/v2/{path}") == 200

    def wait_ready(self, model: str = "") -> None:
        """Wait for readiness."""
        self.wait(lambda: self.is_ready(model), f"{model or 'the server'} to be ready")

    def wait(self, condition: Callable[[], T | None], what: str) -> T:
        """Wait until the condition holds; what it gave then. Fails with the log if the server ends meanwhile."""

        def check() -> T | None:
            if self.process.poll() is not None and self._reader.is_alive():
                self._reader.join(PATIENCE_S)
            assert self.process.poll() is None, f"the server ended while waiting for {what}:\n{self.log}"
            return condition()

        return wait_until(check, what, lambda: self.log)

    def wait_for_log(self, pattern: str) -> re.Match[str]:
        """Wait until the log holds the pattern."""
        return self.wait(lambda: re.search(pattern, self.log), f"{pattern!r} in the log")

    def wait_until_serving(self) -> None:
        """Wait for the line that tells the ports, and for an answer."""
        match = self.wait_for_log(_SERVING.pattern)
        self.http, self.grpc = match.groups()
        self.wait(self.is_alive, "the server to answer")

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Ask the server to stop, and wait; its exit code. Fails if it does not end, or leaves a process behind."""
        children = _descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        return self._ended(children)

    def wait_stopped(self) -> int:
        """The same without a signal: it has had one."""
        return self._ended(_descendants(self.process.pid))

    def _ended(self, children: list[psutil.Process]) -> int:
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not stop:\n{self.log}") from None
        self._reader.join(PATIENCE_S)
        wait_until(lambda: not any(map(_is_alive, children)), f"all of {children} to be gone", lambda: self.log)
        return code

    def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        for line in stream:
            self.lines.append(line.decode(errors="replace").rstrip())

    def _end(self) -> None:
        """Leave nothing behind, whatever state the test has left."""
        children = _descendants(self.process.pid)
        self.process.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def started(
    folder: Path,
    *repositories: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start a server process with its data in ``folder``; nothing is waited for, and at the end it is killed."""
    command = [
        sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "0",
        "--data-dir", str(folder), "--database", f"sqlite:///{folder}/registry.db",
        *(part for repository in repositories for part in ("--model-repository", str(repository))),
        *arguments,
    ]  # fmt: skip
    server = Server(
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "TENSORGATE_ARENA_BYTES": "256MiB", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    )
    try:
        yield server
    finally:
        server._end()


@contextlib.contextmanager
def running(
    folder: Path,
    *repositories: Path,
    ready: bool = True,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that serves (and is ready, unless told otherwise). It has to stop on SIGTERM with exit code 0 and a
    log without faults of its own."""
    with started(folder, *repositories, arguments=arguments, environment=environment) as server:
        server.wait_until_serving()
        if ready:
            server.wait_ready()
        yield server
        assert server.stop() == 0, server.log
        assert server.faults() == []


def wait_until(condition: Callable[[], T | None], what: str, explain: Callable[[], str] = str) -> T:
    """Wait until the condition gives something true; that."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}\n{explain()}"
        time.sleep(0.02)
    return value


def status_of(url: str) -> int:
    """The status of a GET; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
