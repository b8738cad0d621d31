"""Tensors as JSON numbers, strings and booleans: both directions.

Parsing decodes straight into typed lists (``msgspec``), nested arrays by a type as deep as the text is. Printing uses
``orjson`` on the array itself. ``NaN`` and infinities are written as the tokens ``NaN`` and ``Infinity``, which
Triton's clients read and strict JSON does not know; only such tensors take the slow way.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import struct
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from backends.tensor import NUMPY_DTYPE, Tensor, element_bounds, element_count, elements, pack_elements
from gateway.errors import InvalidRequest

MAX_DEPTH: Final = 100
TOO_DEEP: Final = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
_TYPED_DEPTH: Final = 8
#: Characters of a number that an error's text repeats.
_SHOWN: Final = 40
_OPENING: Final = re.compile(rb"[\s\[]*")
_KIND: Final[dict[str, type]] = {"BOOL": bool, "BYTES": str, "FP32": float, "FP64": float}
_NO_JSON: Final = ("FP16", "BF16")
_FLOATS: Final = ("FP32", "FP64")
#: Datatype -> its letter in ``struct``, which is as fast as numpy for long lists, faster for short ones, and exact
#: about ranges.
_CODE: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d",
}  # fmt: skip


class NumberOutOfRange(ValueError):
    """A number in JSON that no FP64 can hold."""


def loads(raw: bytes) -> Any:
    """JSON that may hold ``NaN`` and ``Infinity``. Raises ``ValueError``, also for a number that is out of range."""
    return json.loads(raw, parse_float=_finite)


def tensor_from_json(name: str, datatype: str, shape: tuple[int, ...], raw: msgspec.Raw | None) -> Tensor:
    """The tensor of a JSON ``data`` array, flat or nested. Raises ``InvalidRequest`` that names input and fault."""
    refuse_binary_only(name, datatype)
    count = element_count(shape)
    if raw is None:
        if count:
            raise InvalidRequest(f"input '{name}' has no data: give 'data', or 'binary_data_size' and binary data")
        values: list[Any] = []
    else:
        values = _values(name, datatype, raw)
    check_count(name, shape, len(values))
    return Tensor(name, datatype, shape, pack(name, datatype, values))


def refuse_binary_only(name: str, datatype: str) -> None:
    """Raises ``InvalidRequest`` for a datatype that has no form in JSON."""
    if datatype in _NO_JSON:
        raise InvalidRequest(f"input '{name}': sending {datatype} as JSON is not allowed; use binary tensor data")


def check_count(name: str, shape: tuple[int, ...], found: int) -> None:
    """Raises ``InvalidRequest`` unless there is one element for each place."""
    count = element_count(shape)
    if found != count:
        raise InvalidRequest(
            f"Unable to parse 'data' of input '{name}': Shape does not match true shape of 'data' field: "
            f"{list(shape)} needs {count} elements, got {found}"
        )


def json_of_tensor(tensor: Tensor) -> msgspec.Raw:
    """The flat ``data`` array. Raises ``InvalidRequest`` if the datatype or a string cannot be JSON."""
    datatype = tensor.datatype
    if datatype in _NO_JSON:
        raise InvalidRequest(
            f"output '{tensor.name}': sending {datatype} as JSON is not allowed; ask for it with \"binary_data\": true"
        )
    if datatype == "BYTES":
        return msgspec.Raw(orjson.dumps(_strings(tensor)))
    array = np.frombuffer(tensor.data, NUMPY_DTYPE[datatype])
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    if datatype in _FLOATS and b"null" in text:  # orjson's word for what is not finite
        text = json.dumps(array.tolist()).encode()
    return msgspec.Raw(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NumberOutOfRange(f"number {text[:_SHOWN]} is out of range; write an infinity as Infinity or -Infinity")
    return value


def _values(name: str, datatype: str, raw: msgspec.Raw) -> list[Any]:
    opening = _OPENING.match(memoryview(raw)[: 4 * MAX_DEPTH])
    depth = opening.group().count(b"[") if opening else 0
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"input '{name}': {TOO_DEEP}")
    if depth == 0:
        raise InvalidRequest(f"input '{name}': 'data' must be an array")
    kind = kind_of(datatype)
    try:
        if depth <= _TYPED_DEPTH:
            return _flatten(decoder(kind, depth).decode(raw), depth)
        return _walk(name, loads(bytes(raw)), kind)
    except RecursionError:
        raise InvalidRequest(f"input '{name}': {TOO_DEEP}") from None
    except msgspec.DecodeError as error:
        return mended(name, datatype, bytes(raw), str(error))


def kind_of(datatype: str) -> type:
    """What an element is in Python."""
    return _KIND.get(datatype, int)


def mended(name: str, datatype: str, raw: bytes, error: str) -> list[Any]:
    """What the typed decoder refused with ``error``: irregular nesting, a NaN, or a real fault.

    Raises ``InvalidRequest`` for the last.
    """
    fault = InvalidRequest(f"Unable to parse 'data' of input '{name}' as {datatype}: {error}")
    try:
        values = loads(raw)
    except NumberOutOfRange as number:
        raise InvalidRequest(f"Unable to parse 'data' of input '{name}' as {datatype}: {number}") from None
    except (ValueError, RecursionError):
        raise fault from None
    try:
        return _walk(name, values, kind_of(datatype))
    except TypeError:
        raise fault from None


def _walk(name: str, values: Any, kind: type) -> list[Any]:
    """Flatten any nesting up to ``MAX_DEPTH``. Raises ``TypeError`` if an element is of another kind."""
    flat: list[Any] = []
    stack = [(iter([values]), 0)]
    while stack:
        iterator, depth = stack[-1]
        for value in iterator:
            if isinstance(value, list):
                if depth >= MAX_DEPTH:
                    raise InvalidRequest(f"input '{name}': {TOO_DEEP}")
                stack.append((iter(value), depth + 1))
                break
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise TypeError(value)
            flat.append(value)
        else:
            stack.pop()
    return flat


@functools.cache
def decoder(kind: type, depth: int) -> msgspec.json.Decoder[Any]:
    """Of arrays that are nested so deep."""
    nested: Any = kind
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def _flatten(values: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        values = list(itertools.chain.from_iterable(values))
    return values


def pack(name: str, datatype: str, values: list[Any], first: int = 0) -> bytes:
    """The elements from number ``first`` on in binary form. Raises ``InvalidRequest`` for one that is out of range."""
    if datatype == "BYTES":
        return pack_elements(values)
    try:
        return struct.pack(f"<{len(values)}{_CODE[datatype]}", *values)
    except (OverflowError, struct.error):
        raise InvalidRequest(_out_of_range(name, datatype, values, first)) from None


def _out_of_range(name: str, datatype: str, values: list[Any], first: int) -> str:
    dtype = NUMPY_DTYPE[datatype]
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    kind = float if dtype.kind == "f" else int  # of Python, which compares with integers of any length
    low, high = kind(limits.min), kind(limits.max)
    for index, value in enumerate(values, first):
        if value != value or abs(value) == math.inf:
            continue
        if not low <= value <= high:
            shown = str(value)[:_SHOWN]
            return f"input '{name}' element {index} is {shown}, out of range for {datatype} ({low} to {high})"
    return f"input '{name}' has an element out of range for {datatype}"


def _strings(tensor: Tensor) -> list[str]:
    try:
        return [element.decode() for element in elements(tensor.data, element_bounds(tensor.data))]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"output '{tensor.name}' holds bytes that are not UTF-8 and cannot be JSON ({error.reason}); "
            'ask for it with "binary_data": true'
        ) from error
