"""The signature of a TensorFlow model: what the artifact says, narrowed by the spec, and whether rows batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from backends.batching import decide
from backends.errors import LoadFailed
from backends.spec import ModelSpec, Signature, TensorSpec
from backends.tf.model import Facts

#: Operators whose number of output rows depends on the data, so that variable first dimensions prove nothing.
_DATA_DEPENDENT: Final = frozenset(
    {
        "DynamicPartition", "ListDiff", "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3",
        "NonMaxSuppressionV4", "NonMaxSuppressionV5", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2",
        "Where",
        # as LiteRT calls them
        "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "UNIQUE", "WHERE",
    }
)  # fmt: skip


def describe(spec: ModelSpec, facts: Facts) -> Signature:
    """The signature of a loaded model.

    Raises ``LoadFailed`` for declarations in the spec that contradict the model, and for an input of unknown rank that
    the spec does not declare.
    """
    inputs = _narrow(spec.inputs, facts.inputs, facts.unranked, "input")
    outputs = _narrow(spec.outputs, facts.outputs, facts.unranked, "output")
    _check_complete(facts.inputs, inputs)
    rows_apart = not facts.unranked & {tensor.name for tensor in (*inputs, *outputs)} and keeps_rows_apart(
        [tensor.shape for tensor in inputs], [tensor.shape for tensor in outputs], facts.operators
    )
    max_batch_size, batching = decide(spec, (*inputs, *outputs), rows_apart)
    return Signature(facts.platform, tuple(inputs), tuple(outputs), max_batch_size, batching)


def keeps_rows_apart(
    inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]], operators: AbstractSet[str]
) -> bool:
    """Whether joining requests along axis 0 is safe, as far as shapes and operators can tell.

    Keras and TensorFlow's own servers take a first dimension of unknown size for the batch, and so does this where

    * every input and output has one;
    * every input is at least a matrix: a vector of unknown length may as well be a sequence, and the parts that a
      ragged or sparse input is exported as are vectors; and
    * no operator makes up its own number of rows.

    A wrong yes would mix the answers of different clients, a wrong no costs only speed and is mended by setting
    ``max_batch_size``. Layers that look across the rows (statistics of the batch, attention between rows) cannot be
    seen here; such a model has to say ``max_batch_size`` 0.
    """
    if not inputs or not outputs or operators & _DATA_DEPENDENT:
        return False
    return all(len(shape) > 1 for shape in inputs) and all(shape[:1] == (-1,) for shape in (*inputs, *outputs))


def _narrow(
    declared: Sequence[TensorSpec], found: Sequence[TensorSpec], unranked: AbstractSet[str], what: str
) -> list[TensorSpec]:
    """The declared tensors, with what the model knows better; all of the model's if none are declared."""
    if not declared:
        return [_undeclared(tensor, what) if tensor.name in unranked else tensor for tensor in found]
    by_name = {tensor.name: tensor for tensor in found}
    narrowed = []
    for tensor in declared:
        model = by_name.get(tensor.name)
        if model is None:
            raise LoadFailed(f"the model has no {what} {tensor.name!r}; it has {', '.join(map(repr, by_name))}")
        if tensor.name in unranked:
            model = msgspec.structs.replace(model, shape=tensor.shape)
        narrowed.append(_merge(tensor, model, what))
    return narrowed


def _undeclared(tensor: TensorSpec, what: str) -> TensorSpec:
    """A tensor of unknown rank: requests could not be checked, answers can be given all the same."""
    if what == "input":
        raise LoadFailed(f"input {tensor.name!r} has no shape in the model: declare the model's inputs with their dims")
    return tensor


def _merge(declared: TensorSpec, model: TensorSpec, what: str) -> TensorSpec:
    if declared.datatype != model.datatype:
        raise LoadFailed(
            f"{what} {model.name!r} is declared as {declared.datatype}, in the model it is {model.datatype}"
        )
    pairs = list(zip(declared.shape, model.shape, strict=False))
    if len(declared.shape) != len(model.shape) or not all(a == b or -1 in (a, b) for a, b in pairs):
        raise LoadFailed(
            f"{what} {model.name!r} is declared with shape {list(declared.shape)} (batch dimension included), in the "
            f"model it has {list(model.shape)}"
        )
    return msgspec.structs.replace(model, shape=tuple(max(a, b) for a, b in pairs))


def _check_complete(required: Iterable[TensorSpec], inputs: Iterable[TensorSpec]) -> None:
    """An input that is not offered could never be sent."""
    offered = {tensor.name for tensor in inputs}
    missing = [repr(tensor.name) for tensor in required if tensor.name not in offered]
    if missing:
        raise LoadFailed(f"the model needs input(s) {', '.join(missing)}, which the declared inputs lack")
