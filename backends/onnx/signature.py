"""The signature of an ONNX model: what the session says, narrowed by what the spec declares, and whether rows batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from backends.batching import decide
from backends.declared import check_complete, narrow
from backends.errors import LoadFailed
from backends.onnx.graph import Facts
from backends.onnx.tensors import DATATYPE
from backends.spec import ModelSpec, Signature, TensorSpec

#: As Triton calls it; clients show it.
PLATFORM: Final = "onnxruntime_onnx"

#: Names that exporters and people give to a batch dimension.
_BATCH_NAME: Final = re.compile(r"batch[a-z_]*|b|bs|n", re.IGNORECASE)
#: tf2onnx gives every unknown dimension a name of its own.
_NAMELESS: Final = re.compile(r"unk__\d+")
#: Operators whose number of output rows depends on the data, so that nameless first dimensions prove nothing.
_DATA_DEPENDENT: Final = frozenset({"Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "Unique"})
#: Operators that choose one scale for the whole tensor: every row's precision then depends on the other rows.
_MIXES_ROWS: Final = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})


def describe(spec: ModelSpec, session: Any, facts: Facts) -> Signature:
    """The signature of a loaded session.

    Initializers that a request may override are optional inputs, except of a model that batches: there one value would
    hold for the rows of all. Raises ``LoadFailed`` for types that the protocol lacks, for declarations in the spec that
    contradict the model, and for an input of unknown rank that the spec does not declare.
    """
    required, given = session.get_inputs(), session.get_outputs()
    overridable = [_tensor(node, "input", optional=True) for node in session.get_overridable_initializers()]
    open_rank = {node.name for node in (*required, *given) if not node.shape} & facts.unranked
    found = [*(_tensor(node, "input") for node in required), *overridable]
    inputs = narrow("input", spec.inputs, found, unranked=open_rank)
    outputs = narrow("output", spec.outputs, [_tensor(node, "output") for node in given], unranked=open_rank)
    check_complete((node.name for node in required), (tensor.name for tensor in inputs))
    _check_types(inputs, outputs)
    # an initializer that the spec names is meant to be offered, and keeps the model from batching
    rowwise = [tensor for tensor in (*inputs, *outputs) if spec.inputs or not tensor.optional]
    rows_apart = all(len(tensor.shape) > 1 for tensor in inputs if not tensor.optional) and keeps_rows_apart(
        _first_dimensions(required, inputs), _first_dimensions(given, outputs), facts.operators
    )
    max_batch_size, batching = decide(spec, rowwise, rows_apart)
    if max_batch_size:
        inputs = tuple(tensor for tensor in inputs if not tensor.optional)
    return Signature(PLATFORM, inputs, outputs, max_batch_size, batching)


def keeps_rows_apart(
    inputs: Sequence[int | str | None], outputs: Sequence[int | str | None], operators: AbstractSet[str]
) -> bool:
    """Whether joining requests along axis 0 is safe, as far as the first dimensions of inputs and outputs can tell.

    An ONNX model does not say which dimension is the batch. A wrong yes would mix the answers of different clients, a
    wrong no costs only speed and is mended by setting ``max_batch_size``. So it is yes only if all are variable, the
    operators do not quantise by what the whole batch holds (a client's answer would depend on its company), and

    * all have one and the same name, and it is one that is given to a batch; or
    * none has a name, as TensorFlow and scikit-learn export it, and no operator makes up its own number of rows.

    The caller sees to it that all inputs are at least matrices: a vector of variable length is more often a sequence.
    """
    dimensions = {*inputs, *outputs}
    if not inputs or not outputs or any(isinstance(dimension, int) for dimension in dimensions):
        return False
    if operators & _MIXES_ROWS:
        return False
    names = {str(name) for name in dimensions if name is not None and not _NAMELESS.fullmatch(str(name))}
    if not names:
        return not operators & _DATA_DEPENDENT
    return dimensions == names and len(names) == 1 and bool(_BATCH_NAME.fullmatch(next(iter(names))))


def _first_dimensions(nodes: Iterable[Any], tensors: Iterable[TensorSpec]) -> list[int | str | None]:
    """First dimensions as the model names them; 0, a fixed one, where there is no dimension at all."""
    wanted = {tensor.name for tensor in tensors}
    return [node.shape[0] if node.shape else 0 for node in nodes if node.name in wanted]


def _tensor(node: Any, what: str, *, optional: bool = False) -> TensorSpec:
    datatype = DATATYPE.get(node.type)
    if datatype is None:
        raise LoadFailed(
            f"{what} {node.name!r} is of type {node.type}, which the Open Inference Protocol does not have; export the "
            f"model with one of {', '.join(DATATYPE)}"
        )
    shape = tuple(dimension if isinstance(dimension, int) else -1 for dimension in node.shape)
    return TensorSpec(node.name, datatype, shape, optional)


def _check_types(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> None:
    """BF16 outputs need onnxruntime's IO binding, which takes no strings."""
    strings = [tensor.name for tensor in inputs if tensor.datatype == "BYTES"]
    bf16 = [tensor.name for tensor in outputs if tensor.datatype == "BF16"]
    if strings and bf16:
        raise LoadFailed(
            f"output {bf16[0]!r} is BF16 and input {strings[0]!r} is BYTES, which onnxruntime cannot combine: declare "
            "only outputs of other types, or cast it to FP32 in the model"
        )
