"""Which version of a model a request goes to, by the model's split. Pure: chance comes in as a number.

The first rule that fits decides. Otherwise the request has a place, by the hash of its sticky key or by chance, and the
version that owns the place (``registry.cohorts``) gets it. Only versions that are ready take part: what one of them
cannot take falls to the others in proportion, and a key stays with the one that it fell to.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Container
from hashlib import blake2b
from itertools import accumulate
from typing import Final, Protocol

from registry.cohorts import SPACE
from registry.traffic import Traffic

_PLACE_BYTES: Final = 4
#: Odd, without a pattern: a second place that does not follow from the neighbourhood of the first.
_SCRAMBLE: Final = 0x9E3779B1


class Asked(Protocol):
    """What a route looks at in a request."""

    def header(self, name: bytes) -> bytes | None:
        """The value of a header (``name`` in lower case), None without it."""

    def parameter(self, name: str) -> object:
        """The value of a parameter, None without it."""


class Route:
    """A model's split, made ready for many requests."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self._arms = tuple(arm for arm in traffic.arms if arm.weight > 0)
        self._bounds = [cohort.until for cohort in traffic.cohorts]
        self._owners = [cohort.version for cohort in traffic.cohorts]
        self._salt = blake2b(traffic.salt.encode(), digest_size=blake2b.SALT_SIZE).digest()
        kind, _, self._sticky_name = traffic.sticky.partition(":")
        self._sticky = {"": None, "header": self._header, "parameter": self._parameter, "key": _api_key}[kind]
        self._rules = tuple((rule.header.lower().encode(), rule.value.encode(), rule.version) for rule in traffic.rules)

    @property
    def main(self) -> int:
        """The version with most weight; of equals the first."""
        return max(self._arms, key=lambda arm: arm.weight).version

    def main_of(self, ready: Container[int]) -> int | None:
        """The version with most weight among those that are ready; None if none is."""
        arms = [arm for arm in self._arms if arm.version in ready]
        return max(arms, key=lambda arm: arm.weight).version if arms else None

    def choose(self, asked: Asked, ready: Container[int], draw: float) -> int | None:
        """The version; None if none that may is ready. ``draw`` is of [0, 1), and decides where no key does."""
        for header, value, version in self._rules:
            if version in ready and asked.header(header) == value:
                return version
        key = self._sticky(asked) if self._sticky is not None else None
        place = int(draw * SPACE) if key is None else self._place(key)
        version = self._owners[bisect(self._bounds, place)]
        return version if version in ready else self._instead(place, ready)

    def _place(self, key: bytes) -> int:
        return int.from_bytes(blake2b(key, digest_size=_PLACE_BYTES, salt=self._salt).digest(), "little")

    def _instead(self, place: int, ready: Container[int]) -> int | None:
        arms = [arm for arm in self._arms if arm.version in ready]
        if not arms:
            return None
        bounds = list(accumulate(arm.weight for arm in arms))
        scrambled = place * _SCRAMBLE % SPACE / SPACE
        return arms[min(bisect(bounds, scrambled * bounds[-1]), len(arms) - 1)].version

    def _header(self, asked: Asked) -> bytes | None:
        return asked.header(self._sticky_name.lower().encode())

    def _parameter(self, asked: Asked) -> bytes | None:
        value = asked.parameter(self._sticky_name)
        return None if value is None else f"{type(value).__name__}:{value}".encode("utf-8", "surrogatepass")


def _api_key(asked: Asked) -> bytes | None:
    return asked.header(b"authorization") or asked.header(b"x-api-key")
