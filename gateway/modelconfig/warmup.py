"""The ``model_warmup`` of a configuration: samples that a worker runs before it is ready. Pure."""

from __future__ import annotations

import math
from typing import Final

from backends.spec import Warmup, WarmupInput
from gateway.modelconfig.parse import ConfigError
from gateway.modelconfig.types import DATATYPE
from gateway.proto.model_config_pb2 import DataType, ModelConfig, ModelWarmup

_MOST_RUNS: Final = 1000
_MOST_ELEMENTS: Final = 1 << 28


def warmups(config: ModelConfig, max_batch_size: int | None) -> tuple[Warmup, ...]:
    """The samples, in the order in which they are run.

    Raises ``ConfigError`` that names the field.
    """
    found: dict[str, Warmup] = {}
    for index, sample in enumerate(config.model_warmup):
        name = sample.name or str(index)
        if name in found:
            raise ConfigError(f"model_warmup has two samples of name {name!r}; give each a name of its own")
        found[name] = _warmup(f"model_warmup {name!r}", name, sample, max_batch_size)
    return tuple(found.values())


def _warmup(place: str, name: str, sample: ModelWarmup, max_batch_size: int | None) -> Warmup:
    if not sample.inputs:
        raise ConfigError(f"{place}: inputs is empty; describe an input of each name")
    if sample.count > _MOST_RUNS:
        raise ConfigError(f"{place}: count is {sample.count}; it is at most {_MOST_RUNS}")
    if max_batch_size is not None and sample.batch_size > max(max_batch_size, 0):
        raise ConfigError(f"{place}: batch_size is {sample.batch_size}; it is at most max_batch_size, {max_batch_size}")
    batch = sample.batch_size or (1 if max_batch_size else 0)
    inputs = (_input(f"{place}: input {key!r}", key, sample.inputs[key], batch) for key in sorted(sample.inputs))
    return Warmup(name, tuple(inputs), sample.count or 1)


def _input(place: str, name: str, entry: ModelWarmup.Input, batch: int) -> WarmupInput:
    datatype = DATATYPE.get(entry.data_type)
    if datatype is None:
        raise ConfigError(f"{place}: data_type is missing or not known; use one of {', '.join(DataType.keys()[1:])}")
    shape = (batch, *entry.dims) if batch else tuple(entry.dims)
    if any(dim < 0 for dim in shape) or math.prod(shape) > _MOST_ELEMENTS:
        raise ConfigError(
            f"{place}: dims is {list(entry.dims)}; each has to be 0 or more, and {_MOST_ELEMENTS} elements are the most"
        )
    kind = entry.WhichOneof("input_data_type")
    if kind is None or (kind != "input_data_file" and not getattr(entry, kind)):
        raise ConfigError(f"{place}: say zero_data: true, random_data: true, or name an input_data_file")
    file = _file(place, entry.input_data_file) if kind == "input_data_file" else ""
    return WarmupInput(name, datatype, shape, random=kind == "random_data", file=file)


def _file(place: str, name: str) -> str:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ConfigError(f"{place}: input_data_file {name!r} has to be a plain name of a file in the folder warmup")
    return name
