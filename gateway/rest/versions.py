"""What the administration API's routes have in common."""

from __future__ import annotations

from typing import Final

from gateway.errors import InvalidRequest

MAX_WAIT_S: Final = 3600.0


def version_number(text: str) -> int:
    """The number in a URL. Raises ``InvalidRequest``."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) > 0):
        raise InvalidRequest(f"version {text!r} in the URL is not a version's number: give an integer from 1 on")
    return int(text)
