"""The signature of a TensorFlow model: what the artifact says, narrowed by the spec, and whether rows batch."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from backends.batching import decide
from backends.declared import check_complete, narrow
from backends.spec import ModelSpec, Signature
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
    inputs = narrow("input", spec.inputs, facts.inputs, unranked=facts.unranked)
    outputs = narrow("output", spec.outputs, facts.outputs, unranked=facts.unranked)
    check_complete((tensor.name for tensor in facts.inputs), (tensor.name for tensor in inputs))
    rows_apart = not facts.unranked & {tensor.name for tensor in (*inputs, *outputs)} and keeps_rows_apart(
        [tensor.shape for tensor in inputs], [tensor.shape for tensor in outputs], facts.operators
    )
    max_batch_size, batching = decide(spec, (*inputs, *outputs), rows_apart)
    return Signature(facts.platform, inputs, outputs, max_batch_size, batching)


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
