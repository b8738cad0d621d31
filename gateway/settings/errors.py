"""What is wrong with settings, in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigurationError(Exception):
    """The server cannot start as it is configured; the text names what is wrong and how to mend it."""


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """``" (did you mean 'x'?)"`` if a known word is near, or else nothing; ``prefix`` comes before what is shown."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {prefix + near[0]!r}?)" if near else ""
