"""What a ``.onnx`` file says about itself, read straight from its protobuf bytes.

The worker has onnxruntime and no ``onnx`` package, and onnxruntime tells neither where a tensor's external data lies
nor whether an input of shape ``[]`` is a scalar or of unknown rank. So this reads the handful of fields needed. Large
contents are skipped, not copied; a file of two gigabytes costs as much as its number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS: Final = 70

#: Message -> its fields that hold messages of interest (numbers from onnx.proto).
_INSIDE: Final[dict[str, dict[int, str]]] = {
    "model": {7: "main", 20: "training", 25: "function"},
    "main": {1: "node", 5: "tensor", 11: "value", 12: "value", 15: "sparse"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "node": {4: "operator", 5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}


class External(msgspec.Struct, frozen=True):
    """A tensor whose data lies in another file, at ``location`` relative to the model's folder."""

    tensor: str
    location: str


class Facts(msgspec.Struct):
    """``operators``: every operator used; ``unranked``: inputs and outputs whose shape the file leaves open."""

    external: list[External]
    operators: set[str]
    unranked: set[str]


def read(data: memoryview) -> Facts:
    """The facts of a serialised ``ModelProto``. Raises ``ValueError`` if the bytes are none, or are cut short."""
    facts = Facts([], set(), set())
    waiting = [("model", data)]
    while waiting:
        kind, message = waiting.pop()
        match kind:
            case "tensor":
                facts.external.extend(_external(message))
            case "value":
                facts.unranked.update(_unranked(message))
            case "operator":
                facts.operators.add(_text(message))
            case _:
                inside = _INSIDE[kind]
                waiting.extend((inside[number], content) for number, content in _fields(message) if number in inside)
    return facts


def _external(tensor: memoryview) -> Iterator[External]:
    """TensorProto: name is field 8, external_data field 13 with key 1 and value 2."""
    name, locations = "", []
    for number, content in _fields(tensor):
        if number == 8:
            name = _text(content)
        elif number == 13:
            entry = dict(_fields(content))
            if _text(entry.get(1, memoryview(b""))) == "location":
                locations.append(_text(entry.get(2, memoryview(b""))))
    return (External(name, location) for location in locations)


def _unranked(value: memoryview) -> Iterator[str]:
    """ValueInfoProto: name is field 1, type 2; TypeProto: tensor_type is field 1; its shape is field 2."""
    fields = dict(_fields(value))
    tensor_type = dict(_fields(fields[2])).get(1) if 2 in fields else None
    if tensor_type is None or 2 not in dict(_fields(tensor_type)):
        yield _text(fields.get(1, memoryview(b"")))


def _text(data: memoryview) -> str:
    # file names need not be UTF-8
    return str(data, "utf-8", "surrogateescape")


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of every length-delimited field; the others are skipped."""
    offset, end = 0, len(message)
    while offset < end:
        key, offset = _varint(message, offset)
        wire = key & 7
        if wire == _LENGTH:
            size, offset = _varint(message, offset)
            if size > end - offset:
                raise ValueError(f"a field of {size} bytes at offset {offset}, {end - offset} are left")
            yield key >> 3, message[offset : offset + size]
            offset += size
        elif wire == _VARINT:
            _, offset = _varint(message, offset)
        elif wire == _FIXED64:
            offset += 8
        elif wire == _FIXED32:
            offset += 4
        else:
            raise ValueError(f"wire type {wire} at offset {offset}")
    if offset > end:
        raise ValueError("the last field is cut short")


def _varint(data: memoryview, offset: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _MAX_VARINT_BITS:
        if offset >= len(data):
            raise ValueError("a number is cut short")
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
    raise ValueError(f"a number of more than ten bytes at offset {offset}")
