"""The codec of the channel: frames of a msgpack header and raw tensor bytes. The socket pair carries them.

    frame := u32 header length | u64 payload length | header (msgpack) | payload (inline buffers, in order)

Buffers from ``threshold`` bytes on travel in an arena where there is one; the header then holds their offset. Nothing
is pickled. Whatever does not decode raises ``WireError``, and ends the worker that sent it, never the gateway.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from backends.arena import Allocator, Mapping
from backends.messages import TensorHead
from backends.spec import ITEM_SIZE
from backends.tensor import Buffer, Tensor, is_addressable

PREFIX: Final = struct.Struct("<IQ")
MAX_HEADER: Final = 16 << 20
MAX_PAYLOAD: Final = 8 << 30
#: From this size on a buffer goes through shared memory: `python -m benchmarks.channel` shows where the two ways meet.
THRESHOLD: Final = 8 << 10

_encoder: Final = msgspec.msgpack.Encoder()
M = TypeVar("M")


class WireError(Exception):
    """The bytes received are no frame, or no message that this side takes."""


def encode(message: msgspec.Struct, buffers: Iterable[Buffer] = ()) -> list[Buffer]:
    """One frame as a list of buffers to be written in order (gathered, not joined).

    Raises ``WireError`` for a message that no reader would take: what a client puts into its request (huge or odd
    parameters) must cost that request, and not the worker that would have to read it.
    """
    try:
        header = _encoder.encode(message)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"cannot be encoded: {error}") from error
    parts: list[Buffer] = [b"", header]
    size = 0
    for buffer in buffers:
        size += len(buffer)
        parts.append(buffer)
    _check_sizes(len(header), size, MAX_PAYLOAD)
    parts[0] = PREFIX.pack(len(header), size)
    return parts


def _check_sizes(header_size: int, payload_size: int, max_payload: int) -> None:
    if not 0 < header_size <= MAX_HEADER:
        raise WireError(f"header of {header_size} bytes; 1 to {MAX_HEADER} are allowed")
    if payload_size > max_payload:
        raise WireError(f"payload of {payload_size} bytes; at most {max_payload} are allowed")


class FrameReader(Generic[M]):
    """Turns a byte stream, cut anywhere, into messages with their payload.

    A chunk that holds whole frames is sliced, not copied; only a frame that spans chunks is gathered.
    """

    def __init__(self, message_type: Any, *, max_payload: int = MAX_PAYLOAD) -> None:
        self._decode = msgspec.msgpack.Decoder(message_type).decode
        self._max_payload = max_payload
        self._parts: list[Buffer] = []
        self._have = 0
        self._need = PREFIX.size

    def feed(self, chunk: bytes) -> list[tuple[M, memoryview]]:
        """Messages completed by ``chunk``. Raises ``WireError``; the reader is of no use after that."""
        self._parts.append(chunk)
        self._have += len(chunk)
        messages: list[tuple[M, memoryview]] = []
        if self._have < self._need:
            return messages
        data = memoryview(chunk if len(self._parts) == 1 else b"".join(self._parts))
        offset, total = 0, len(data)
        while total - offset >= PREFIX.size:
            header_size, payload_size = PREFIX.unpack_from(data, offset)
            _check_sizes(header_size, payload_size, self._max_payload)
            start = offset + PREFIX.size
            end = start + header_size + payload_size
            if end > total:
                self._need = end - offset
                break
            messages.append((self._message(data[start : start + header_size]), data[start + header_size : end]))
            offset = end
        else:
            self._need = PREFIX.size
        self._parts = [data[offset:]] if offset < total else []
        self._have = total - offset
        return messages

    def _message(self, header: memoryview) -> M:
        try:
            message: M = self._decode(header)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise WireError(f"not a message: {error}") from error
        return message


class TensorWriter:
    """Places a message's tensors: in the arena from ``threshold`` on, inline otherwise (or when the arena is full)."""

    def __init__(self, arena: Mapping | None, threshold: int = THRESHOLD) -> None:
        self._arena = arena
        self._threshold = threshold
        self.allocator = Allocator(arena.capacity if arena else 0)

    def place(self, tensors: Iterable[Tensor], inline: list[Buffer]) -> list[TensorHead]:
        """Heads of ``tensors``; buffers that travel in the frame are appended to ``inline``."""
        heads = []
        for tensor in tensors:
            data = tensor.data
            size = len(data)
            offset = -1
            if size >= self._threshold and self._arena is not None:
                offset = self.allocator.allocate(size)
                if offset >= 0:
                    self._arena.view[offset : offset + size] = data
            if offset < 0:
                inline.append(data)
            heads.append(TensorHead(tensor.name, tensor.datatype, tensor.shape, size, offset))
        return heads

    def release(self, heads: Iterable[TensorHead]) -> None:
        """The other side has consumed these."""
        for head in heads:
            if head.offset >= 0:
                self.allocator.release(head.offset)

    def trim(self) -> None:
        """Give the memory of free blocks back to the system."""
        for offset, size in self.allocator.free_ranges():
            if self._arena is not None:
                self._arena.discard(offset, size)


class TensorReader:
    """Turns heads into tensors over the payload or the arena, without a copy."""

    def __init__(self, arena: Mapping | None) -> None:
        self._arena = arena

    def read(self, heads: list[TensorHead], payload: memoryview, start: int = 0) -> tuple[list[Tensor], int]:
        """Tensors of ``heads`` and the place in ``payload`` after them. Raises ``WireError``."""
        tensors = []
        for head in heads:
            size = head.size
            if head.offset < 0:
                data = payload[start : start + size]
                start += size
            else:
                data = self._block(head)
            if len(data) != size or size < 0:
                raise WireError(f"tensor {head.name!r} is cut short: {len(data)} of {size} bytes")
            _check_head(head)
            tensors.append(Tensor(head.name, head.datatype, head.shape, data))
        return tensors, start

    def _block(self, head: TensorHead) -> memoryview:
        if self._arena is None:
            raise WireError(f"tensor {head.name!r} points into an arena, this channel has none")
        try:
            return self._arena.block(head.offset, head.size)
        except ValueError as error:
            raise WireError(f"tensor {head.name!r}: {error}") from error


def _check_head(head: TensorHead) -> None:
    """Datatype, shape and size have to agree: what is made of the tensor later relies on it."""
    item = ITEM_SIZE.get(head.datatype)
    if item is None:
        raise WireError(f"tensor {head.name!r} is of {head.datatype!r}, which is no datatype")
    shape = head.shape
    count = math.prod(shape)
    if (shape and min(shape) < 0) or (item and count * item != head.size):
        raise WireError(f"tensor {head.name!r} of {head.datatype} and shape {list(shape)} comes with {head.size} bytes")
    if (not count or not item) and not is_addressable(shape):  # otherwise there is a byte for each element
        raise WireError(f"tensor {head.name!r} of shape {list(shape)} is larger than any memory")
