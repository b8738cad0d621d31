"""``dynamic_batching`` of a configuration: to the rules of a worker's queue, and back."""

from __future__ import annotations

import pytest

from backends.spec import BatchingSpec, QueuePolicy
from gateway.modelconfig.batching import batching, write
from gateway.modelconfig.parse import ConfigError, parse
from gateway.proto.model_config_pb2 import ModelDynamicBatching


def rules(text: str, max_batch_size: int | None = 8, more: str = "") -> BatchingSpec | None:
    return batching(parse(f"dynamic_batching {{ {text} }} {more}", "pbtxt"), max_batch_size)


FULL = """
    preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 100 preserve_ordering: true
    priority_levels: 3 default_priority_level: 2
    default_queue_policy { max_queue_size: 5 }
    priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 7 } }
"""
AGEING = 'parameters { key: "priority_ageing_us" value: { string_value: "%s" } }'


def test_every_field_has_its_place() -> None:
    assert rules(FULL, more=AGEING % 9) == BatchingSpec(
        (4, 8), 100, preserve_ordering=True, priority_levels=3, default_priority=2, ageing_us=9,
        policy=QueuePolicy(max_size=5), policies={3: QueuePolicy(timeout_us=7, delays=True)},
    )  # fmt: skip


def test_what_was_read_is_written_back() -> None:
    spec = rules(FULL)
    assert spec is not None
    message = ModelDynamicBatching()
    write(message, spec)
    assert rules(str(message)) == spec


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", False),
        ("max_queue_delay_microseconds: 5", False),
        ("preserve_ordering: true", True),
        ("priority_levels: 1 default_priority_level: 1", False),
        ("priority_levels: 2 default_priority_level: 1", True),
        ("default_queue_policy { max_queue_size: 1 }", True),
        ("default_queue_policy { default_timeout_microseconds: 1 }", True),
    ],
)
def test_where_nothing_is_joined_only_rules_of_order_are_kept(size: int, text: str, kept: bool) -> None:
    assert (rules(text, size) is not None) is kept


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("preferred_batch_size: 9", "preferred_batch_size holds 9; it has to be 1 to max_batch_size 8"),
        ("preferred_batch_size: 0", "preferred_batch_size holds 0"),
        ("max_queue_delay_microseconds: 60000001", "is 60000001; it is at most 60000000"),
        ("priority_levels: 101 default_priority_level: 1", "priority_levels is 101; it is at most 100"),
        ("priority_levels: 2", "default_priority_level is 0; it has to be from 1 to priority_levels, 2"),
        ("priority_levels: 2 default_priority_level: 3", "default_priority_level is 3"),
        ("default_priority_level: 1", "default_priority_level is 1; it has to be left out"),
        ("priority_queue_policy { key: 1 value { } }", "is for level 1; the levels are 1 to 0"),
        ("default_queue_policy { default_timeout_microseconds: 86400000001 }", "it is at most 86400000000"),
    ],
)
def test_what_cannot_be_is_named_with_its_limit(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match="^dynamic_batching") as caught:
        rules(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "x", "9" * 5000, "\u0663"])
def test_an_ageing_that_is_no_number_of_microseconds_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^parameters\.priority_ageing_us is "):
        rules("", more=AGEING % value)
