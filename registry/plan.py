"""What a registration changes: decided from what is there and what is wanted, without a database."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from backends.spec import Signature
from registry.errors import VersionConflict
from registry.record import ModelVersion, NewVersion, Source

#: A version's name.
Key = tuple[str, int]


class Relation(enum.Enum):
    """How a wanted version stands to the one that exists under its number."""

    ABSENT = enum.auto()
    SAME = enum.auto()
    MOVED = enum.auto()  # the same content, found in another place or given from another source
    OTHER = enum.auto()


class Change(msgspec.Struct, frozen=True):
    """One transaction's work: supersede ``retire``, then write ``add``, then set ``desire`` and ``sign``."""

    retire: tuple[Key, ...] = ()
    add: tuple[NewVersion, ...] = ()  # each with its number
    desire: tuple[tuple[Key, bool], ...] = ()
    sign: tuple[tuple[Key, Signature], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.retire or self.add or self.desire or self.sign)


def relation(live: ModelVersion | None, new: NewVersion) -> Relation:
    """Content is what a worker would run: files, framework and config."""
    if live is None:
        return Relation.ABSENT
    if (live.digest, live.framework, live.config) != (new.digest, new.framework, plain(new.config)):
        return Relation.OTHER
    if live.source is Source.REGISTERED and new.source is Source.REPOSITORY:
        return Relation.SAME  # what was registered outlives every repository
    same_place = (live.artifact, live.path, live.source) == (new.artifact, new.path, new.source)
    return Relation.SAME if same_place else Relation.MOVED


def plan_add(live: ModelVersion | None, new: NewVersion, next_number: int) -> Change:
    """Register ``new``; ``live`` is the version under its number. Raises ``VersionConflict``."""
    if live is None:
        return Change(add=(msgspec.structs.replace(new, number=new.number or next_number),))
    wish = live.desired or new.desired
    match relation(live, new):
        case Relation.SAME:
            return _keep(live, new, desired=wish)
        case Relation.MOVED:
            return _move(live, msgspec.structs.replace(new, desired=wish))
        case _:
            raise VersionConflict(_conflict(live, new, next_number))


def plan_sync(live: Iterable[ModelVersion], wanted: Iterable[NewVersion], next_numbers: Mapping[str, int]) -> Change:
    """Make the repository's versions exactly ``wanted``; a registered version with the same content stays as it is.

    Raises ``VersionConflict`` that names every clash with a registered version, or a number that is wanted twice.
    """
    by_key = {(version.model, version.number): version for version in live}
    pending = _by_key(wanted)
    gone = [key for key, old in by_key.items() if old.source is Source.REPOSITORY and key not in pending]
    changes, clashes = [Change(retire=tuple(gone))], []
    for key, new in pending.items():
        old = by_key.get(key)
        if old is None or old.source is Source.REPOSITORY:
            changes.append(_renew(old, new))
        elif relation(old, new) is Relation.OTHER:
            clashes.append(_conflict(old, new, next_numbers[new.model]))
    if clashes:
        raise VersionConflict("\n".join(clashes))
    return _join(changes)


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` as the database gives it back (tuples become lists). ``ValueError`` where JSON has no such value."""
    copy: dict[str, Any] = json.loads(json.dumps(config, allow_nan=False))
    return copy


def _renew(old: ModelVersion | None, new: NewVersion) -> Change:
    if old is None:
        return Change(add=(new,))
    match relation(old, new):
        case Relation.SAME:
            return _keep(old, new, desired=new.desired)
        case Relation.MOVED:
            return _move(old, new)
        case _:
            return Change(retire=((old.model, old.number),), add=(new,))


def _keep(live: ModelVersion, new: NewVersion, desired: bool) -> Change:
    key = (live.model, live.number)
    return Change(
        desire=((key, desired),) if live.desired != desired else (),
        sign=((key, new.signature),) if live.signature is None and new.signature is not None else (),
    )


def _move(live: ModelVersion, new: NewVersion) -> Change:
    """Rows never change their place: a new row takes the number, and keeps what was learnt of the content."""
    moved = msgspec.structs.replace(new, number=live.number, signature=live.signature or new.signature)
    return Change(retire=((live.model, live.number),), add=(moved,))


def _by_key(wanted: Iterable[NewVersion]) -> dict[Key, NewVersion]:
    found: dict[Key, NewVersion] = {}
    for new in wanted:
        if new.number is None:
            raise ValueError(f"a repository's version has a number; model {new.model!r} has one without")
        first = found.setdefault((new.model, new.number), new)
        if first is not new:
            raise VersionConflict(
                f"model {new.model!r} has version {new.number} twice, in {first.path} and in {new.path}: rename one"
            )
    return found


def _join(changes: Iterable[Change]) -> Change:
    parts = list(changes)
    return Change(
        retire=tuple(key for part in parts for key in part.retire),
        add=tuple(new for part in parts for new in part.add),
        desire=tuple(pair for part in parts for pair in part.desire),
        sign=tuple(pair for part in parts for pair in part.sign),
    )


def _conflict(live: ModelVersion, new: NewVersion, next_number: int) -> str:
    what = next(
        name
        for name, differs in (
            ("content", live.digest != new.digest),
            ("framework", live.framework != new.framework),
            ("config", True),
        )
        if differs
    )
    return (
        f"version {live.number} of model {live.model!r} exists with another {what}: it has {live.digest} "
        f"({live.framework}), and {new.path} has {new.digest} ({new.framework}). Versions never change: give this one "
        f"the next free number, {next_number}, or none to take it"
    )
