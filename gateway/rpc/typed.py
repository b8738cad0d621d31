"""Typed contents of a gRPC tensor (``fp32_contents`` and the like) in the protocol's binary form."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from backends.tensor import NUMPY_DTYPE, Tensor, element_count, pack_elements
from gateway.errors import InvalidRequest
from gateway.inference.slices import Slices
from gateway.proto.inference_pb2 import InferTensorContents
from gateway.rpc.cut import malformed, parts_of

#: Datatype -> the one field that carries it. FP16 and BF16 have none.
FIELD: Final[dict[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}  # fmt: skip

#: Datatypes narrower than their field, with the field's own: their values have to be checked.
_NARROW: Final = {"INT8": "INT32", "INT16": "INT32", "UINT8": "UINT32", "UINT16": "UINT32"}


def pack(name: str, datatype: str, shape: tuple[int, ...], contents: InferTensorContents | None) -> bytes:
    """The bytes of an input whose values are typed (``None`` and empty contents fit a tensor without elements).

    Raises ``InvalidRequest`` if the values do not fit datatype or shape.
    """
    values = _values(name, datatype, contents)
    _check_count(name, shape, len(values))
    return _packed(name, datatype, values)


def pack_in_slices(tensor: Tensor, contents: list[memoryview]) -> Slices[bytearray]:
    """The same of contents that are large and still serialised, in parts that belong together. Raises as ``pack``."""
    name, datatype = tensor.name, tensor.datatype
    count, found, data = element_count(tensor.shape), 0, bytearray()
    out_of_range: InvalidRequest | None = None
    for part in itertools.chain.from_iterable(map(parts_of, contents)):
        try:
            message = InferTensorContents.FromString(part)
        except DecodeError as error:
            raise malformed(error) from error
        values = _values(name, datatype, message)
        try:
            data += _packed(name, datatype, values, found) if found < count and out_of_range is None else b""
        except InvalidRequest as error:  # told after what is wrong with the number of values
            out_of_range = error
        found += len(values)
        yield
    _check_count(name, tensor.shape, found)
    if out_of_range is not None:
        raise out_of_range
    return data


def _check_count(name: str, shape: tuple[int, ...], found: int) -> None:
    count = element_count(shape)
    if found != count:
        raise InvalidRequest(
            f"input {name!r}: shape {list(shape)} needs {count} value(s), the request has {found};"
            " send exactly as many, typed or in raw_input_contents"
        )


def _packed(name: str, datatype: str, values: Any, first: int = 0) -> bytes:
    """The values from number ``first`` on in binary form. Raises ``InvalidRequest`` for one that is out of range."""
    if datatype == "BYTES":
        return pack_elements(values)
    if datatype not in _NARROW:
        return np.array(values, dtype=NUMPY_DTYPE[datatype]).tobytes()
    array = np.array(values, dtype=NUMPY_DTYPE[_NARROW[datatype]])
    _check_range(name, datatype, array, first)
    return array.astype(NUMPY_DTYPE[datatype]).tobytes()


def _values(name: str, datatype: str, contents: InferTensorContents | None) -> Any:
    filled = contents.ListFields() if contents is not None else ()
    if not filled:
        return ()
    expected = FIELD.get(datatype)
    if expected is None:
        raise InvalidRequest(
            f"input {name!r}: datatype {datatype} has no typed contents; send its bytes in raw_input_contents"
        )
    if len(filled) > 1:
        names = ", ".join(field.name for field, _ in filled)
        raise InvalidRequest(f"input {name!r}: contents fills {names}; fill only {expected} for datatype {datatype}")
    field, values = filled[0]
    if field.name != expected:
        raise InvalidRequest(
            f"input {name!r}: contents fills {field.name}; datatype {datatype} is read from {expected}, move the values"
        )
    return values


def _check_range(name: str, datatype: str, array: npt.NDArray[Any], first: int) -> None:
    limits = np.iinfo(NUMPY_DTYPE[datatype])
    outside = (array < limits.min) | (array > limits.max)
    if outside.any():
        index = int(outside.argmax())
        raise InvalidRequest(
            f"input {name!r}: value {array[index]} at index {first + index} does not fit datatype {datatype}"
            f" ({limits.min} to {limits.max}); send values in range or a wider datatype"
        )
