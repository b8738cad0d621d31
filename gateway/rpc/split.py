"""Takes the tensors' bytes out of a serialised ``ModelInferRequest`` without a copy.

protobuf copies a ``bytes`` field twice: into its arena, and into a Python object. For a tensor of megabytes that is
most of the time that a request spends in the gateway. A field is easy to find in the wire format, and whatever is not
as expected is left to protobuf, which then decides.
"""

from __future__ import annotations

from typing import Final

from gateway.inference.slices import LARGE
from gateway.proto.inference_pb2 import ModelInferRequest

#: From this message size on (bytes) cutting is faster than letting protobuf copy (measured; at 8 MiB, 80 times).
THRESHOLD: Final = 32 << 10

#: More fields than this at the top level are not worth a loop in Python.
_MAX_FIELDS: Final = 1024
_LENGTH_DELIMITED: Final = 2
_RAW_TAG: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_OTHER_TAGS: Final = frozenset(
    field.number << 3 | _LENGTH_DELIMITED
    for field in ModelInferRequest.DESCRIPTOR.fields
    if field.number != ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
)


def split(raw: bytes) -> tuple[bytes, list[memoryview]] | None:
    """The message without ``raw_input_contents``, and these as views of ``raw``.

    ``None`` if the bytes hold anything but the message's own fields, or too much beside the raw contents: then
    protobuf has to parse them whole.
    """
    view = memoryview(raw)
    heads: list[memoryview] = []
    contents: list[memoryview] = []
    offset, total, fields, others = 0, len(raw), 0, 0
    while offset < total:
        tag = raw[offset]
        length, start = varint(raw, offset + 1, total)
        end = start + length
        fields += 1
        if length < 0 or end > total or fields > _MAX_FIELDS:
            return None
        if tag == _RAW_TAG:
            contents.append(view[start:end])
        elif tag in _OTHER_TAGS:
            heads.append(view[offset:end])
            others += length
        else:
            return None
        offset = end
    return None if others > LARGE else (b"".join(heads), contents)


def varint(raw: bytes | memoryview, offset: int, total: int) -> tuple[int, int]:
    """The number at ``offset`` and the place after it; -1 if it is cut short or longer than 32 bits."""
    value = shift = 0
    while offset < total and shift < 35:
        byte = raw[offset]
        value |= (byte & 0x7F) << shift
        offset += 1
        if byte < 0x80:
            return value, offset
        shift += 7
    return -1, offset
