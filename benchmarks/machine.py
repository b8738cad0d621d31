"""What a figure was measured on, and how busy that machine was with other things."""

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.home import REPOSITORY
from benchmarks.load import perf_analyzer_command
from benchmarks.peers.setup import MLSERVER, TRITON


def describe() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "revision": said(["git", "-C", str(REPOSITORY), "log", "-1", "--format=%h"]),
        "tensorgate": package_version("tensorgate"),
        "onnxruntime": package_version("onnxruntime"),
        "peers": {"mlserver": MLSERVER, "triton": TRITON},
        "tools": tools(),
    }


def tools() -> dict[str, str]:
    perf_analyzer = perf_analyzer_command()
    return {
        "wrk": said(["wrk", "-v"]).split("[")[0].strip(),
        "h2load": said(["h2load", "--version"]),
        "perf_analyzer": said([perf_analyzer, "--version"]) if perf_analyzer else "",
    }


def said(command: list[str]) -> str:
    """First line of a command's output, empty if there is none; wrk exits 1 with its version."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    return next(iter((done.stdout or done.stderr).splitlines()), "")


def package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def busy_s() -> float:
    """Processor time that the whole machine has spent on anything since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
