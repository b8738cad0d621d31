"""Whether the server is ready: every model that has to be served can be."""

from __future__ import annotations

from collections.abc import Collection

from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.policy import Key
from gateway.lifecycle.state import VersionState


class Readiness:
    """A model is required if it was wanted at the start, or was ready once, and is wanted still.

    Strictly, those that were given up count as well, and those of a repository that could not be registered.
    """

    def __init__(self, catalog: Catalog, *, strict: bool) -> None:
        self._catalog = catalog
        self._strict = strict
        self._required: set[str] | None = None  # None: nobody knows yet what is wanted
        self._desired: Collection[Key] = ()

    def want(self, desired: Collection[Key]) -> None:
        """What ought to run, as the registry has just been read."""
        models = {model for model, _ in desired}
        self._required = models if self._required is None else self._required & models
        self._desired = desired

    def was_ready(self, model: str) -> None:
        """It counts from now on."""
        if self._required is not None:
            self._required.add(model)

    def __bool__(self) -> bool:
        if self._required is None:
            return False
        if self._strict:
            required = self._required | {problem.name for problem in self._catalog.problems}
            return all(map(self._servable, required))
        return all(self._servable(model) or self._given_up(model) for model in self._required)

    def _servable(self, model: str) -> bool:
        return self._catalog.serves(model)

    def _given_up(self, model: str) -> bool:
        wanted = [number for name, number in self._desired if name == model]
        running = self._catalog.versions.get(model, {})
        return all(number in running and running[number].state is VersionState.FAILED for number in wanted)
