"""Tensors between numpy and onnxruntime: the datatypes, and the two that differ on the two sides.

* BYTES: onnxruntime's strings are ``str`` in Python, and UTF-8 by definition of ONNX. It would take ``bytes`` for their
  ``repr``, so they are decoded on the way in and encoded on the way out.
* BF16: numpy has no such type, hence 16-bit integers here, and ``OrtValue``s over the same memory there.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidInput

Array = npt.NDArray[Any]

#: onnxruntime's type of an input or output -> datatype of the protocol.
DATATYPE: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32", "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32", "tensor(int64)": "INT64",
    "tensor(float16)": "FP16", "tensor(bfloat16)": "BF16", "tensor(float)": "FP32", "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}  # fmt: skip

#: TensorProto.BFLOAT16.
_BFLOAT16: Final = 16


def decode_strings(name: str, array: Array) -> Array:
    """``bytes`` -> ``str``. Raises ``InvalidInput`` that names the element which is not UTF-8."""
    strings: list[str] = []
    for index, element in enumerate(array.reshape(-1).tolist()):
        try:
            strings.append(element.decode())
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"input {name!r}, element {index}: not UTF-8 ({error.reason} at byte {error.start}), as strings of an "
                "ONNX model have to be: encode raw bytes as text, or use a model that takes them as UINT8"
            ) from error
    return _objects(strings, array.shape)


def encode_strings(array: Array) -> Array:
    """``str`` -> ``bytes``."""
    return _objects([element.encode() for element in array.reshape(-1).tolist()], array.shape)


def _objects(elements: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def bf16_to_ort(ort: Any, array: Array) -> Any:
    """An ``OrtValue`` of type BFLOAT16 over the memory of a 16-bit array."""
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C"), _BFLOAT16)


def bf16_from_ort(value: Any) -> Array:
    """The 16-bit array over the memory of an ``OrtValue`` on the CPU; the array keeps the value alive."""
    shape = tuple(value.shape())
    count = math.prod(shape)
    if not count:
        return np.empty(shape, np.uint16)
    memory = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    memory.owner = value  # numpy holds ``memory``, and so the value
    return np.frombuffer(memory, np.uint16).reshape(shape)
