"""Starts, watches and stops the servers of the comparison."""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.engines import HOST, Engine, Launch, Ports, ServerError, Setting
from benchmarks.home import Home
from benchmarks.models import Tuning, model_files

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 10.0


@dataclass(frozen=True)
class Server:
    """A running server."""

    engine: Engine
    process: subprocess.Popen[bytes]
    ports: Ports
    log: Path

    @property
    def grpc_address(self) -> str:
        return f"{HOST}:{self.ports.grpc}"

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self.ports.http}"

    def infer_url(self, model: str) -> str:
        return f"http://{self.http_address}/v2/models/{model}/infer"

    def encoding(self, protocol: str) -> str:
        """The encoding a client of this server has to choose for ``protocol``."""
        return "json" if protocol == "binary" and not self.engine.extensions else protocol

    def wait_ready(self, models: list[str]) -> None:
        paths = ["/v2/health/ready", *(f"/v2/models/{model}/ready" for model in models)]
        deadline = time.monotonic() + READY_WITHIN_S
        while not all(self.answers(path) for path in paths):
            if self.process.poll() is not None:
                raise ServerError(f"exited at start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise ServerError(f"not ready after {READY_WITHIN_S:.0f} s: {self.last_words()}")
            time.sleep(0.1)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1000:]

    def answers(self, path: str) -> bool:
        """Whether it says 200; a server that is still starting says something else, or nothing."""
        try:
            with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def metadata(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.http_address}/v2", timeout=5) as answer:
            metadata: dict[str, Any] = json.load(answer)
        return {key: metadata.get(key) for key in ("name", "version")}

    def tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def cpu_s(self) -> float:
        """Processor time of the server and all it started, ended children included."""
        total = 0.0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])
        return total

    def memory_mb(self) -> int:
        """Proportional set size of all its processes."""
        total = 0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total >> 20

    def stop(self) -> None:
        tree = self.tree()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_WITHIN_S)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(STOP_WITHIN_S)


@contextlib.contextmanager
def running(engine: Engine, tuning: Tuning, home: Home, folder: Path, extra: str = "") -> Iterator[Server]:
    """A ready server, stopped on the way out whatever happens."""
    folder.mkdir(parents=True)
    arguments = shlex.split(extra) if engine.name == "tensorgate" else []
    setting = Setting(home, folder, tuning, free_ports(), arguments)
    launch = engine.launch(setting)
    server = Server(engine, start(launch, folder), setting.ports, folder / "log")
    try:
        server.wait_ready(list(model_files(home)))
        yield server
    finally:
        server.stop()


def start(launch: Launch, folder: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a Ctrl-C reaches the benchmark alone, which then stops it."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ORT_DISABLE_TELEMETRY": "1",
        **launch.environment,
    }
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            launch.command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def free_ports() -> Ports:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((HOST, 0))
        return Ports(*(each.getsockname()[1] for each in sockets))
