"""NVIDIA's load generator drives the server without a failed request: it reads metadata, configuration and statistics,
and stops at the first thing that is not as in Triton."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from support.rest import http_call
from support.server import Server

PROGRAM: Final = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")

pytestmark = [
    pytest.mark.skipif(
        PROGRAM is None,
        reason="perf_analyzer is neither in PERF_ANALYZER nor on PATH (scripts/perf_analyzer.sh gets it)",
    ),
    pytest.mark.usefixtures("unharmed"),
]


def perf_analyzer(server: Server, protocol: str, model: str, folder: Path, *arguments: str) -> dict[str, float]:
    """Measure in a few short windows; the last row of its report, numbers by their headings."""
    assert PROGRAM is not None
    report = folder / "report.csv"
    run = subprocess.run(
        [
            PROGRAM, "-m", model, "-i", protocol, "-u", server.http if protocol == "http" else server.grpc,
            # A window of 300 ms; any three in a row count as stable, for no figure is looked at here.
            "-p", "300", "-r", "5", "-s", "999", "-f", str(report), *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    output = run.stdout + run.stderr
    assert run.returncode == 0, output
    assert re.search(r"Throughput: [0-9.]+ infer/sec", output), output
    assert "fail" not in output.lower(), output
    assert "error" not in output.lower(), output
    with report.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: float(value) for name, value in rows[-1].items() if value}


def failures(server: Server, model: str) -> int:
    """Requests that the server refused or lost."""
    entry = http_call(server, "GET", f"/v2/models/{model}/stats").json["model_stats"][0]
    return int(entry["inference_stats"]["fail"]["count"])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("simple", ("--concurrency-range", "4")),
        ("simple", ("-b", "4", "--concurrency-range", "2", "-a")),
        ("identity_fp32", ("--shape", "x:3,5")),
        ("identity_bytes", ("--shape", "x:2,3", "--string-length", "20")),
        ("echo", ("--shape", "x:4", "--input-data", "zero", "--concurrency-range", "8")),
    ],
)
def test_it_measures_a_model_without_a_failed_request(
    server: Server, tmp_path: Path, protocol: str, model: str, arguments: tuple[str, ...]
) -> None:
    failed = failures(server, model)
    measured = perf_analyzer(server, protocol, model, tmp_path, *arguments)
    assert measured["Inferences/Second"] > 0
    assert measured["p50 latency"] > 0
    server_parts = ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")
    assert all(measured[part] >= 0 for part in server_parts)
    assert measured["Server Compute Infer"] > 0, "the statistics of the server are part of its report"
    assert failures(server, model) == failed


@pytest.mark.parametrize("binary", [False, True])
def test_it_measures_json_and_binary_tensors(server: Server, tmp_path: Path, binary: bool) -> None:
    form = "binary" if binary else "json"
    arguments = ("--input-tensor-format", form, "--output-tensor-format", form)
    assert perf_analyzer(server, "http", "simple", tmp_path, *arguments)["Inferences/Second"] > 0


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_it_measures_compressed_grpc(server: Server, tmp_path: Path, compression: str) -> None:
    arguments = ("--grpc-compression-algorithm", compression)
    assert perf_analyzer(server, "grpc", "simple", tmp_path, *arguments)["Inferences/Second"] > 0
