"""How a model's requests are shared among its versions: what is kept, and what is acceptable. Pure."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

import msgspec

from registry.cohorts import Cohort, allot
from registry.errors import InvalidTraffic

#: Versions, rules or shadows of one model.
MAX_ENTRIES: Final = 100
#: Weights beyond this lose digits when they are added.
MAX_WEIGHT: Final = 1e12

_STICKY: Final = re.compile(r"key|(header|parameter):\S{1,128}")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_ALIAS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
#: Aliases that would be mistaken for something else.
_RESERVED: Final = re.compile(r"latest|v\d+", re.IGNORECASE)


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version and its weight: its share is the weight over the sum of all."""

    version: int
    weight: float


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests whose ``header`` (any case) has exactly this value go to the version, whatever the weights are."""

    header: str
    value: str
    version: int


class Shadow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version that gets copies of ``percent`` of the requests; nobody waits for its answers."""

    version: int
    percent: float


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split. The rules are tried first, in their order; then the weights.

    ``sticky`` names what keeps a client with its version: ``header:NAME``, ``parameter:NAME``, ``key`` (the API key),
    or "" for nothing. The registry sets ``salt``, which makes the clients' places in two models independent, and
    ``cohorts``, which say whose places are whose.
    """

    arms: tuple[Arm, ...]
    sticky: str = ""
    rules: tuple[Rule, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    salt: str = ""
    cohorts: tuple[Cohort, ...] = ()

    def versions(self) -> frozenset[int]:
        """Every version that this split needs: an arm without weight gets no request."""
        arms = (arm.version for arm in self.arms if arm.weight > 0)
        return frozenset((*arms, *(rule.version for rule in self.rules), *(shadow.version for shadow in self.shadows)))


class TrafficRevision(msgspec.Struct, frozen=True):
    """One entry of a model's history, which only grows; the newest is in force.

    ``traffic`` None shares nothing: requests go to the greatest version that is ready.
    """

    model: str
    revision: int
    traffic: Traffic | None
    author: str
    note: str
    created_at: datetime


def settled(traffic: Traffic, before: Traffic | None) -> Traffic:
    """The split with salt and cohorts, which follow from the split before it: only those move who have to."""
    if before is None:
        return msgspec.structs.replace(traffic, salt=secrets.token_hex(8), cohorts=allot((), traffic.arms))
    return msgspec.structs.replace(traffic, salt=before.salt, cohorts=allot(before.cohorts, traffic.arms))


def check_traffic(model: str, traffic: Traffic, existing: Collection[int]) -> None:
    """Raises ``InvalidTraffic`` with the field, its value, and the mend."""
    problem = next(_problems(traffic, existing), None)
    if problem is not None:
        raise InvalidTraffic(f"traffic of model {model!r}: {problem}")


def check_alias(alias: str) -> None:
    """Raises ``InvalidTraffic`` for an alias that could be mistaken for a version, or not be part of a URL."""
    if not _ALIAS.fullmatch(alias) or _RESERVED.fullmatch(alias):
        raise InvalidTraffic(
            f"alias {alias[:140]!r} is not acceptable: it begins with a letter or _, goes on with letters, digits, "
            "_ . or - (128 at most), and is not 'latest' or 'v' with a number"
        )


def _problems(traffic: Traffic, existing: Collection[int]) -> Iterator[str]:
    for name in ("arms", "rules", "shadows"):
        count = len(getattr(traffic, name))
        if count > MAX_ENTRIES:
            yield f"{name} has {count} entries; at most {MAX_ENTRIES} are allowed"
    yield from _twice("arms", [arm.version for arm in traffic.arms])
    yield from _twice("shadows", [shadow.version for shadow in traffic.shadows])
    yield from _bad_weights(traffic)
    for index, shadow in enumerate(traffic.shadows):
        if not 0 <= shadow.percent <= 100:  # NaN as well
            yield f"shadows[{index}].percent is {shadow.percent}; it has to be 0 to 100"
    for index, rule in enumerate(traffic.rules):
        if not _HEADER.fullmatch(rule.header):
            yield f"rules[{index}].header is {rule.header[:140]!r}, which is no name of an HTTP header"
    if traffic.sticky and not _STICKY.fullmatch(traffic.sticky):
        yield f"sticky is {traffic.sticky[:140]!r}; it has to be header:NAME, parameter:NAME or key"
    yield from _missing(traffic, existing)


def _bad_weights(traffic: Traffic) -> Iterator[str]:
    for index, arm in enumerate(traffic.arms):
        if not 0 <= arm.weight <= MAX_WEIGHT:
            yield f"arms[{index}].weight is {arm.weight}; it has to be a number from 0 to {MAX_WEIGHT:.0e}"
    if math.fsum(arm.weight for arm in traffic.arms) <= 0:
        yield "the weights sum to 0, which no request could follow: give at least one version a weight"


def _twice(field: str, versions: list[int]) -> Iterator[str]:
    seen: set[int] = set()
    for index, version in enumerate(versions):
        if version in seen:
            yield f"{field}[{index}].version is {version}, which is named before: name each version once"
        seen.add(version)


def _missing(traffic: Traffic, existing: Collection[int]) -> Iterator[str]:
    for name in ("arms", "rules", "shadows"):
        for index, entry in enumerate(getattr(traffic, name)):
            if entry.version not in existing:
                known = ", ".join(map(str, sorted(existing)))
                yield f"{name}[{index}].version is {entry.version}, which does not exist; the model has {known}"
