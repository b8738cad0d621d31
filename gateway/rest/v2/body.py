"""Bodies: a request's, bounded and decompressed where the client says so; an answer's, compressed where it asks."""

from __future__ import annotations

import zlib
from typing import Final

from gateway.errors import PayloadTooLarge, UnsupportedMedia
from gateway.inference.slices import SLICE, Slices

_WINDOW: Final = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}
#: What ``Accept-Encoding`` may ask for, by itself. A list of codings is what libraries send unasked: then it is plain.
CODINGS: Final = frozenset(_WINDOW)


class Body:
    """Collects the chunks of a body of at most ``limit`` bytes."""

    __slots__ = ("_chunks", "_limit", "size")

    def __init__(self, limit: int) -> None:
        self._chunks: list[bytes] = []
        self._limit = limit
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """One more chunk. Raises ``PayloadTooLarge``."""
        self.size += len(chunk)
        if self.size > self._limit:
            self._chunks.clear()
            raise too_large(self._limit)
        self._chunks.append(chunk)

    def whole(self) -> bytes:
        """All of it; not copied if it came in one chunk."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


def decompress(body: bytes, encoding: bytes, limit: int) -> Slices[bytes]:
    """The body behind ``Content-Encoding``, never more than ``limit`` bytes in memory, in slices.

    Raises ``UnsupportedMedia`` for other codings and for data that is not what it says, ``PayloadTooLarge``.
    """
    name = encoding.decode("latin-1")
    window = _WINDOW.get(encoding.strip().lower())
    if window is None:
        raise UnsupportedMedia(f"Content-Encoding {name!r} is not supported; send gzip, deflate or no encoding")
    try:
        return (yield from _inflate(body, window, limit))
    except zlib.error as error:
        raise UnsupportedMedia(f"the body is not valid {name}: {error}") from error


def compress(body: bytes, coding: bytes) -> Slices[bytes]:
    """The body in a coding of ``CODINGS``, in slices. Fast rather than small: tensors hardly shrink."""
    deflater = zlib.compressobj(level=1, wbits=_WINDOW[coding])
    parts, view = [], memoryview(body)
    for place in range(0, len(view), SLICE):
        parts.append(deflater.compress(view[place : place + SLICE]))
        yield
    parts.append(deflater.flush())
    return b"".join(parts)


def _inflate(body: bytes, window: int, limit: int) -> Slices[bytes]:
    inflater = zlib.decompressobj(window)
    parts, size, place = [], 0, 0
    view, rest, more = memoryview(body), b"", True
    while more:
        if not rest:
            rest = bytes(view[place : place + SLICE])
            place += SLICE
        part = inflater.decompress(rest, SLICE)
        size += len(part)
        if size > limit:
            raise too_large(limit, "decompressed ")
        parts.append(part)
        rest = inflater.unconsumed_tail
        more = not inflater.eof and (bool(rest) or place < len(view) or len(part) == SLICE)
        if more:
            yield
    if not inflater.eof:
        raise zlib.error("it is cut short")
    if inflater.unused_data or place < len(view):
        raise zlib.error("data follows the end of the compressed stream")
    return b"".join(parts)


def too_large(limit: int, kind: str = "") -> PayloadTooLarge:
    """The error for a body over ``limit`` bytes."""
    return PayloadTooLarge(
        f"the {kind}request body is larger than the limit of {limit} bytes; send less, or raise the limit "
        "(settings max_json_bytes for JSON and compressed bodies, max_body_bytes for all)"
    )
