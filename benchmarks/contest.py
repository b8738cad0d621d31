"""The run itself: which servers are up when, and in which order they come under load."""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender, Task, admit, measure, warm_up, write_task
from benchmarks.engines import ENGINES, Engine, ServerError
from benchmarks.home import Home, machine_lock
from benchmarks.load import LoadError
from benchmarks.models import Tuning, model_files
from benchmarks.payloads import Point
from benchmarks.peers.session import OnnxModel
from benchmarks.report import Cell, Row
from benchmarks.servers import Server, running
from benchmarks.verify import WrongAnswer


@dataclass(frozen=True)
class Plan:
    """What one run covers; ``points`` by tuning."""

    home: Home
    servers: list[str]
    points: dict[Tuning, list[Point]]
    protocols: list[str]
    clients: list[str]
    concurrency: list[int]
    repeats: int
    seconds: int
    tensorgate_arguments: str


class Results:
    """The results file: a line as soon as something is known, so that a broken run keeps its rows."""

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self.errors: list[dict[str, str]] = []
        self._path = path
        path.write_text("")

    def note(self, **line: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def row(self, row: Row) -> None:
        self.rows.append(row)
        self.note(row=asdict(row))
        say(f"{row.cell} | {row.server}: {row.requests_per_s:.1f}/s, p99 {row.p99_ms:.3g} ms")

    def error(self, **error: str) -> None:
        self.errors.append(error)
        self.note(error=error)
        say(f"ERROR {error}")


class Contest:
    """Runs a plan; ``folder`` is for what the servers write."""

    def __init__(self, plan: Plan, results: Results, folder: Path) -> None:
        self.plan = plan
        self.results = results
        self.folder = folder
        self.references = {n: OnnxModel(path) for n, path in model_files(plan.home).items()}

    def run(self) -> None:
        for tuning, points in self.plan.points.items():
            with contextlib.ExitStack() as stack:
                servers = list(self.start_servers(tuning, stack))
                for point in points:
                    self.run_point(tuning, point, servers)

    def start_servers(self, tuning: Tuning, stack: contextlib.ExitStack) -> Iterator[Server]:
        """All servers that offer ``tuning``, kept in ``stack``; one that does not start is noted."""
        for engine in (ENGINES[name] for name in self.plan.servers):
            if not engine.offers(tuning):
                continue
            try:
                server = stack.enter_context(self.running(engine, tuning))
                about = server.metadata() | {"memory_mb": server.memory_mb()}
            except (ServerError, OSError) as error:
                self.results.error(server=engine.name, tuning=tuning.name, message=str(error))
                continue
            self.results.note(server=engine.name, tuning=tuning.name, **about)
            yield server

    def running(self, engine: Engine, tuning: Tuning) -> contextlib.AbstractContextManager[Server]:
        folder = self.folder / f"{engine.name}-{tuning.name}"
        return running(engine, tuning, self.plan.home, folder, self.plan.tensorgate_arguments)

    def run_point(self, tuning: Tuning, point: Point, servers: list[Server]) -> None:
        expected = self.references[point.model].run(point.feeds)
        for protocol in point.protocols:
            if protocol not in self.plan.protocols:
                continue
            task = write_task(point, protocol, expected, self.folder, tuning.max_batch > 0)
            contenders = list(self.admitted(task, servers))
            for client in self.plan.clients:
                for concurrency in self.plan.concurrency:
                    cell = Cell(client, tuning.name, point.name, protocol, concurrency)
                    self.run_cell(cell, contenders)

    def admitted(self, task: Task, servers: list[Server]) -> Iterator[Contender]:
        for server in servers:
            try:
                contender = admit(server, task)
                with machine_lock(self.plan.home.lock_file):
                    warm_up(contender)
            except (WrongAnswer, LoadError, OSError) as error:
                where = f"{task.point.name} {task.protocol}"
                self.results.error(server=server.engine.name, point=where, message=str(error))
            else:
                yield contender

    def run_cell(self, cell: Cell, contenders: list[Contender]) -> None:
        """Each repeat is a round of all servers, beginning with the next one, under one lock."""
        able = [each for each in contenders if each.can_be_loaded_by(cell.client)]
        for repeat in range(self.plan.repeats):
            first = repeat % max(1, len(able))
            with machine_lock(self.plan.home.lock_file):
                for contender in able[first:] + able[:first]:
                    self.run_window(cell, contender, repeat)

    def run_window(self, cell: Cell, contender: Contender, repeat: int) -> None:
        try:
            self.results.row(measure(cell, contender, repeat, self.plan.seconds))
        except LoadError as error:
            self.results.error(server=contender.name, cell=str(cell), message=str(error))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
