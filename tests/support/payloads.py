"""Payloads that make a file, for artifacts that must not run any."""

from __future__ import annotations

import pickle  # noqa: TID251 - what is refused has to be made first
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._path,)


def pickled(planted: Path) -> bytes:
    """A pickle that makes the file ``planted``: it has been tried, for an attack that harms nobody proves nothing."""
    content = pickle.dumps(Payload(planted))
    pickle.loads(content)  # noqa: S301 - the payload works
    planted.unlink()
    return content


def touching(planted: Path) -> str:
    """Python code that makes the file ``planted``."""
    return f"__import__('pathlib').Path({str(planted)!r}).touch()"
