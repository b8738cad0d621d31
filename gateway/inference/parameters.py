"""Request parameters: which of them the protocol gives a meaning, and which go to the model."""

from __future__ import annotations

from typing import Any, Final

from gateway.errors import InvalidRequest

_RESERVED_PREFIX: Final = "triton_"
#: Asks for an empty last answer on a stream; clients may send it with any request, and a unary call has no use for it.
_IGNORED: Final = "triton_enable_empty_final_response"
_INT64_MIN: Final = -(1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1


def interpret(parameters: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    """Of a request's parameters: those for the model, its priority, and timeout in microseconds (both 0 when absent).

    Raises ``InvalidRequest`` for a reserved name or a value of the wrong kind. The ``sequence_*`` parameters are
    checked and stay among the model's.
    """
    rest: dict[str, Any] = {}
    priority = timeout_us = 0
    for key, value in parameters.items():
        if key == "timeout":
            timeout_us = _unsigned(key, value)
        elif key == "priority":
            priority = _unsigned(key, value)
        elif key != _IGNORED:
            _check(key, value)
            rest[key] = value
    return rest, priority, timeout_us


def _check(key: str, value: Any) -> None:
    if not isinstance(value, str | int | float | bool):
        raise InvalidRequest(f"parameter {key!r} is {type(value).__name__}; it has to be a string, number or boolean")
    if isinstance(value, int) and not _INT64_MIN <= value <= _UINT64_MAX:
        raise InvalidRequest(f"parameter {key!r} is {value}; an integer has to be from {_INT64_MIN} to {_UINT64_MAX}")
    if key.startswith(_RESERVED_PREFIX):
        raise InvalidRequest(f"parameter {key!r}: names that begin with {_RESERVED_PREFIX!r} are reserved; rename it")
    if key in ("sequence_start", "sequence_end") and not isinstance(value, bool):
        raise InvalidRequest(f"parameter {key!r} is {value!r}; it has to be a bool")
    if key == "sequence_id" and not isinstance(value, str):
        _unsigned(key, value)


def _unsigned(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT64_MAX:
        raise InvalidRequest(f"parameter {key!r} is {value!r}; it has to be an integer from 0 to {_UINT64_MAX}")
    return value
