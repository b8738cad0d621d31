"""Which part of all clients belongs to which version. Pure.

A client (or a throw of the dice) is a place from 0 to ``SPACE``, and each version owns ranges of places. When weights
change, ranges are cut and handed on, no more than has to be: a version that shrinks keeps the rest of its places, one
that stays keeps all. No rule without memory does that for more than two versions (Bavarian, Ghazi, Haramaty, Kamath,
Rivest, Sudan: Optimality of Correlated Sampling Strategies, 2016), so the ranges are part of a split's document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

SPACE: Final = 1 << 32


class Weighted(Protocol):
    """A version with its weight."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def weight(self) -> float:
        """0 or more."""


class Cohort(msgspec.Struct, frozen=True, array_like=True):
    """The places from the end of the cohort before up to ``until`` belong to ``version``."""

    until: int
    version: int


def allot(before: Sequence[Cohort], arms: Sequence[Weighted]) -> tuple[Cohort, ...]:
    """Cohorts of sizes in proportion to the weights (which do not sum to 0), as close to ``before`` as can be."""
    owed = _sizes(arms)
    pieces = list(_kept(before, owed))
    return tuple(_merged(_filled(pieces, owed)))


def _sizes(arms: Sequence[Weighted]) -> dict[int, int]:
    """Places of each version: rounded down, and what is left goes to the largest remainders."""
    total = math.fsum(arm.weight for arm in arms)
    exact = {arm.version: arm.weight / total * SPACE for arm in arms}
    sizes = {version: int(places) for version, places in exact.items()}
    by_remainder = sorted((version for version in sizes if exact[version] > 0), key=lambda v: sizes[v] - exact[v])
    for index in range(SPACE - sum(sizes.values())):
        sizes[by_remainder[index % len(by_remainder)]] += 1
    return sizes


def _kept(before: Sequence[Cohort], owed: dict[int, int]) -> Iterator[tuple[int, int | None]]:
    """Lengths with their owner, None for what is to be handed on; what is kept is not ``owed`` any more."""
    start = 0
    for cohort in before or (Cohort(SPACE, 0),):
        length = cohort.until - start
        kept = min(length, owed.get(cohort.version, 0))
        if kept:
            owed[cohort.version] -= kept
            yield kept, cohort.version
        if length > kept:
            yield length - kept, None
        start = cohort.until


def _filled(pieces: list[tuple[int, int | None]], owed: dict[int, int]) -> Iterator[tuple[int, int]]:
    takers = iter([version for version, places in owed.items() if places])
    taker = next(takers, 0)
    for length, owner in pieces:
        if owner is not None:
            yield length, owner
            continue
        free = length
        while free:
            part = min(free, owed[taker])
            yield part, taker
            free -= part
            owed[taker] -= part
            if not owed[taker]:
                taker = next(takers, 0)


def _merged(pieces: Iterator[tuple[int, int]]) -> Iterator[Cohort]:
    until, owner = 0, None
    for length, version in pieces:
        if owner is not None and version != owner:
            yield Cohort(until, owner)
        until, owner = until + length, version
    if owner is not None:
        yield Cohort(until, owner)
