"""What this gateway serves now, by name and number: the table that every request is looked up in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.errors import ModelNotReady, NotFound
from gateway.lifecycle.repository import Problem
from gateway.lifecycle.served import Served
from gateway.lifecycle.state import VersionState

#: Digits of the largest number that the registry gives.
_MAX_DIGITS: Final = 19
#: Seconds after which to ask again for what waits for its turn: to be read, or to load.
_TURN_S: Final = 1.0
#: How many models or versions an error names.
_MAX_NAMED: Final = 10


class Catalog:
    """Name -> versions. ``default`` is the greatest ready version, kept up to date on each change of a state."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, Served]] = {}
        self.is_read = True  # False while a server starts: what is registered is not known yet
        self.registered: dict[str, frozenset[int]] = {}
        self.desired: frozenset[tuple[str, int]] = frozenset()  # what ought to run, whether or not it does
        self.problems: tuple[Problem, ...] = ()  # what cannot even be registered
        self._default: dict[str, Served] = {}

    def add(self, served: Served) -> None:
        """A version begins to load."""
        self.versions.setdefault(served.record.model, {})[served.record.number] = served
        self.refresh(served.record.model)

    def remove(self, served: Served) -> None:
        """A version is gone."""
        versions = self.versions[served.record.model]
        del versions[served.record.number]
        if not versions:
            del self.versions[served.record.model]
        self.refresh(served.record.model)

    def refresh(self, model: str) -> None:
        """A state changed."""
        ready = [v for v in self.versions.get(model, {}).values() if v.state is VersionState.READY]
        if ready:
            self._default[model] = max(ready, key=lambda served: served.record.number)
        else:
            self._default.pop(model, None)

    def resolve(self, model: str, version: str) -> Served:
        """The version for a request. Raises ``NotFound`` or ``ModelNotReady``."""
        if not version:
            served = self._default.get(model)
            if served is not None:
                return served
        served = self.find(model, version)
        if served.state is not VersionState.READY:
            raise served.not_ready()
        return served

    def find(self, model: str, version: str) -> Served:
        """A version in whatever state. Raises ``NotFound`` if it is unknown, ``ModelNotReady`` if it is not loaded."""
        if not version and model in self._default:
            return self._default[model]
        versions = self.versions.get(model)
        if versions is None:
            raise self._missing(model)
        if not version:
            return versions[max(versions)]
        number = _number(version)
        served = versions.get(number) if number is not None else None
        if served is None:
            raise self._missing_version(model, version)
        return served

    def all(self) -> list[Served]:
        """Every version, by name and number."""
        return [
            self.versions[model][number] for model in sorted(self.versions) for number in sorted(self.versions[model])
        ]

    def awaited(self) -> list[tuple[str, int]]:
        """Versions that ought to run and wait for their turn to load."""
        return sorted(key for key in self.desired if key[1] not in self.versions.get(key[0], {}))

    def _missing(self, model: str) -> NotFound | ModelNotReady:
        problem = next((problem for problem in self.problems if problem.name == model), None)
        if problem is not None:
            return ModelNotReady(f"Request for model '{model}', which cannot be served: {problem.reason}")
        if model in self.registered:
            text = f"Request for model '{model}', which has no available versions: none is loaded"
            waits = any(name == model for name, _ in self.desired)
            return ModelNotReady(text, _TURN_S if waits else None)
        if not self.is_read:
            text = f"Request for model '{model}', and the server has yet to read its models: it starts"
            return ModelNotReady(text, _TURN_S)
        names = sorted(self.registered.keys() | self.versions.keys())
        return NotFound(f"Request for unknown model: '{model}' is not found (models: {listed(names)})")

    def _missing_version(self, model: str, version: str) -> NotFound | ModelNotReady:
        known = self.registered.get(model, frozenset())
        if _number(version) in known:
            waits = (model, _number(version)) in self.desired
            text = f"Request for model '{model}' version {version}, which is not loaded"
            return ModelNotReady(text, _TURN_S if waits else None)
        numbers = listed([str(number) for number in sorted(known)])
        return NotFound(f"Request for unknown model: '{model}' version {version} is not found (versions: {numbers})")


def _number(version: str) -> int | None:
    """A version as a client wrote it; None for what can be no number (int() refuses thousands of digits)."""
    return int(version) if version.isascii() and version.isdigit() and len(version) <= _MAX_DIGITS else None


def listed(names: Sequence[str]) -> str:
    """For a text: the first ten of them, and how many there are beside those."""
    more = len(names) - _MAX_NAMED
    return (", ".join(names[:_MAX_NAMED]) or "none") + (f", and {more} more" if more > 0 else "")
