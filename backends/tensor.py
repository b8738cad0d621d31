"""``Tensor``: a name, a datatype, a shape and a buffer. The buffer is a view wherever that is possible."""

from __future__ import annotations

import itertools
import math
import struct
import sys
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview

#: Datatype -> numpy dtype. BF16 has none in numpy and travels as its raw 16 bits; BYTES becomes an object array.
NUMPY_DTYPE: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"), "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(object),
}  # fmt: skip

_DATATYPE: Final = {dtype: name for name, dtype in NUMPY_DTYPE.items() if name != "BF16"}
_MAX_DIMENSIONS: Final = 64  # numpy's
_MAX_ELEMENTS: Final = (2**63 - 1) // 8  # of the largest datatype
_LENGTH: Final = struct.Struct("<I")


class Tensor(msgspec.Struct):
    """A tensor in the protocol's binary form: little-endian, row-major; BYTES as (u32 length, bytes) per element."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any  # Buffer; msgspec must not look into it

    def numpy(self) -> npt.NDArray[Any]:
        """The tensor as an array: a view of the buffer, or for BYTES an object array of ``bytes``."""
        if self.datatype == "BYTES":
            return bytes_to_array(self.data, self.shape)
        return np.frombuffer(self.data, NUMPY_DTYPE[self.datatype]).reshape(self.shape)


def from_numpy(name: str, array: npt.NDArray[Any], datatype: str | None = None) -> Tensor:
    """A tensor over ``array``'s memory (copied only if it is not contiguous, or big-endian).

    BF16 needs ``datatype`` (16-bit array). Raises ``TypeError`` if the array's elements are not of that datatype.
    """
    datatype = datatype or datatype_of(array.dtype)
    if datatype == "BYTES":
        return Tensor(name, datatype, array.shape, array_to_bytes(array))
    dtype = NUMPY_DTYPE[datatype]
    if array.dtype != dtype and array.dtype.newbyteorder("<") != dtype:
        raise TypeError(f"tensor {name!r}: an array of {array.dtype} is no {datatype}")
    flat = np.ascontiguousarray(array, dtype).reshape(-1)
    return Tensor(name, datatype, array.shape, flat.view(np.uint8).data)


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy dtype. Raises ``TypeError`` where there is none (complex, dates)."""
    if dtype.kind in "OSUT":
        return "BYTES"
    name = _DATATYPE.get(dtype.newbyteorder("<"))
    if name is None:
        raise TypeError(f"numpy dtype {dtype} has no datatype in the Open Inference Protocol")
    return name


def element_count(shape: tuple[int, ...]) -> int:
    """Number of elements; Python integers cannot overflow. ``()`` is one scalar."""
    return math.prod(shape)


def is_addressable(shape: tuple[int, ...]) -> bool:
    """Whether an array may have this shape. numpy wants the sizes other than 0 to fit, even if there is no element."""
    return len(shape) <= _MAX_DIMENSIONS and math.prod(size or 1 for size in shape) <= _MAX_ELEMENTS


def element_bounds(data: Buffer, offset: int = 0, index: int = 0, stop: int = sys.maxsize) -> list[int]:
    """Where the elements of a BYTES buffer begin, from element ``index`` at ``offset`` on, and where the last one ends.

    At most up to element ``stop``: a long buffer is walked in parts. Raises ``ValueError`` that names element and
    offset if a length lies.
    """
    bounds, total, unpack = [offset], len(data), _LENGTH.unpack_from
    append, place = bounds.append, offset
    try:
        for _ in range(index, stop):
            if place >= total:
                break
            place += unpack(data, place)[0] + 4
            append(place)
    except struct.error:
        index += len(bounds) - 1
        text = f"element {index} at offset {place}: {total - place} byte(s) left, its length needs 4"
        raise ValueError(text) from None
    if place > total:
        begin, index = bounds[-2], index + len(bounds) - 2
        (length,) = unpack(data, begin)
        raise ValueError(f"element {index} at offset {begin}: says {length} bytes, {total - begin - 4} are left")
    return bounds


def elements(data: Buffer, bounds: list[int]) -> list[bytes]:
    """The elements of a BYTES buffer that lie between ``bounds``."""
    first = bounds[0]
    part = bytes(memoryview(data)[first : bounds[-1]])  # slices of bytes are made faster than those of other buffers
    return [part[begin - first + 4 : end - first] for begin, end in itertools.pairwise(bounds)]


def bytes_to_array(data: Buffer, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """BYTES buffer -> object array of ``bytes``. Raises ``ValueError`` unless it holds one element per place."""
    bounds = element_bounds(data)
    array = np.empty(element_count(shape), dtype=object)
    if len(bounds) - 1 != len(array):  # numpy would repeat a single one
        raise ValueError(f"{len(bounds) - 1} element(s), shape {list(shape)} has {len(array)}")
    array[:] = elements(data, bounds)
    return array.reshape(shape)


def array_to_bytes(array: npt.NDArray[Any]) -> bytes:
    """Object or string array -> BYTES buffer, ``str`` elements as UTF-8. Raises ``TypeError`` for others."""
    return pack_elements(array.reshape(-1).tolist())


def pack_elements(values: Iterable[Any]) -> bytes:
    """``bytes`` and ``str`` -> BYTES buffer, ``str`` as UTF-8. Raises ``TypeError`` for others."""
    parts: list[bytes] = []
    append, pack = parts.append, _LENGTH.pack
    for element in values:
        raw = element.encode() if isinstance(element, str) else element
        if not isinstance(raw, (bytes, bytearray)):  # bytes(3) would be three zeros
            raise TypeError(f"an element of a BYTES tensor is {type(element).__name__}; it has to be bytes or str")
        append(pack(len(raw)) + raw)
    return b"".join(parts)
