"""Counters of one version, as Triton's statistics extension defines them.

Made for the hot path: plain integers and no lock, since everything that counts runs on one event loop.

Every request counts once in ``success`` or ``fail``. A successful one counts in ``queue`` and the three ``compute``
durations too, with the times of the batch it travelled in; hence their sum stays below ``success``. Batches
themselves count in ``execution_count`` and ``batches``.
"""

from __future__ import annotations

import time
from typing import Any


class Duration:
    """How often something happened, and the nanoseconds that it took in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int) -> None:
        """Count one more of ``ns`` nanoseconds."""
        self.count += 1
        self.ns += ns


class BatchStatistics:
    """Executions of one batch size."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()


class ModelStatistics:
    """Statistics of one version of a model. All durations are in nanoseconds; counters only ever grow."""

    #: The durations of ``inference_stats``, in the protocol's order. Nothing is cached yet: the cache's stay 0.
    DURATIONS = (
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
    )  # fmt: skip

    __slots__ = ("batches", "execution_count", "inference_count", "last_inference_ms", "name", "version", *DURATIONS)

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.last_inference_ms = 0  # since the epoch
        self.inference_count = 0  # rows
        self.execution_count = 0  # batches
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.batches: dict[int, BatchStatistics] = {}

    def record_success(
        self, total_ns: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, batch_rows: int
    ) -> None:
        """One request was answered. ``batch_rows``: rows of this request (1 for a model without a batch dimension)."""
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.inference_count += batch_rows
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.compute_input.add(input_ns)
        self.compute_infer.add(infer_ns)
        self.compute_output.add(output_ns)

    def record_execution(self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """One batch of ``batch_size`` rows was executed."""
        self.execution_count += 1
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchStatistics()
        batch.compute_input.add(input_ns)
        batch.compute_infer.add(infer_ns)
        batch.compute_output.add(output_ns)

    def record_failure(self, total_ns: int) -> None:
        """One request was refused or failed after ``total_ns``."""
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.fail.add(total_ns)


def to_json_dict(statistics: ModelStatistics) -> dict[str, Any]:
    """One entry of ``model_stats`` in the REST answer: every key is present, all numbers are integers."""
    return {
        "name": statistics.name,
        "version": statistics.version,
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {name: _duration(getattr(statistics, name)) for name in ModelStatistics.DURATIONS},
        "response_stats": {},
        "batch_stats": [_batch(size, statistics.batches[size]) for size in sorted(statistics.batches)],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def _batch(size: int, batch: BatchStatistics) -> dict[str, Any]:
    return {
        "batch_size": size,
        "compute_input": _duration(batch.compute_input),
        "compute_infer": _duration(batch.compute_infer),
        "compute_output": _duration(batch.compute_output),
    }
