"""Large tensors as JSON, in slices: both directions, as ``jsondata`` does it for small ones."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from backends.spec import ITEM_SIZE
from backends.tensor import Tensor, element_bounds, element_count
from gateway.errors import InvalidRequest
from gateway.inference.slices import SLICE, SLICE_ELEMENTS, Slices
from gateway.rest.v2.cut import Array
from gateway.rest.v2.jsondata import (
    MAX_DEPTH,
    TOO_DEEP,
    check_count,
    decoder,
    json_of_tensor,
    kind_of,
    mended,
    pack,
    refuse_binary_only,
)

_INDEX: Final = re.compile(r"(?<=\$)\[(\d+)\]")
_BYTE: Final = re.compile(r"(?<=\(byte )(\d+)(?=\))")
_CONSTANTS: Final = re.compile(rb"NaN|Infinity")


def data_from_json(tensor: Tensor, text: memoryview, array: Array) -> Slices[bytearray]:
    """What a ``data`` array holds, for the tensor that is to have it. Raises ``InvalidRequest`` as for a small one."""
    name, datatype = tensor.name, tensor.datatype
    refuse_binary_only(name, datatype)
    if array.depth > MAX_DEPTH:
        raise InvalidRequest(f"input '{name}': {TOO_DEEP}")
    if text[array.stop - 1] != ord("]"):
        raise _malformed(f"expected ',' or ']' (byte {array.stop - 1})")
    count, found, data = element_count(tensor.shape), 0, bytearray()
    out_of_range: InvalidRequest | None = None
    for place, piece in array.pieces(text):
        values = _values(tensor, array, piece, place, found)
        if not values and array.breaks:
            last = place == array.breaks[-1]
            raise _malformed(f"{'trailing comma in array' if last else 'invalid character'} (byte {place + 1})")
        try:
            data += pack(name, datatype, values, found) if found < count and out_of_range is None else b""
        except InvalidRequest as error:  # told after what is wrong with the text, or with the shape
            out_of_range = error
        found += len(values)
        yield
    check_count(name, tensor.shape, found)
    if out_of_range is not None:
        raise out_of_range
    return data


def _values(tensor: Tensor, array: Array, piece: bytes, place: int, found: int) -> list[Any]:
    name, datatype = tensor.name, tensor.datatype
    try:
        values: list[Any] = decoder(kind_of(datatype), 1).decode(piece)
    except msgspec.ValidationError as error:
        return mended(name, datatype, piece, _with_index(str(error), tensor.shape, array.depth, found))
    except msgspec.DecodeError as error:
        text = str(error)
        if text.startswith(_MALFORMED) and not _CONSTANTS.search(piece):
            raise _malformed(moved(text.removeprefix(_MALFORMED), lambda at: place + at)) from None
        return mended(name, datatype, piece, text)
    return values


_MALFORMED: Final = "JSON is malformed: "


def _malformed(text: str) -> InvalidRequest:
    return InvalidRequest(f"failed to parse the request JSON buffer: {_MALFORMED}{text}")


def moved(error: str, place: Callable[[int], int]) -> str:
    """The error's text with the place in the whole for that in the part."""
    return _BYTE.sub(lambda match: str(place(int(match[1]))), error)


def _with_index(error: str, shape: tuple[int, ...], depth: int, found: int) -> str:
    """The error's text with the index that the element has in the whole, nested as its array is."""

    def whole(match: re.Match[str]) -> str:
        index = found + int(match[1])
        if depth == 1:
            return f"[{index}]"
        if depth != len(shape) or index >= element_count(shape):
            return "[...]"
        return "".join(f"[{part}]" for part in np.unravel_index(index, shape))

    return _INDEX.sub(whole, error)


def write_json(body: io.BytesIO, tensor: Tensor) -> Slices[None]:
    """Write the flat ``data`` array. Raises ``InvalidRequest`` if the datatype or a string cannot be JSON."""
    separator = b"["
    for part in _parts(tensor):
        body.write(separator)
        body.write(memoryview(json_of_tensor(part))[1:-1])
        separator = b","
        yield
    body.write(b"]" if tensor.data else b"[]")


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    data, offset, item = memoryview(tensor.data), 0, ITEM_SIZE[tensor.datatype]
    while offset < len(data):
        end = offset + SLICE // item * item if item else element_bounds(data, offset, 0, SLICE_ELEMENTS)[-1]
        yield Tensor(tensor.name, tensor.datatype, (), data[offset:end])
        offset = end
