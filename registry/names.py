"""Which model names and version numbers the registry takes."""

from __future__ import annotations

import unicodedata
from typing import Final

from registry.errors import InvalidName

MAX_NAME_LENGTH: Final = 128
#: One below the largest 64-bit integer: the next free number has to fit as well.
MAX_NUMBER: Final = 2**63 - 2

#: Control characters, lone surrogates (no UTF-8 can carry them), line and paragraph separators.
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


def check_name(name: str) -> None:
    """Raises ``InvalidName`` with the rule that ``name`` breaks."""
    problem = name_problem(name)
    if problem is not None:
        raise InvalidName(f"model name {_shown(name)} {problem}")


def check_number(model: str, number: int) -> None:
    """Raises ``InvalidName`` if ``number`` can be no version's number."""
    if not is_number(number):
        raise InvalidName(f"version {number} of model {model!r}: numbers go from 1 to {MAX_NUMBER}")


def is_number(number: int) -> bool:
    """Whether a version may have this number."""
    return 1 <= number <= MAX_NUMBER


def name_problem(name: str) -> str | None:
    """The rule that ``name`` breaks, with the mend; None where it is acceptable."""
    if not name:
        return f"is empty: give 1 to {MAX_NAME_LENGTH} characters"
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters: at most {MAX_NAME_LENGTH} are allowed, shorten it"
    if name in {".", ".."}:
        return "means a folder in every path: give it letters or digits"
    for character in "/\\":
        if character in name:
            return f"contains {character!r}, which separates the parts of a path: replace it, by '-' for instance"
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in name):
        return "contains a control character or an invalid one: remove it"
    if name != name.strip():
        return "begins or ends with white space: remove it"
    return None


def _shown(name: str) -> str:
    return repr(name if len(name) <= MAX_NAME_LENGTH else name[:32] + "...")
