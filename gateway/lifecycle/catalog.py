"""What this gateway serves now, by name and number: the table that every request is looked up in."""

from __future__ import annotations

from typing import Final

from gateway.errors import ModelNotReady, NotFound
from gateway.lifecycle.repository import Problem
from gateway.lifecycle.served import Served
from gateway.lifecycle.state import VersionState

#: Digits of the largest number that the registry gives.
_MAX_DIGITS: Final = 19


class Catalog:
    """Name -> versions. ``default`` is the greatest ready version, kept up to date on each change of a state."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, Served]] = {}
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
            raise ModelNotReady(served.not_ready_text())
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
            return ModelNotReady(f"Request for model '{model}', which has no available versions: none is loaded")
        return NotFound(f"Request for unknown model: '{model}' is not found")

    def _missing_version(self, model: str, version: str) -> NotFound | ModelNotReady:
        known = self.registered.get(model, frozenset())
        if _number(version) in known:
            return ModelNotReady(f"Request for model '{model}' version {version}, which is not loaded")
        numbers = ", ".join(map(str, sorted(known))) or "none"
        return NotFound(f"Request for unknown model: '{model}' version {version} is not found (versions: {numbers})")


def _number(version: str) -> int | None:
    """A version as a client wrote it; None for what can be no number (int() refuses thousands of digits)."""
    return int(version) if version.isascii() and version.isdigit() and len(version) <= _MAX_DIGITS else None
