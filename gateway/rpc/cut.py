"""Takes all tensors' bytes out of a large serialised ``ModelInferRequest``, in slices, so that what is left is small.

protobuf parses a message in one go, and a million values take it long. Its wire format lets a message be divided at any
field, and a packed field at any value: the parts are parsed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.errors import InvalidRequest
from gateway.inference.slices import SLICE, Slices
from gateway.proto.inference_pb2 import InferTensorContents, ModelInferRequest
from gateway.rpc.split import varint

#: Bytes beside the tensors' contents: they are parsed in one go.
MAX_HEADS: Final = 1 << 20
#: Fields of the message, and of its inputs.
_MAX_FIELDS: Final = 1 << 16
#: Fields in a slice.
_SLICE_FIELDS: Final = 1024

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_INPUTS: Final = ModelInferRequest.INPUTS_FIELD_NUMBER << 3 | _DELIMITED
_RAW: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _DELIMITED
_CONTENTS: Final = ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER << 3 | _DELIMITED
#: Tag of a packed field -> bytes of one of its values; 0 where they have several lengths.
_PACKED: Final = {
    field.number << 3 | _DELIMITED: {"fp32_contents": 4, "fp64_contents": 8}.get(field.name, 0)
    for field in InferTensorContents.DESCRIPTOR.fields
    if field.name != "bytes_contents"
}


class Cut(msgspec.Struct):
    """``rest`` is the message without any contents; ``typed_contents`` are those of each input, in parts."""

    rest: bytes
    raw_contents: list[memoryview]
    typed_contents: list[list[memoryview]]


def malformed(error: object = "Error parsing message") -> InvalidRequest:
    """The error for bytes that are not the message."""
    return InvalidRequest(f"the bytes are no ModelInferRequest: {error}")


def cut(raw: bytes) -> Slices[Cut]:
    """Raises ``InvalidRequest`` for bytes that are no message, or if too much is left."""
    view = memoryview(raw)
    found = Cut(b"", [], [])
    rest: list[bytes | memoryview] = []
    size = 0
    for count, (tag, offset, start, end) in enumerate(fields(raw, 0, len(raw)), 1):
        if tag == _RAW:
            found.raw_contents.append(view[start:end])
        elif tag == _INPUTS:
            head, contents = yield from _input(raw, start, end)
            found.typed_contents.append(contents)
            rest += (delimited(_INPUTS, len(head)), head)
            size += len(head)
        else:
            rest.append(view[offset:end])
            size += end - offset
        if size > MAX_HEADS or count > _MAX_FIELDS:
            raise InvalidRequest(
                f"the message has more than {MAX_HEADS} bytes beside the inputs' contents, or more than {_MAX_FIELDS} "
                "fields: send what is large as a tensor"
            )
        if count % _SLICE_FIELDS == 0:
            yield
    found.rest = b"".join(rest)
    return found


def _input(raw: bytes, start: int, end: int) -> Slices[tuple[bytes, list[memoryview]]]:
    """The input between two places without its contents, and these. An empty field says that there are some."""
    view = memoryview(raw)
    head: list[bytes | memoryview] = []
    contents: list[memoryview] = []
    size = 0
    for count, (tag, offset, begin, stop) in enumerate(fields(raw, start, end), 1):
        if tag == _CONTENTS:
            contents.append(view[begin:stop])
        else:
            head.append(view[offset:stop])
            size += stop - offset
        if size > MAX_HEADS or count > _MAX_FIELDS:
            raise InvalidRequest(
                f"an input has more than {MAX_HEADS} bytes beside its contents, or more than {_MAX_FIELDS} fields"
            )
        if count % _SLICE_FIELDS == 0:
            yield
    if contents:
        head.append(delimited(_CONTENTS, 0))
    return b"".join(head), contents


def fields(raw: bytes | memoryview, offset: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Tag, place, place of the value, and end of each field. Raises ``InvalidRequest`` for what is none."""
    while offset < stop:
        tag, start = varint(raw, offset, stop) if raw[offset] > 0x7F else (raw[offset], offset + 1)
        wire = tag & 7
        if wire == _DELIMITED and start < stop and raw[start] <= 0x7F:  # most of a million short strings
            end = start + 1 + raw[start]
            start += 1
        elif wire == _DELIMITED:
            length, start = varint(raw, start, stop)
            end = start + length if length >= 0 else -1
        elif wire == _VARINT:
            end = start + 1
            while end < stop and raw[end - 1] > 0x7F:
                end += 1
        elif wire in (_FIXED32, _FIXED64):
            end = start + (4 if wire == _FIXED32 else 8)
        else:
            end = -1  # a group: no client of the protocol sends one
        if tag < 0 or not start <= end <= stop:
            raise malformed()
        yield tag, offset, start, end
        offset = end


def parts_of(contents: memoryview) -> Iterator[bytes]:
    """A serialised ``InferTensorContents`` as smaller ones. Raises ``InvalidRequest`` for what is none."""
    begin = 0
    for count, (tag, offset, start, end) in enumerate(fields(contents, 0, len(contents)), 1):
        if tag in _PACKED and end - start > SLICE:
            if offset > begin:
                yield bytes(contents[begin:offset])
            yield from _packed_parts(contents[start:end], tag)
            begin = end
        elif end - begin > SLICE or count % _SLICE_FIELDS == 0:
            yield bytes(contents[begin:end])
            begin = end
    if begin < len(contents):
        yield bytes(contents[begin:])


def _packed_parts(values: memoryview, tag: int) -> Iterator[bytes]:
    item, place, total = _PACKED[tag], 0, len(values)
    while place < total:
        end = min(place + SLICE // (item or 1) * (item or 1), total)
        while not item and end < total and values[end - 1] > 0x7F:
            end += 1
        yield delimited(tag, end - place) + bytes(values[place:end])
        place = end


def delimited(tag: int, length: int) -> bytes:
    """What stands before a value; tags here are of one byte."""
    head = bytearray((tag,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)
