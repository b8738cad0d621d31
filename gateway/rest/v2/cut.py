"""Takes the ``data`` arrays out of a large JSON request, in slices, so that what is left of it is small.

Nothing is parsed here. Strings are told from the rest, brackets are counted, and the places are found at which an array
can be parsed in pieces. Whether the text is JSON, and of the protocol's form, is for the parsers to say.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.errors import InvalidRequest
from gateway.inference.slices import SLICE, Slices

_Numbers = npt.NDArray[np.int64]
#: Brackets, braces and commas outside of strings: where they are, which, and the depth after each.
_Marks = tuple[_Numbers, npt.NDArray[np.uint8], _Numbers]

_QUOTE, _COMMA, _OPEN, _CLOSE, _SPACE = b'",[] '
#: The array that is an input's data: in a list, in the request; the depth is counted before its bracket.
_DEPTH: Final = 3
_KEY: Final = re.compile(rb'(?<!\\)"data"\s*:\s*\Z')
#: More arrays than this are no request that a model could take.
_MAX_ARRAYS: Final = 4096
#: Bytes before an array in which its key is looked for.
_KEY_WITHIN: Final = 64
_MARKS: Final = np.isin(np.arange(256), list(b'",[]{}'))
_STEP: Final = np.zeros(256, np.int8)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1
#: Stands for an array in the text that is left. No client can guess it.
_NONCE: Final = secrets.token_hex(8).encode()
_PLACE: Final = re.compile(rb'"%s:(\d+)"' % _NONCE)


class Array(msgspec.Struct):
    """A ``data`` array: ``text[start:stop]``, brackets included. Each of ``breaks`` is a comma outside of strings."""

    start: int
    stop: int = 0
    depth: int = 1
    breaks: list[int] = []

    def pieces(self, text: memoryview) -> Iterator[tuple[int, bytes]]:
        """The array as flat JSON arrays, one after the other, each with its place in ``text``."""
        places = [self.start, *self.breaks, self.stop - 1]
        for begin, end in itertools.pairwise(places):
            inner = bytes(text[begin + 1 : end])
            yield begin, b"[" + (flat(inner) if self.depth > 1 else inner) + b"]"


class Cut(msgspec.Struct):
    """``rest`` is the text with a placeholder for each of ``arrays``."""

    rest: bytes
    arrays: list[Array]

    def array(self, raw: msgspec.Raw) -> Array | None:
        """The array for which this value of ``rest`` stands."""
        match = _PLACE.fullmatch(bytes(raw))
        return self.arrays[int(match[1])] if match else None

    def place(self, offset: int) -> int:
        """Where a byte of ``rest`` is in the whole text."""
        for match in _PLACE.finditer(self.rest, 0, offset):
            array = self.arrays[int(match[1])]
            offset += array.stop - array.start - len(match[0])
        return offset


class _Scanner:
    """Goes over a text from start to end; what it keeps between two windows are its attributes."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = False
        self._escaped = False

    def marks(self, window: bytes) -> _Marks:
        """What the next window holds."""
        if self._escaped or b"\\" in window:
            window = self._without_escapes(window)
        content = np.frombuffer(window, np.uint8)
        places = np.flatnonzero(_MARKS[content])
        kinds = content[places]
        is_quote = kinds == _QUOTE
        strings = (np.cumsum(is_quote) + self._in_string) & 1
        self._in_string = bool(strings[-1]) if len(strings) else self._in_string
        outside = (strings == 0) & ~is_quote
        places, kinds = places[outside], kinds[outside]
        depths = np.cumsum(_STEP[kinds], dtype=np.int64) + self.depth
        self.depth = int(depths[-1]) if len(depths) else self.depth
        return places, kinds, depths

    def _without_escapes(self, window: bytes) -> bytes:
        if self._escaped:
            window = b"_" + window[1:]
        window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._escaped = window.endswith(b"\\")
        return window


def flat(text: bytes) -> bytes:
    """JSON values without the brackets around them; what else stands between two of them stays."""
    places, kinds, _ = _Scanner().marks(text)
    content = np.frombuffer(text, np.uint8).copy()
    content[places[(kinds == _OPEN) | (kinds == _CLOSE)]] = _SPACE
    return content.tobytes()


def cut(text: memoryview) -> Slices[Cut]:
    """The arrays of ``text`` that are an input's data, whatever their size.

    Raises ``InvalidRequest`` for one that has no end, or if there are too many.
    """
    scanner, arrays = _Scanner(), list[Array]()
    current: Array | None = None
    for offset in range(0, len(text), SLICE):
        marks = scanner.marks(bytes(text[offset : offset + SLICE]))
        current = _find(text, offset, marks, arrays, current)
        if len(arrays) > _MAX_ARRAYS:
            raise InvalidRequest(f"a large request may have {_MAX_ARRAYS} inputs with 'data', this one has more")
        yield
    if current is not None:
        raise InvalidRequest("failed to parse the request JSON buffer: Input data was truncated")
    rest: list[bytes | memoryview] = []
    end = 0
    for index, array in enumerate(arrays):
        rest += (text[end : array.start], b'"%s:%d"' % (_NONCE, index))
        end = array.stop
    return Cut(b"".join((*rest, text[end:])), arrays)


def _find(text: memoryview, offset: int, marks: _Marks, arrays: list[Array], current: Array | None) -> Array | None:
    """Note the arrays that begin or end in a window at ``offset``; the one that is still open after it."""
    places, kinds, depths = marks
    ends = np.flatnonzero((depths == _DEPTH) & (_STEP[kinds] < 0))
    commas = places[kinds == _COMMA]
    if current is not None:
        if len(commas) and (not len(ends) or commas[0] < places[ends[0]]):
            current.breaks.append(offset + int(commas[0]))
        current = _close(current, offset, marks, 0, ends[:1])
    starts = np.flatnonzero((depths == _DEPTH + 1) & (kinds == _OPEN))
    for start, following in zip(starts.tolist(), np.searchsorted(ends, starts).tolist(), strict=True):
        place = offset + int(places[start])
        if _KEY.search(bytes(text[max(0, place - _KEY_WITHIN) : place])):
            arrays.append(Array(place))
            current = _close(arrays[-1], offset, marks, start, ends[following : following + 1])
    return current


def _close(array: Array, offset: int, marks: _Marks, start: int, end: _Numbers) -> Array | None:
    """What one window tells of an open array, from a mark on; the array, unless it ends there."""
    places, kinds, depths = marks
    stop = int(end[0]) + 1 if len(end) else len(places)
    opened = depths[start:stop][kinds[start:stop] == _OPEN]
    if len(opened):
        array.depth = max(array.depth, int(opened.max()) - _DEPTH)
    if not len(end):
        return array
    array.stop = offset + int(places[stop - 1]) + 1
    return None
