"""How a worker's load and its end are told to people."""

from __future__ import annotations

from typing import Final

from backends.messages import LoadReport
from gateway.workers.process import WorkerProcess

_MIB: Final = 1 << 20


def of_load(load: LoadReport) -> str:
    """``1.8 s (import 0.9, model 0.9, warm-up 0.0), 312 MiB (model 20)``."""
    split = f"import {load.import_ns / 1e9:.2f}, model {load.read_ns / 1e9:.2f}, warm-up {load.warmup_ns / 1e9:.2f}"
    memory = f"{load.rss_bytes / _MIB:.0f} MiB, {load.model_bytes / _MIB:.0f} of them the model's"
    return f"{load.total_ns / 1e9:.2f} s ({split}), {memory}"


def of_memory(used: int, limit: int) -> str:
    """What is held against a worker that uses more bytes than it may."""
    return f"it uses {used / _MIB:.0f} MiB, its limit is {limit / _MIB:.0f} MiB (setting worker_memory_limit_bytes)"


def because(process: WorkerProcess) -> str:
    """What the gateway holds against it, if anything."""
    return f": {process.channel.fault}" if process.channel.fault else ""


def tail(process: WorkerProcess) -> str:
    """The last lines that the worker wrote, for the reason."""
    lines = [line for line in process.tail if line.strip()][-5:]
    return "; its last words: " + " | ".join(lines) if lines else ""
