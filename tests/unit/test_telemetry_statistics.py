"""Counters of a version: how requests and batches count, and their two forms."""

from __future__ import annotations

import time

from gateway.rpc.render import statistics_message
from gateway.telemetry.statistics import ModelStatistics, to_json_dict

ZERO = {"count": 0, "ns": 0}


def busy() -> ModelStatistics:
    """Two requests of 3 and 1 rows in one batch, one alone, one failure."""
    statistics = ModelStatistics("m", "3")
    statistics.record_execution(4, 10, 100, 20)
    statistics.record_success(200, 5, 10, 100, 20, batch_rows=3)
    statistics.record_success(190, 6, 10, 100, 20, batch_rows=1)
    statistics.record_execution(1, 1, 50, 2)
    statistics.record_success(70, 0, 1, 50, 2, batch_rows=1)
    statistics.record_failure(33)
    return statistics


def test_a_version_that_has_done_nothing_shows_every_counter() -> None:
    found = to_json_dict(ModelStatistics("m", "3"))
    assert found == {
        "name": "m", "version": "3", "last_inference": 0, "inference_count": 0, "execution_count": 0,
        "inference_stats": {
            "success": ZERO, "fail": ZERO, "queue": ZERO, "compute_input": ZERO, "compute_infer": ZERO,
            "compute_output": ZERO, "cache_hit": ZERO, "cache_miss": ZERO,
        },
        "response_stats": {}, "batch_stats": [], "memory_usage": [],
    }  # fmt: skip


def test_rows_requests_and_batches_count_each_for_themselves() -> None:
    found = to_json_dict(busy())
    assert (found["inference_count"], found["execution_count"]) == (5, 2)
    assert found["inference_stats"] == {
        "success": {"count": 3, "ns": 460},
        "fail": {"count": 1, "ns": 33},
        "queue": {"count": 3, "ns": 11},
        "compute_input": {"count": 3, "ns": 21},
        "compute_infer": {"count": 3, "ns": 250},
        "compute_output": {"count": 3, "ns": 42},
        "cache_hit": ZERO,
        "cache_miss": ZERO,
    }
    assert found["batch_stats"] == [
        {
            "batch_size": size,
            "compute_input": {"count": 1, "ns": input_ns},
            "compute_infer": {"count": 1, "ns": infer_ns},
            "compute_output": {"count": 1, "ns": output_ns},
        }
        for size, input_ns, infer_ns, output_ns in ((1, 1, 50, 2), (4, 10, 100, 20))
    ]


def test_the_last_inference_is_told_in_milliseconds_since_the_epoch() -> None:
    before = time.time_ns() // 1_000_000
    found = busy().last_inference_ms
    assert before <= found <= time.time_ns() // 1_000_000


def test_the_protobuf_form_has_the_same_numbers() -> None:
    message, values = statistics_message(busy()), to_json_dict(busy())
    assert (message.name, message.version) == ("m", "3")
    assert (message.inference_count, message.execution_count) == (5, 2)
    for name, expected in values["inference_stats"].items():
        assert message.inference_stats.HasField(name)
        found = getattr(message.inference_stats, name)
        assert {"count": found.count, "ns": found.ns} == expected
    assert [(b.batch_size, b.compute_infer.ns, b.compute_output.count) for b in message.batch_stats] == [
        (1, 50, 1),
        (4, 100, 1),
    ]
