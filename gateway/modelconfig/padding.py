"""The ``padding.`` parameters of a configuration: requests of different lengths share a batch. Pure.

``padding.value.<input>``   the number that its variable axes are padded with
``padding.mask.<input>``    the padded input that this one is the mask of: 1 in real places, 0 in padded ones
``padding.crop.<output>``   the input that its variable axes are as long as
``padding.max_ratio``       the longest of a batch is at most this many times as long as the shortest
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from backends.padding import FIELD, check
from backends.spec import PaddingSpec, TensorSpec
from gateway.modelconfig.parse import ConfigError
from gateway.proto.model_config_pb2 import ModelConfig

#: How the names of these parameters begin; they are no options of a backend.
PREFIX: Final = "padding."

_WORDS: Final = ("value", "mask", "crop")
_MAX_RATIO: Final = "max_ratio"
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_LONGEST: Final = 40


def padding(
    config: ModelConfig, max_batch_size: int | None, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> PaddingSpec | None:
    """What the parameters ask for; None if they do not. ``inputs`` and ``outputs`` are the declared ones, if any are.

    Raises ``ConfigError`` that names the parameter.
    """
    given = {
        name: config.parameters[name].string_value for name in sorted(config.parameters) if name.startswith(PREFIX)
    }
    if not given:
        return None
    tables: dict[str, dict[str, str]] = {word: {} for word in _WORDS}
    ratio = 0.0
    for name, text in given.items():
        word, _, tensor = name.removeprefix(PREFIX).partition(".")
        if name == PREFIX + _MAX_RATIO:
            ratio = _ratio(text)
        elif word in tables and tensor:
            tables[word][tensor] = text
        else:
            known = ", ".join((*(f"{PREFIX}{word}.<name of a tensor>" for word in _WORDS), PREFIX + _MAX_RATIO))
            raise ConfigError(f"parameters.{name} is not known; use {known}")
    values = {name: _number(f"{FIELD}.value.{name}", text) for name, text in tables["value"].items()}
    spec = PaddingSpec(values, tables["mask"], tables["crop"], ratio)
    _check(spec, max_batch_size, next(iter(given)))
    try:
        check(spec, inputs, outputs)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return spec


def _check(spec: PaddingSpec, max_batch_size: int | None, first: str) -> None:
    """What the parameters among themselves contradict; ``first`` is one of them."""
    if max_batch_size is not None and max_batch_size < 2:
        raise ConfigError(
            f"parameters.{first} is set, but max_batch_size is {max_batch_size}, so that each request runs alone: set "
            "max_batch_size to 2 or more, or take it out"
        )
    if not spec.values:
        raise ConfigError(
            f"parameters.{first} is set, but no input is padded: add {PREFIX}value.<input> with the number to pad with"
        )
    known = ", ".join(map(repr, spec.values))
    for mask, source in spec.masks.items():
        field = f"{FIELD}.mask.{mask}"
        if source not in spec.values:
            raise ConfigError(f"{field} is {source!r}; it has to be a padded input: {known}")
        if mask in spec.values:
            raise ConfigError(
                f"{field} is set, and {FIELD}.value.{mask} too: a mask is padded with 0, keep one of them"
            )


def _number(field: str, text: str) -> int | float:
    if len(text) <= _LONGEST and _NUMBER.fullmatch(text):
        try:
            return int(text)
        except ValueError:
            number = float(text)
        if math.isfinite(number):
            return number
    raise ConfigError(f"{field} is {text[:_LONGEST]!r}; it has to be a number, of at most {_LONGEST} characters")


def _ratio(text: str) -> float:
    field = f"{FIELD}.{_MAX_RATIO}"
    ratio = float(_number(field, text))
    if ratio <= 1:
        raise ConfigError(f"{field} is {text!r}; it has to be over 1, or left out for any lengths")
    return ratio
