"""The child processes that a test started: those of session fixtures (servers, databases) are not its own."""

from __future__ import annotations

import psutil

_before: set[int] = set()


def remember() -> None:
    """A test begins: what runs now is not its own."""
    _before.clear()
    _before.update(child.pid for child in psutil.Process().children())


def children() -> list[psutil.Process]:
    """Children that were started since."""
    return [child for child in psutil.Process().children() if child.pid not in _before]
