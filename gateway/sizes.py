"""Sizes as people write them."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+) ?([KMG]?i?B)?", re.IGNORECASE)


def parse_size(value: object) -> object:
    """``"64 MiB"`` -> 67108864; what is no such text is left to the field's own check."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) * _UNITS[(match[2] or "").upper()] if match else value
