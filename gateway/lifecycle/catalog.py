"""What this gateway serves now, by name and number: the table that every request is looked up in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.errors import ModelNotReady, NotFound
from gateway.inference.request import InferRequest
from gateway.lifecycle.repository import Problem
from gateway.lifecycle.served import Served
from gateway.lifecycle.state import VersionState
from gateway.routing.route import Route
from registry.record import Model
from registry.traffic import Shadow

#: Digits of the largest number that the registry gives.
_MAX_DIGITS: Final = 19
#: Seconds after which to ask again for what waits for its turn: to be read, or to load.
_TURN_S: Final = 1.0
_chance: Final = random.Random().random  # noqa: S311 - nobody gains by guessing it
_NONE: Final[dict[int, Served]] = {}
_NO_ALIASES: Final[dict[str, int]] = {}
#: How many models or versions an error names.
_MAX_NAMED: Final = 10


class Catalog:
    """Name -> versions, and how requests are shared among them.

    Who names no version gets what the model's split says, or else the greatest ready version. Both are kept up to date
    on each change of a state.
    """

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, Served]] = {}
        self.is_read = True  # False while a server starts: what is registered is not known yet
        self.registered: dict[str, frozenset[int]] = {}
        self.desired: frozenset[tuple[str, int]] = frozenset()  # what ought to run, whether or not it does
        self.problems: tuple[Problem, ...] = ()  # what cannot even be registered
        self._default: dict[str, Served] = {}
        self._ready: dict[str, dict[int, Served]] = {}
        self._routes: dict[str, Route] = {}
        self._aliases: dict[str, dict[str, int]] = {}
        self.changes = 0  # of single models: what was read of all before the last one may be older

    def take(self, models: Iterable[Model]) -> None:
        """What the registry says now of all models."""
        before, self._routes, self._aliases, self.registered = self._routes, {}, {}, {}
        desired: set[tuple[str, int]] = set()
        for model in models:
            self._take(model, before.get(model.name))
            desired.update((model.name, version.number) for version in model.versions if version.desired)
        self.desired = frozenset(desired)
        self.is_read = True
        for name in self.versions:
            self.refresh(name)

    def take_one(self, model: Model) -> None:
        """What the registry says now of one model: how its requests are shared, from the next one on."""
        self.changes += 1
        before = self._routes.pop(model.name, None)
        self._aliases.pop(model.name, None)
        self._take(model, before)
        self.refresh(model.name)

    def _take(self, model: Model, before: Route | None) -> None:
        self.registered[model.name] = frozenset(version.number for version in model.versions)
        if model.aliases:
            self._aliases[model.name] = model.aliases
        traffic = model.traffic.traffic if model.traffic else None
        if traffic is not None:
            self._routes[model.name] = before if before and before.traffic == traffic else Route(traffic)

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
        versions = self.versions.get(model, {})
        ready = {number: served for number, served in versions.items() if served.state is VersionState.READY}
        if ready:
            self._ready[model] = ready
        else:
            self._ready.pop(model, None)
        route = self._routes.get(model)
        default = max(ready, default=None) if route is None else route.main_of(ready)
        if default is not None:
            self._default[model] = ready[default]
        else:
            self._default.pop(model, None)

    def serves(self, model: str) -> bool:
        """Whether a request that names no version would find one: with a split, one that takes part in it."""
        return model in self._default

    def route(self, request: InferRequest) -> Served:
        """The version that gets the request. Raises ``NotFound`` or ``ModelNotReady``."""
        if not request.version:
            route = self._routes.get(request.model)
            if route is not None:
                ready = self._ready.get(request.model, _NONE)
                number = route.choose(request, ready, _chance())
                if number is not None:
                    return ready[number]
        return self.resolve(request.model, request.version)

    def shadows(self, request: InferRequest) -> list[tuple[Shadow, Served]]:
        """The versions that may get a copy of the request, and are ready for it."""
        route = self._routes.get(request.model)
        if route is None or not route.traffic.shadows or request.version:
            return []
        ready = self._ready.get(request.model, _NONE)
        return [(shadow, ready[shadow.version]) for shadow in route.traffic.shadows if shadow.version in ready]

    def resolve(self, model: str, version: str) -> Served:
        """The version that is meant, "" the one that gets most requests. Raises ``NotFound`` or ``ModelNotReady``."""
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
            return self._unready(model, versions)
        number = self._numbered(model, version)
        served = versions.get(number) if number is not None else None
        if served is None:
            raise self._missing_version(model, version)
        return served

    def _unready(self, model: str, versions: dict[int, Served]) -> Served:
        """The version whose state tells why none can be had."""
        route = self._routes.get(model)
        if route is None:
            return versions[max(versions)]
        served = versions.get(route.main)
        if served is None:
            raise self._missing_version(model, str(route.main))
        return served

    def _numbered(self, model: str, version: str) -> int | None:
        """The number of a version that a client named, by its number or an alias."""
        alias = self._aliases.get(model, _NO_ALIASES).get(version)
        return _number(version) if alias is None else alias

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
        number = self._numbered(model, version)
        if number in known:
            waits = (model, number) in self.desired
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
