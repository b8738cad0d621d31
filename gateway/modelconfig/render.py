"""The completed configuration of a loaded model, as the protocol shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from backends.spec import BatchingSpec, ModelSpec, Signature, TensorSpec
from gateway.modelconfig import batching
from gateway.modelconfig.types import DATATYPE
from gateway.proto import POOL
from gateway.proto.model_config_pb2 import ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput

#: Framework -> Triton's name for the backend, and the file it looks for in a version's folder.
BACKEND: Final = {"onnx": "onnxruntime", "torch": "pytorch", "tf": "tensorflow", "trtllm": "tensorrtllm"}
DEFAULT_FILENAME: Final = {"onnx": "model.onnx", "torch": "model.pt", "tf": "model.savedmodel"}

_DATA_TYPE: Final[dict[str, Any]] = {name: number for number, name in DATATYPE.items()}
Entry = TypeVar("Entry", ModelInput, ModelOutput)
_INTEGERS_OF_64_BITS: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def render(spec: ModelSpec, signature: Signature, config: ModelConfig, loaded: Iterable[int]) -> ModelConfig:
    """``config`` with everything that loading has decided: what is served, not what was asked for.

    ``loaded`` are the numbers of the model's versions that are ready; they become the ``version_policy``.

    Clients that size their requests by the configuration (perf_analyzer) find every field they read.
    """
    batched = signature.max_batch_size > 0
    full = ModelConfig()
    full.CopyFrom(config)
    full.name = spec.name
    full.platform = signature.platform
    full.backend = config.backend or BACKEND.get(spec.framework, spec.framework)
    full.max_batch_size = signature.max_batch_size
    full.default_model_filename = config.default_model_filename or _filename(spec)
    full.version_policy.specific.versions[:] = sorted(loaded)
    given_inputs, given_outputs = {t.name: t for t in full.input}, {t.name: t for t in full.output}
    del full.input[:], full.output[:]
    for tensor in signature.inputs:
        entry = given_inputs.get(tensor.name) or ModelInput()
        entry.optional = tensor.optional
        full.input.append(_completed(entry, tensor, batched))
    for tensor in signature.outputs:
        full.output.append(_completed(given_outputs.get(tensor.name) or ModelOutput(), tensor, batched))
    _set_batching(full, signature.batching)
    _set_instances(full, spec)
    for key, value in spec.options.items():
        full.parameters[key].string_value = value
    full.model_transaction_policy.decoupled = False
    full.ClearField("response_cache")
    return full


def to_json(config: ModelConfig) -> bytes:
    """The JSON form with snake_case names; numbers are numbers, and fields at their default are present."""
    values = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, descriptor_pool=POOL
    )
    return orjson.dumps(_with_numbers(values, config.DESCRIPTOR))


def _completed(entry: Entry, tensor: TensorSpec, batched: bool) -> Entry:
    entry.name = tensor.name
    entry.data_type = _DATA_TYPE[tensor.datatype]
    entry.dims[:] = tensor.shape[1:] if batched else tensor.shape
    return entry


def _set_batching(full: ModelConfig, spec: BatchingSpec | None) -> None:
    full.ClearField("dynamic_batching")
    if spec is not None:
        batching.write(full.dynamic_batching, spec)


def _set_instances(full: ModelConfig, spec: ModelSpec) -> None:
    del full.instance_group[:]
    group = full.instance_group.add(name=f"{spec.name}_0", count=spec.instances)
    kind, _, index = spec.device.partition(":")
    if kind == "cuda":
        group.kind = ModelInstanceGroup.KIND_GPU
        group.gpus.extend([int(index)] if index else [])  # none: whichever the gateway finds
    else:
        group.kind = ModelInstanceGroup.KIND_CPU


def _filename(spec: ModelSpec) -> str:
    path = PurePosixPath(spec.path)
    return path.name if path.suffix else DEFAULT_FILENAME.get(spec.framework, "")


def _with_numbers(values: Any, message: Any) -> Any:
    """protobuf's JSON form writes 64-bit integers as strings; every reader of a configuration expects numbers."""
    for field in message.fields:
        value = values.get(field.name)
        if value is None:
            continue
        if field.cpp_type in _INTEGERS_OF_64_BITS:
            values[field.name] = [int(item) for item in value] if isinstance(value, list) else int(value)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            _map_with_numbers(value, field.message_type.fields_by_name["value"])
        elif field.message_type is not None:
            for item in value if isinstance(value, list) else [value]:
                _with_numbers(item, field.message_type)
    return values


def _map_with_numbers(values: dict[str, Any], field: FieldDescriptor) -> None:
    if field.message_type is not None:
        for item in values.values():
            _with_numbers(item, field.message_type)
