"""From a ``ModelConfig`` to the ``ModelSpec`` that a worker gets, and to the versions that are served. Pure.

Batching: ``max_batch_size`` 0 means that the tensors have no batch dimension; a configuration that has neither that
nor inputs nor outputs leaves it to the backend (``None``). Dynamic batching is on wherever more than one row may be
batched and no scheduler is chosen; ``max_batch_size: 1`` turns it off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final

from backends.spec import ALLOW_CODE, ModelSpec, TensorSpec
from gateway.modelconfig import support
from gateway.modelconfig.batching import AGEING, batching
from gateway.modelconfig.padding import PREFIX, padding
from gateway.modelconfig.parse import ConfigError
from gateway.modelconfig.types import DATATYPE
from gateway.modelconfig.warmup import warmups
from gateway.proto.model_config_pb2 import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
)

#: A config's ``backend`` or ``platform`` -> framework.
FRAMEWORK: Final[dict[str, str]] = {
    "onnxruntime": "onnx", "onnxruntime_onnx": "onnx", "onnx": "onnx",
    "pytorch": "torch", "pytorch_libtorch": "torch", "torch": "torch",
    "tensorflow": "tf", "tensorflow_savedmodel": "tf", "tf": "tf",
    "tensorrtllm": "trtllm", "trtllm": "trtllm",
    "echo": "echo",
}  # fmt: skip

#: ``optimization.graph.level`` -> the option of that meaning; 0 is the default, all optimisations.
_GRAPH_LEVEL: Final = {-1: "basic", 1: "extended", 2: "disable"}

_log: Final = logging.getLogger(__name__)


def to_spec(config: ModelConfig, *, name: str, version: int, path: str, framework: str) -> ModelSpec:
    """The specification of one version of model ``name``, whose artifact is the file or folder ``path``.

    Raises ``ConfigError`` that names the field.
    """
    _check_identity(config, name, framework)
    refused = next(support.refused(config), None)
    if refused is not None:
        field, mend = refused
        raise ConfigError(f"model {name!r}: {field} is not supported yet; {mend}")
    ignored = sorted(set(support.ignored(config)))
    if ignored:
        _log.warning("model %s: ignored in its configuration: %s", name, ", ".join(ignored))
    max_batch_size = _max_batch_size(config)
    inputs = _tensors("input", config.input, batched=bool(max_batch_size))
    outputs = _tensors("output", config.output, batched=bool(max_batch_size))
    instances, device = placement(config.instance_group)
    return ModelSpec(
        name=name,
        version=version,
        framework=framework,
        path=_artifact(config, path),
        max_batch_size=max_batch_size,
        batching=batching(config, max_batch_size, padding(config, max_batch_size, inputs, outputs)),
        inputs=inputs,
        outputs=outputs,
        instances=instances,
        device=device,
        options=_options(config),
        warmup=warmups(config, max_batch_size),
    )


def framework_of(config: ModelConfig) -> str | None:
    """The framework that ``backend`` (or the older ``platform``) names; ``None`` if neither is set.

    Raises ``ConfigError`` for a name that is not known.
    """
    field = "backend" if config.backend else "platform"
    value = config.backend or config.platform
    if not value:
        return None
    if value not in FRAMEWORK:
        raise ConfigError(f"{field} {value!r} is not known; use one of {', '.join(FRAMEWORK)}")
    return FRAMEWORK[value]


def served_versions(config: ModelConfig, available: Iterable[int]) -> list[int]:
    """Those of the ``available`` versions that the version policy chooses, ascending; the newest if it has none."""
    versions = sorted(set(available))
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return versions
    if choice == "specific":
        wanted = set(policy.specific.versions)
        absent = sorted(wanted.difference(versions))
        if absent:
            _log.warning("model %s: version_policy asks for versions that are not there: %s", config.name, absent)
        return [version for version in versions if version in wanted]
    return versions[-(policy.latest.num_versions or 1) :]


def _check_identity(config: ModelConfig, name: str, framework: str) -> None:
    if config.name and config.name != name:
        raise ConfigError(f"name is {config.name!r}, the model is called {name!r}; make them equal or leave name out")
    stated = framework_of(config)
    if stated is not None and stated != framework:
        raise ConfigError(
            f"model {name!r}: backend (or platform) {config.backend or config.platform!r} means framework {stated!r},"
            f" the artifact is served with {framework!r}; make them equal or leave it out"
        )


def _max_batch_size(config: ModelConfig) -> int | None:
    size = config.max_batch_size
    if size < 0:
        raise ConfigError(f"max_batch_size is {size}; use 0 for a model without a batch dimension, or the limit")
    if size == 0 and not config.input and not config.output:
        return None
    return size


def placement(groups: Sequence[ModelInstanceGroup]) -> tuple[int, str]:
    """How many executions at a time, and on which device: ``cpu``, ``cuda:N``, or ``cuda`` for any.

    All of them share one worker, and so one device. Raises ``ConfigError``.
    """
    instances = 0
    devices: set[str] = set()
    for index, group in enumerate(groups):
        if group.count < 0:
            raise ConfigError(f"instance_group[{index}].count is {group.count}; it has to be 1 or more")
        instances += group.count or 1
        if group.kind == ModelInstanceGroup.KIND_GPU:
            devices.update(f"cuda:{gpu}" for gpu in group.gpus)
            devices.update(() if group.gpus else ("cuda",))
        else:
            devices.add("cpu")
    if len(devices) > 1:
        raise ConfigError(
            f"instance_group places one version on {', '.join(sorted(devices))}; several devices are not supported yet,"
            " keep one"
        )
    return instances or 1, devices.pop() if devices else "cpu"


def _tensors(field: str, entries: Sequence[ModelInput | ModelOutput], *, batched: bool) -> tuple[TensorSpec, ...]:
    specs: dict[str, TensorSpec] = {}
    for index, entry in enumerate(entries):
        place = f"{field}[{index}]"
        if not entry.name:
            raise ConfigError(f"{place}.name is empty; give the tensor's name in the model")
        if entry.name in specs:
            raise ConfigError(f"{place}.name {entry.name!r} is given twice; describe each tensor once")
        specs[entry.name] = _tensor(f"{place} ({entry.name!r})", entry, batched)
    return tuple(specs.values())


def _tensor(place: str, entry: ModelInput | ModelOutput, batched: bool) -> TensorSpec:
    datatype = DATATYPE.get(entry.data_type)
    if datatype is None:
        raise ConfigError(f"{place}.data_type is missing or not known; use one of {', '.join(DataType.keys()[1:])}")
    dims = tuple(entry.dims)
    if any(dim < 1 and dim != -1 for dim in dims):
        raise ConfigError(f"{place}.dims is {list(dims)}; each has to be 1 or more, or -1 for any")
    optional = isinstance(entry, ModelInput) and entry.optional
    return TensorSpec(entry.name, datatype, (-1, *dims) if batched else dims, optional)


def _artifact(config: ModelConfig, path: str) -> str:
    """``path``, or the file in it that ``default_model_filename`` names."""
    filename = config.default_model_filename
    if not filename or PurePosixPath(path).name == filename:
        return path
    if "/" in filename or "\0" in filename or filename in (".", ".."):
        raise ConfigError(
            f"default_model_filename {filename!r} has to be a plain name of a file in the version's folder"
        )
    return str(PurePosixPath(path) / filename)


def _options(config: ModelConfig) -> dict[str, str]:
    """The backend's options: ``parameters`` but those of the batcher, and the graph optimisation level by default."""
    options = {
        key: parameter.string_value
        for key, parameter in config.parameters.items()
        if key != AGEING and not key.startswith(PREFIX)
    }
    if ALLOW_CODE in options:
        raise ConfigError(
            f"parameters has {ALLOW_CODE}: a model cannot allow itself to run code; take it out, and if you trust "
            f"whoever made the model, start the server with --allow-code (setting {ALLOW_CODE})"
        )
    level = config.optimization.graph.level
    if level:
        if level not in _GRAPH_LEVEL:
            raise ConfigError(
                f"optimization.graph.level is {level}; use -1 (basic), 1 (extended), 2 (none), or leave it"
            )
        options.setdefault("graph_optimization_level", _GRAPH_LEVEL[level])
    return options
