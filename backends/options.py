"""Reading a model's options (``ModelSpec.options``): texts by name, as in Triton's ``parameters``. Pure: no framework.

Each backend has one ``Table`` of what it takes. A refusal names the option, its value, what is allowed, and the mend.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from backends.errors import LoadFailed

#: A text, without the spaces around it -> a value. Raises ``ValueError`` that says what the option takes.
Reader = Callable[[str], Any]

#: What begins so, Triton keeps for itself: accepted without effect, so that models made for it load.
_OF_TRITON: Final = "TRITON_"
_MEND: Final = "correct it in the configuration's parameters, or leave it out"


class Table(msgspec.Struct, frozen=True):
    """The options of one backend.

    ``aliases``: another name -> option. ``ignored`` are accepted without effect. ``kinds``: option -> the kinds of
    model that have it; one that is not listed there is for all.
    """

    backend: str
    readers: Mapping[str, Reader]
    aliases: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()
    kinds: Mapping[str, tuple[str, ...]] = {}

    def read(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Option -> value, aliases under the option's own name.

        Raises ``LoadFailed`` for an unknown name, a value out of bounds, and one option under two names.
        """
        names: dict[str, str] = {}
        values: dict[str, Any] = {}
        for name, option, text in self._effective(given):
            if option in names:
                raise LoadFailed(f"options {names[option]} and {name} ({text!r}) mean the same: keep one of them")
            names[option] = name
            values[option] = self._value(name, option, text)
        return values

    def check_kind(self, given: Mapping[str, str], kind: str) -> None:
        """Raises ``LoadFailed`` for an option that a model of this kind does not have."""
        for name, option, text in self._effective(given):
            kinds = self.kinds.get(option, (kind,))
            if kind not in kinds:
                raise LoadFailed(
                    f"option {name} is for {' and '.join(kinds)}, this is {kind}: remove {name} = {text!r}"
                )

    def _effective(self, given: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """Name, option and text of all that have an effect."""
        for name, text in given.items():
            if name not in self.ignored and not name.startswith(_OF_TRITON):
                yield name, self.aliases.get(name, name), text

    def _value(self, name: str, option: str, text: str) -> Any:
        reader = self.readers.get(option)
        if reader is None:
            raise LoadFailed(
                f"the {self.backend} backend has no option {name!r} (given as {text!r}); it takes "
                f"{', '.join(self.readers)}: {_MEND}"
            )
        try:
            return reader(text.strip())
        except ValueError as error:
            raise LoadFailed(f"option {name} is {text!r}; it takes {error}: {_MEND}") from error


# --- readers -------------------------------------------------------------------------------------------------------


def number(smallest: int, largest: int, unit: str) -> Reader:
    """A reader of whole numbers; ``unit`` says of what (``threads``)."""

    def read(text: str) -> int:
        # the length first: Python refuses to convert thousands of digits, with words of its own
        if len(text) > len(str(largest)) or not (text.isascii() and text.isdecimal()):
            raise ValueError(f"a number of {unit}, {smallest} to {largest}")
        value = int(text)
        if not smallest <= value <= largest:
            raise ValueError(f"a number of {unit}, {smallest} to {largest}")
        return value

    return read


def one_of(choices: Mapping[str, Any]) -> Reader:
    """A reader of words, small or large -> what they stand for."""

    def read(text: str) -> Any:
        if text.lower() not in choices:
            raise ValueError(", ".join(choices))
        return choices[text.lower()]

    return read


def names(what: str, example: str) -> Reader:
    """A reader of a list with commas; ``what`` its elements are, ``example`` as it is written."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in text.split(","))
        if not all(found):
            raise ValueError(f"{what} with commas between them, for example {example}")
        return found

    return read


def words(what: str) -> Reader:
    """A reader of any text but an empty one."""

    def read(text: str) -> str:
        if not text:
            raise ValueError(what)
        return text

    return read


switch: Final = one_of({"true": True, "false": False, "1": True, "0": False})
#: Of threads; 0 leaves the number to the backend.
thread_count: Final = number(0, 1024, "threads (0: the backend's choice)")


# --- threads -------------------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def threads_of_one(asked: int, cores: int, instances: int) -> int:
    """Threads of one run: as many as were asked for, or for 0 its share of the cores, at least 1."""
    return asked or max(1, cores // max(instances, 1))
