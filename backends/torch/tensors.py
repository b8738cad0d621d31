"""Tensors between numpy and torch. BF16 and torch's other types share memory with numpy arrays of the same size."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from backends.errors import InferenceFailed
from backends.tensor import NUMPY_DTYPE
from backends.torch.framework import torch

Array = npt.NDArray[Any]

#: Datatype of the protocol -> torch's type. BYTES has none.
DTYPE: Final[dict[str, Any]] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32, "UINT64": torch.uint64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64,
    "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32, "FP64": torch.float64,
}  # fmt: skip
DATATYPE: Final[dict[Any, str]] = {dtype: datatype for datatype, dtype in DTYPE.items()}


def to_tensor(array: Array, datatype: str, *, copy: bool) -> Any:
    """A tensor on the CPU: over the array's memory, or over a copy if asked for, or if torch needs one to read it."""
    flags = array.flags
    if copy or not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C")
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if datatype == "BF16" else tensor


def to_array(name: str, value: Any, datatype: str) -> Array:
    """An output as an array of its datatype, over the tensor's memory wherever that is on the CPU already.

    Floating values of another precision are converted, for a model may compute in one that its signature does not
    show. Raises ``InferenceFailed`` for anything else that is not of this datatype.
    """
    wanted = DTYPE[datatype]
    if not isinstance(value, torch.Tensor):
        return _from_number(name, value, datatype)
    if value.layout is not torch.strided or value.is_quantized:
        raise InferenceFailed(f"the model gave output {name!r} sparse or quantized; have it give a dense tensor")
    if value.dtype is not wanted:
        if not (value.dtype.is_floating_point and wanted.is_floating_point):
            raise InferenceFailed(
                f"the model gave output {name!r} as {text_of(value.dtype)}, its signature says {datatype}: declare the "
                "output with the type that the model gives"
            )
        value = value.to(wanted)
    if value.requires_grad:  # of a parameter that is an output
        value = value.detach()
    value = value.cpu().resolve_conj().resolve_neg()
    array: Array = (value.view(torch.uint16) if datatype == "BF16" else value).numpy()
    return array


def text_of(dtype: Any) -> str:
    """A torch type as the protocol calls it, or as torch does where the protocol has none."""
    return DATATYPE.get(dtype, str(dtype))


def _from_number(name: str, value: Any, datatype: str) -> Array:
    if not isinstance(value, int | float):
        raise InferenceFailed(f"the model gave output {name!r} as {type(value).__name__}; have it give a tensor")
    if datatype == "BF16":
        array: Array = torch.tensor(float(value), dtype=torch.bfloat16).view(torch.uint16).numpy()
        return array
    return np.asarray(value, NUMPY_DTYPE[datatype])
