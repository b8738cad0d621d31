"""Database URLs and paths, as settings hold them."""

from __future__ import annotations

import os
import re
from pathlib import Path


def absolute(path: Path) -> Path:
    """``path`` from the root and without ``~``; links stay. Raises ``ValueError``."""
    if "\0" in str(path):
        raise ValueError("a path has no NUL character")
    try:
        return Path(os.path.abspath(path.expanduser()))
    except RuntimeError as error:
        raise ValueError(f"there is no such user: {path.parts[0]}") from error


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite URL; ``None`` for other databases and for one in memory."""
    scheme, _, rest = url.partition("://")
    name = rest.partition("?")[0].removeprefix("/")
    if scheme.partition("+")[0] != "sqlite" or name in ("", ":memory:"):
        return None
    return absolute(Path(name))


def hide_password(url: str) -> str:
    """``url`` without its password, for logs and tables."""
    return re.sub(r"(?<=://)([^:/@]*):[^@/]*@", r"\1:***@", url)
