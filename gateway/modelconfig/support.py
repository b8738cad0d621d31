"""Which fields of a ``ModelConfig`` have no effect here yet. They are of two kinds.

A field that changes answers, or on whose protection its author relies, is refused. A field that only tunes speed,
scheduling or reporting is ignored, and said to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gateway.proto.model_config_pb2 import ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput

#: Field, whether it is set, and what to do instead.
_REFUSED: Final[tuple[tuple[str, Callable[[ModelConfig], bool], str], ...]] = (
    ("sequence_batching", lambda c: c.HasField("sequence_batching"), "remove it, and send the state as tensors"),
    ("ensemble_scheduling", lambda c: c.HasField("ensemble_scheduling"), "call its models one after the other"),
    ("model_transaction_policy.decoupled", lambda c: c.model_transaction_policy.decoupled, "set it to false"),
    ("batch_input", lambda c: bool(c.batch_input), "remove it, and let the batcher pad: parameters.padding.value"),
    ("batch_output", lambda c: bool(c.batch_output), "remove it"),
    ("model_operations", lambda c: bool(c.model_operations.op_library_filename), "use a model without own operators"),
    ("model_repository_agents", lambda c: bool(c.model_repository_agents.agents), "remove it; versions have a digest"),
    ("instance_group.passive", lambda c: any(group.passive for group in c.instance_group), "remove the group"),
)
_REFUSED_OF_TENSOR: Final[tuple[tuple[str, Callable[[ModelInput | ModelOutput], bool], str], ...]] = (
    ("reshape", lambda t: t.HasField("reshape"), "give the model's own shape in dims"),
    ("is_shape_tensor", lambda t: t.is_shape_tensor, "remove it"),
    ("is_non_linear_format_io", lambda t: t.is_non_linear_format_io, "remove it"),
    (
        "allow_ragged_batch",
        lambda t: isinstance(t, ModelInput) and t.allow_ragged_batch,
        "set parameters.padding.value of it",
    ),
)

_IGNORED: Final = frozenset({
    "runtime", "cc_model_filenames", "metric_tags", "response_cache", "model_metrics",
})  # fmt: skip
#: Fields whose parts have an effect, with the parts that do; the others are ignored.
_HONOURED_PARTS: Final = {
    "optimization": frozenset({"graph"}),
}
_HONOURED_OF_GROUP: Final = frozenset({"name", "kind", "count", "gpus"})


def refused(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Fields that are set and must not be ignored, each with the mend."""
    for field, is_set, mend in _REFUSED:
        if is_set(config):
            yield field, mend
    tensors: list[tuple[str, ModelInput | ModelOutput]] = [("input", entry) for entry in config.input]
    tensors.extend(("output", entry) for entry in config.output)
    for kind, tensor in tensors:
        for field, is_set_of, mend in _REFUSED_OF_TENSOR:
            if is_set_of(tensor):
                yield f"{field} of {kind} {tensor.name!r}", mend


def ignored(config: ModelConfig) -> Iterator[str]:
    """Fields that are set and without effect; the answers are the same without them."""
    for descriptor, value in config.ListFields():
        if descriptor.name in _IGNORED:
            yield descriptor.name
        parts = _HONOURED_PARTS.get(descriptor.name)
        if parts is not None:
            yield from (f"{descriptor.name}.{part.name}" for part, _ in value.ListFields() if part.name not in parts)
    for group in config.instance_group:
        yield from (f"instance_group.{f.name}" for f, _ in group.ListFields() if f.name not in _HONOURED_OF_GROUP)
        if group.gpus and group.kind != ModelInstanceGroup.KIND_GPU:
            yield "instance_group.gpus without KIND_GPU"
    if any(output.label_filename for output in config.output):
        yield "output.label_filename"
