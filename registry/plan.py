"""What a registration changes: decided from what is there and what is wanted, without a database."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest
from typing import Any, Final

import msgspec

from backends.spec import Signature
from registry.errors import VersionConflict
from registry.keys import NewKey
from registry.record import ModelVersion, NewVersion, Source
from registry.traffic import Traffic

#: A version's name.
Key = tuple[str, int]

#: What an error shows of two versions: so many differences, each value in so many characters.
_MAX_DIFFERENCES: Final = 10
_MAX_SHOWN: Final = 80
#: A field that one of two configs does not have; no value of JSON is equal to it.
_UNSET: Final = object()


class Relation(enum.Enum):
    """How a wanted version stands to the one that exists under its number."""

    ABSENT = enum.auto()
    SAME = enum.auto()
    MOVED = enum.auto()  # the same content, found in another place or given from another source
    OTHER = enum.auto()


class NewAlias(msgspec.Struct, frozen=True):
    """An alias's version before and after; None is none."""

    model: str
    name: str
    before: int | None
    after: int | None


class NewTraffic(msgspec.Struct, frozen=True):
    """The next revision of a model's split, and the split before it."""

    model: str
    revision: int
    traffic: Traffic | None
    before: Traffic | None
    note: str = ""


class Change(msgspec.Struct, frozen=True):
    """One transaction's work: supersede ``retire``, then write ``add``, then set all the others."""

    retire: tuple[Key, ...] = ()
    add: tuple[NewVersion, ...] = ()  # each with its number
    desire: tuple[tuple[Key, bool], ...] = ()
    sign: tuple[tuple[Key, Signature], ...] = ()
    alias: tuple[NewAlias, ...] = ()
    route: tuple[NewTraffic, ...] = ()
    grant: tuple[NewKey, ...] = ()
    revoke: tuple[str, ...] = ()  # ids of keys

    def __bool__(self) -> bool:
        return any(getattr(self, field) for field in self.__struct_fields__)


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


def differences(live: ModelVersion, new: NewVersion) -> str:
    """What makes ``new`` other content than ``live``, for a person: artifact, framework, and each field of the config.

    ``"config.max_batch_size is unset there and 4 here"``, joined by commas; at most ten are named, the rest is counted.
    """
    found = _differences(live, new)
    named = list(islice(found, _MAX_DIFFERENCES))
    more = sum(1 for _ in found)
    return ", ".join(named) + (f", and {more} more" if more else "")


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
    return join(changes)


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


def join(changes: Iterable[Change]) -> Change:
    """All of them as one."""
    parts = list(changes)
    fields = Change.__struct_fields__
    return Change(**{field: tuple(entry for part in parts for entry in getattr(part, field)) for field in fields})


def _conflict(live: ModelVersion, new: NewVersion, next_number: int) -> str:
    return (
        f"version {live.number} of model {live.model!r} exists and differs: {differences(live, new)}. Versions never "
        f"change: register exactly what is there, or give this one the next free number, {next_number}, or none to "
        "take it"
    )


def _differences(live: ModelVersion, new: NewVersion) -> Iterator[str]:
    if live.digest != new.digest:
        yield f"the artifact is {live.artifact} ({live.digest}) there and {new.artifact} ({new.digest}) here"
    if live.framework != new.framework:
        yield f"framework is {live.framework} there and {new.framework} here"
    yield from _unequal(live.config, plain(new.config), "config")


def _unequal(there: Any, here: Any, path: str) -> Iterator[str]:
    """The innermost places in which two values of JSON differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted(there.keys() | here.keys()):
            yield from _unequal(there.get(key, _UNSET), here.get(key, _UNSET), f"{path}.{key}")
    elif isinstance(there, list) and isinstance(here, list):
        for index, (one, other) in enumerate(zip_longest(there, here, fillvalue=_UNSET)):
            yield from _unequal(one, other, f"{path}[{index}]")
    elif there != here:
        yield f"{path} is {_shown(there)} there and {_shown(here)} here"


def _shown(value: object) -> str:
    if value is _UNSET:
        return "unset"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
