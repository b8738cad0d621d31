"""One server at one point: its right to take part, and one measured window of load on it."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.load import (
    Load,
    LoadError,
    PerfAnalyzerTarget,
    children_cpu_s,
    h2load,
    perf_analyzer,
    wrk,
)
from benchmarks.payloads import Body, Point, perf_analyzer_data, write_bodies
from benchmarks.report import Cell, Row
from benchmarks.servers import Server
from benchmarks.verify import Expected, verify

NATIVE = "wrk + h2load"
PERF_ANALYZER = "perf_analyzer"
WARM_UP_CONCURRENCY = 8
WARM_UP_S = 1


@dataclass(frozen=True)
class Task:
    """A point in one protocol, its bodies on disk and the answer it has to have."""

    point: Point
    protocol: str
    bodies: dict[str, Body]
    perf_analyzer_data: Path
    expected: Expected


def write_task(point: Point, protocol: str, expected: Expected, folder: Path, batched: bool) -> Task:
    bodies = write_bodies(point, folder)
    data = perf_analyzer_data(point, folder / f"{point.name}.data", batched)
    return Task(point, protocol, bodies, data, expected)


@dataclass(frozen=True)
class Contender:
    """A server that answered the task correctly."""

    name: str
    server: Server
    task: Task
    answer_bytes: int

    @property
    def encoding(self) -> str:
        return self.server.encoding(self.task.protocol)

    def can_be_loaded_by(self, client: str) -> bool:
        return client != PERF_ANALYZER or self.server.engine.extensions

    def load(self, client: str, concurrency: int, seconds: int) -> Load:
        model, body = self.task.point.model, self.task.bodies[self.encoding]
        grpc = self.encoding == "grpc"
        address = self.server.grpc_address if grpc else self.server.http_address
        if client == PERF_ANALYZER:
            data = self.task.perf_analyzer_data
            target = PerfAnalyzerTarget(address, model, data, self.encoding)
            return perf_analyzer(target, concurrency, seconds)
        if grpc:
            return h2load(address, body, self.answer_bytes, concurrency, seconds)
        return wrk(self.server.infer_url(model), body, concurrency, seconds)


def admit(server: Server, task: Task) -> Contender:
    """Raises ``WrongAnswer`` unless the very bytes of the load get the right answer."""
    encoding = server.encoding(task.protocol)
    body = task.bodies[encoding]
    length = verify(server, task.point.model, encoding, body, task.expected)
    return Contender(server.engine.name, server, task, length)


def warm_up(contender: Contender) -> None:
    contender.load(NATIVE, WARM_UP_CONCURRENCY, WARM_UP_S)


def measure(cell: Cell, contender: Contender, repeat: int, seconds: int) -> Row:
    """One window, with the processor time that it cost the server, the client and anybody else."""
    started, busy = time.monotonic(), machine.busy_s()
    server_before, client_before = contender.server.cpu_s(), children_cpu_s()
    load = contender.load(cell.client, cell.concurrency, seconds)
    server_cpu_s = contender.server.cpu_s() - server_before
    client_cpu_s = children_cpu_s() - client_before
    available_s = (time.monotonic() - started) * machine.usable_cores()
    other_s = machine.busy_s() - busy - server_cpu_s - client_cpu_s
    if load.requests <= 0:
        raise LoadError(f"no request succeeded, {load.failed} failed")
    return Row(
        **asdict(cell),
        server=contender.name,
        encoding=contender.encoding,
        repeat=repeat,
        **asdict(load),
        server_cpu_s=server_cpu_s,
        client_cpu_s=client_cpu_s,
        other_cpu=max(0.0, other_s / available_s),
    )
