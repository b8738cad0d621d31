"""What onnxruntime reaches in this process: the ceiling of any server on this machine.

``python -m benchmarks.inprocess [--seconds 1] [--repeats 3]`` tries the ways to use the cores, with
batches of 1, 8 and 32, and prints the median of the repeats. No server can beat the best row.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.home import Home, default_home, machine_lock
from benchmarks.machine import cpu_model, usable_cores
from benchmarks.models import model_files
from benchmarks.payloads import Feeds, magika_feeds, minilm_feeds
from benchmarks.peers.session import OnnxModel
from benchmarks.peers.setup import install

BATCHES = (1, 8, 32)
FEEDS = {"magika": magika_feeds, "minilm": minilm_feeds}


@dataclass(frozen=True)
class Layout:
    """``callers`` threads over ``sessions`` sessions of ``intra_op`` threads each."""

    callers: int
    sessions: int
    intra_op: int

    def __str__(self) -> str:
        return f"{self.callers} callers, {self.sessions} sessions, {self.intra_op} intra-op threads"


def layouts() -> list[Layout]:
    cores = usable_cores()
    return [Layout(1, 1, 1), Layout(1, 1, cores), Layout(cores, 1, 1), Layout(cores, cores, 1)]


@dataclass(frozen=True)
class Outcome:
    items_per_s: float
    p50_ms: float


def measure(models: list[OnnxModel], callers: int, feeds: Feeds, seconds: float) -> Outcome:
    """Callers take the sessions in turn; the call in flight at the end is waited for and counted."""
    latencies: list[float] = []
    threads = [
        threading.Thread(target=call_until, args=(models[i % len(models)], feeds, seconds, latencies))
        for i in range(callers)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    batch = len(next(iter(feeds.values())))
    return Outcome(len(latencies) * batch / elapsed, median(latencies) * 1e3)


def call_until(model: OnnxModel, feeds: Feeds, seconds: float, latencies: list[float]) -> None:
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        model.run(feeds)
        latencies.append(time.perf_counter() - started)


def outcomes(name: str, path: Path, layout: Layout, repeats: int, seconds: float) -> Iterator[str]:
    """One table line for each batch size."""
    models = [OnnxModel(path, layout.intra_op) for _ in range(layout.sessions)]
    for batch in BATCHES:
        feeds = FEEDS[name](batch)
        for model in models:
            model.run(feeds)
        seen = [measure(models, layout.callers, feeds, seconds) for _ in range(repeats)]
        items, p50 = median(o.items_per_s for o in seen), median(o.p50_ms for o in seen)
        yield f"| {name} | {layout} | {batch} | {items:.1f} | {p50:.3g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=default_home())
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    home = Home(arguments.home.resolve())
    install(home)
    files = model_files(home)
    print(f"{cpu_model()}, {usable_cores()} cores\n")
    print("| model | layout | batch | items/s | p50 of a call, ms |\n|---|---|--:|--:|--:|")
    for name in FEEDS:
        for layout in layouts():
            with machine_lock(home.lock_file):
                for line in outcomes(name, files[name], layout, arguments.repeats, arguments.seconds):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
