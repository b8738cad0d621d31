"""The three load generators: wrk for REST, h2load for gRPC, perf_analyzer for both."""

import csv
import json
import math
import os
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.payloads import Body

WRK_SCRIPT = Path(__file__).with_name("post.lua")
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
MEASURED_WINDOWS = 3  # perf_analyzer averages over its last three


class LoadError(Exception):
    """A load generator gave no result; the message ends with what it said."""


@dataclass(frozen=True)
class Load:
    """What one window of load saw. ``failed`` answers are not part of ``requests``."""

    requests: float
    failed: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float


def wrk(url: str, body: Body, concurrency: int, seconds: int) -> Load:
    """Closed loop over kept-alive connections, one thread."""
    options = [f"-c{concurrency}", f"-d{seconds}s", "--timeout", "20s", "-s", str(WRK_SCRIPT)]
    headers = [str(body.path), *body.headers.values()]
    output = run(["wrk", "-t1", *options, url, "--", *headers], seconds + 60)
    seen = json.loads(output.strip().splitlines()[-1])
    good = seen["requests"] - seen["failed"]
    per_s = good / seen["duration_us"] * 1e6
    return Load(good, seen["failed"], per_s, seen["p50_us"] / 1e3, seen["p99_us"] / 1e3)


def h2load(address: str, body: Body, answer_bytes: int, concurrency: int, seconds: int) -> Load:
    """Closed loop, one call at a time on each connection, one thread.

    A failed call is an HTTP 200 without a message, so failures are found by the bytes received:
    ``answer_bytes`` is the length of one good answer with its prefix.
    """
    log = body.path.with_suffix(".h2load")
    log.unlink(missing_ok=True)
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    options = ["-t1", "-m1", f"-c{concurrency}", f"-D{seconds}", f"--log-file={log}"]
    target = f"http://{address}{GRPC_METHOD}"
    output = run(["h2load", *options, "-d", str(body.path), *headers, target], seconds + 60)
    return h2load_result(output, log.read_text(), answer_bytes)


def h2load_result(output: str, log: str, answer_bytes: int) -> Load:
    """Log lines are: start in microseconds, HTTP status, microseconds to the end of the answer."""
    rows = [line.split("\t") for line in log.splitlines()]
    done = [(int(start), int(took)) for start, status, took in rows if status == "200"]
    traffic = re.search(r"\((\d+)\) data", output)
    if not done or traffic is None:
        raise LoadError(f"h2load finished no request: {output[-300:]}")
    empty = max(0, len(done) - math.ceil(int(traffic[1]) / answer_bytes))
    elapsed_us = max(start + took for start, took in done) - min(start for start, _ in done)
    latencies = sorted(took / 1e3 for _, took in done)
    good = len(done) - empty
    failed = len(rows) - good
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    return Load(good, failed, good / elapsed_us * 1e6, p50, p99)


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def perf_analyzer_command() -> str | None:
    """``PERF_ANALYZER``, else the one on the path, else none."""
    return os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")


@dataclass(frozen=True)
class PerfAnalyzerTarget:
    """What perf_analyzer is pointed at; it encodes the requests in ``data`` itself."""

    address: str
    model: str
    data: Path
    encoding: str


def perf_analyzer(target: PerfAnalyzerTarget, concurrency: int, seconds: int) -> Load:
    """Three windows that share ``seconds``; the tool needs Triton's model-config extension."""
    command = perf_analyzer_command()
    if command is None:
        raise LoadError("perf_analyzer is neither on the path nor named by PERF_ANALYZER")
    report = target.data.with_suffix(".csv")
    report.unlink(missing_ok=True)
    window_ms = max(500, seconds * 1000 // MEASURED_WINDOWS)
    # Any three windows in a row will do: how stable the figures are shows in the repeats.
    windows = ["-p", str(window_ms), "-s", "999", "-r", "10", "-f", str(report)]
    protocol = perf_analyzer_protocol(target.encoding)
    where = ["-m", target.model, "-u", target.address, "--input-data", str(target.data)]
    # With a thread per client, which is its default, it sometimes takes a minute to come to its end.
    load = ["--concurrency-range", str(concurrency), "--async" if concurrency > 1 else "--sync"]
    output = run([command, *where, *protocol, *load, *windows], 10 * seconds + 60)
    return perf_analyzer_result(report, output, window_ms * MEASURED_WINDOWS / 1e3)


def perf_analyzer_protocol(encoding: str) -> list[str]:
    if encoding == "grpc":
        return ["-i", "grpc"]
    return ["-i", "http", "--input-tensor-format", encoding, "--output-tensor-format", encoding]


def perf_analyzer_result(report: Path, output: str, seconds: float) -> Load:
    rows = list(csv.DictReader(report.open())) if report.exists() else []
    if not rows:
        raise LoadError(f"perf_analyzer gave no report: {output[-300:]}")
    per_s = float(rows[0]["Inferences/Second"])
    p50_us, p99_us = float(rows[0]["p50 latency"]), float(rows[0]["p99 latency"])
    return Load(per_s * seconds, 0, per_s, p50_us / 1e3, p99_us / 1e3)


def run(command: list[str], timeout_s: float) -> str:
    """Standard output and error of a generator that is not allowed to hang."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        raise LoadError(f"{command[0]} hung for {late.timeout:.0f} s") from late
    output = done.stdout + done.stderr
    if done.returncode:
        raise LoadError(f"{Path(command[0]).name}: exit {done.returncode}: {output[-300:]}")
    return output


def children_cpu_s() -> float:
    """Processor time of all generators that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
