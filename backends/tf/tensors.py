"""Tensors between numpy and TensorFlow: the datatypes, and what differs on the two sides.

* BF16: numpy has no such type, hence 16-bit integers here, and there the type that TensorFlow brings along.
* BYTES need nothing: strings of TensorFlow are bytes too, and come and go as object arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidInput, LoadFailed
from backends.spec import TensorSpec
from backends.tensor import NUMPY_DTYPE

Array = npt.NDArray[Any]

#: TensorFlow's, Keras' or numpy's name of a type -> datatype of the protocol.
DATATYPE: Final = {
    "bool": "BOOL",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64",
    "string": "BYTES",
}  # fmt: skip


def tensor_spec(what: str, name: str, dtype: str, shape: Iterable[int | None] | None) -> TensorSpec:
    """An input or output; ``shape`` None is an unknown rank and becomes (-1,), a size None or below 0 becomes -1.

    Raises ``LoadFailed`` for a type that the protocol lacks.
    """
    datatype = DATATYPE.get(dtype)
    if datatype is None:
        raise LoadFailed(
            f"{what} {name!r} is of type {dtype}, which the Open Inference Protocol does not have; export the model "
            f"with one of {', '.join(DATATYPE)}"
        )
    sizes = (None,) if shape is None else tuple(shape)
    return TensorSpec(name, datatype, tuple(-1 if size is None or size < 0 else int(size) for size in sizes))


def feed(spec: TensorSpec, array: Array, bfloat16: Any) -> Array:
    """The array as TensorFlow takes it, without a copy.

    Raises ``InvalidInput`` where type or shape do not fit: TensorFlow itself would not notice every such shape, because
    it builds the shapes that the model declares into the graph.
    """
    if array.dtype != NUMPY_DTYPE[spec.datatype]:
        raise InvalidInput(f"input {spec.name!r} is an array of {array.dtype}; the model takes {spec.datatype}")
    shape = array.shape
    if len(shape) != len(spec.shape) or any(
        wanted not in (-1, size) for wanted, size in zip(spec.shape, shape, strict=True)
    ):
        raise InvalidInput(f"input {spec.name!r} has shape {list(shape)}; the model takes {list(spec.shape)}")
    return array.view(bfloat16) if spec.datatype == "BF16" else array


def answer(array: Array) -> Array:
    """An array of TensorFlow's as the contract wants it, without a copy."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def share_memory(outputs: Iterable[Array], inputs: Sequence[Array]) -> bool:
    """Whether an output lies in the memory of an input, as that of a graph which only hands it on does."""
    return any(np.may_share_memory(output, given) for output in outputs for given in inputs)
