"""The ``dynamic_batching`` of a configuration: who runs together, in which order, and how long one waits. Pure."""

from __future__ import annotations

from typing import Final

from backends.spec import BatchingSpec, PaddingSpec, QueuePolicy
from gateway.modelconfig.parse import ConfigError
from gateway.proto.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy

#: The parameter that says after how many microseconds of waiting a request overtakes one level of priority.
AGEING: Final = "priority_ageing_us"

_FIELD: Final = "dynamic_batching"
_LONGEST_DELAY_US: Final = 60_000_000
_LONGEST_US: Final = 86_400_000_000
_MOST_LEVELS: Final = 100


def batching(
    config: ModelConfig, max_batch_size: int | None, padding: PaddingSpec | None = None
) -> BatchingSpec | None:
    """The rules for a worker's queue; None if each request runs alone, in order of arrival.

    Raises ``ConfigError`` that names the field.
    """
    dynamic = config.dynamic_batching
    _check_sizes(dynamic, max_batch_size)
    levels = _bounded("priority_levels", dynamic.priority_levels, _MOST_LEVELS)
    spec = BatchingSpec(
        preferred_batch_sizes=tuple(sorted(set(dynamic.preferred_batch_size))),
        max_queue_delay_us=_delay(dynamic),
        preserve_ordering=dynamic.preserve_ordering,
        priority_levels=levels,
        default_priority=_default_priority(dynamic, levels),
        ageing_us=_ageing(config),
        policy=_policy("default_queue_policy", dynamic.default_queue_policy),
        policies={level: _policy_of(level, levels, policy) for level, policy in dynamic.priority_queue_policy.items()},
        padding=padding,
    )
    alone = max_batch_size is not None and max_batch_size < 2
    return None if alone and not spec.orders else spec


def write(dynamic: ModelDynamicBatching, spec: BatchingSpec) -> None:
    """The reverse, for a completed configuration."""
    dynamic.SetInParent()
    dynamic.preferred_batch_size[:] = spec.preferred_batch_sizes
    dynamic.max_queue_delay_microseconds = spec.max_queue_delay_us
    dynamic.preserve_ordering = spec.preserve_ordering
    dynamic.priority_levels = spec.priority_levels
    dynamic.default_priority_level = spec.default_priority
    if spec.policy != QueuePolicy():
        _write_policy(dynamic.default_queue_policy, spec.policy)
    for level, policy in spec.policies.items():
        _write_policy(dynamic.priority_queue_policy[level], policy)


def _check_sizes(dynamic: ModelDynamicBatching, max_batch_size: int | None) -> None:
    for size in dynamic.preferred_batch_size:
        if size < 1 or (max_batch_size is not None and size > max_batch_size):
            limit = "1 or more" if max_batch_size is None else f"1 to max_batch_size {max_batch_size}"
            raise ConfigError(f"{_FIELD}.preferred_batch_size holds {size}; it has to be {limit}")


def _delay(dynamic: ModelDynamicBatching) -> int:
    delay_us = dynamic.max_queue_delay_microseconds
    if delay_us > _LONGEST_DELAY_US:
        raise ConfigError(
            f"{_FIELD}.max_queue_delay_microseconds is {delay_us}; it is at most {_LONGEST_DELAY_US} (a minute)"
        )
    return delay_us


def _default_priority(dynamic: ModelDynamicBatching, levels: int) -> int:
    default = dynamic.default_priority_level
    if (levels or default) and not 1 <= default <= levels:
        allowed = f"from 1 to priority_levels, {levels}" if levels else "left out where there are no priority_levels"
        raise ConfigError(f"{_FIELD}.default_priority_level is {default}; it has to be {allowed}")
    return default


def _ageing(config: ModelConfig) -> int:
    if AGEING not in config.parameters:
        return BatchingSpec().ageing_us
    text = config.parameters[AGEING].string_value
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= _LONGEST_US:
        raise ConfigError(f"parameters.{AGEING} is {text!r}; it has to be a number of microseconds, 1 to {_LONGEST_US}")
    return int(text)


def _policy_of(level: int, levels: int, policy: ModelQueuePolicy) -> QueuePolicy:
    if not 1 <= level <= levels:
        raise ConfigError(f"{_FIELD}.priority_queue_policy is for level {level}; the levels are 1 to {levels}")
    return _policy(f"priority_queue_policy[{level}]", policy)


def _policy(field: str, policy: ModelQueuePolicy) -> QueuePolicy:
    """``allow_timeout_override`` needs no place in it: a request's own timeout always counts where it is shorter."""
    timeout_us = _bounded(f"{field}.default_timeout_microseconds", policy.default_timeout_microseconds, _LONGEST_US)
    return QueuePolicy(timeout_us, policy.timeout_action == ModelQueuePolicy.DELAY, policy.max_queue_size)


def _write_policy(message: ModelQueuePolicy, policy: QueuePolicy) -> None:
    message.timeout_action = ModelQueuePolicy.DELAY if policy.delays else ModelQueuePolicy.REJECT
    message.default_timeout_microseconds = policy.timeout_us
    message.allow_timeout_override = True
    message.max_queue_size = policy.max_size


def _bounded(field: str, value: int, limit: int) -> int:
    if value > limit:
        raise ConfigError(f"{_FIELD}.{field} is {value}; it is at most {limit}")
    return value
