"""The control plane: what administrators ask for. It writes the registry and pokes the manager, who does the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from backends.spec import FRAMEWORKS, Signature
from gateway import errors
from gateway.lifecycle.background import in_background
from gateway.lifecycle.manager import Manager
from gateway.lifecycle.repository import Problem, framework_of_artifact, scan
from gateway.lifecycle.state import VersionState, WorkerStatus
from gateway.modelconfig.parse import from_dict, to_dict
from gateway.modelconfig.spec import framework_of, to_spec
from gateway.placement.inventory import Inventory
from gateway.serving.told import told
from registry import errors as registry
from registry.artifacts import Artifact, resolve
from registry.names import check_name, check_number
from registry.plan import Relation, differences, relation
from registry.record import Model, ModelVersion, NewVersion, Source
from registry.store import ModelStore

log = logging.getLogger("tensorgate.controlplane")

#: The artifact of the echo framework, which needs none.
ECHO: Final = "echo:"
_ECHO_FRAMEWORK: Final = "echo"
#: The frameworks that run an artifact.
_RUNNERS: Final = tuple(name for name in FRAMEWORKS if name != _ECHO_FRAMEWORK)
_NO_ARTIFACT: Final = Artifact(path="", digest="sha256:" + "0" * 64, size_bytes=0)

#: What one waits for after a load, and after an unload.
LOADED: Final = frozenset({VersionState.READY, VersionState.FAILED})
UNLOADED: Final = frozenset({VersionState.UNLOADED})
_POLL_S: Final = 0.02


class VersionInfo(msgspec.Struct, frozen=True):
    """A version as it is registered, and its state in this gateway."""

    model: str
    number: int = msgspec.field(name="version")
    framework: str
    artifact: str
    digest: str
    size_bytes: int
    source: Source
    desired: bool
    created_at: datetime
    state: VersionState
    reason: str
    workers: tuple[WorkerStatus, ...]
    config: dict[str, Any]
    signature: Signature | None


class ModelInfo(msgspec.Struct, frozen=True):
    """A model with its versions in ascending order, and other names of versions."""

    name: str
    created_at: datetime
    versions: tuple[VersionInfo, ...]
    aliases: dict[str, int]


class ControlPlane:
    """Raises ``gateway.errors`` only: ``NotFound``, ``Conflict``, ``InvalidRequest``, ``Unavailable``."""

    def __init__(self, store: ModelStore, manager: Manager) -> None:
        self._store = store
        self._manager = manager
        self.events = manager.events
        #: What the last ``sync_repositories`` could not serve.
        self.problems: tuple[Problem, ...] = ()

    async def list_models(self) -> list[ModelInfo]:
        """All models, by name."""
        with told():
            return [self._model_info(model) for model in await self._store.models()]

    async def show(self, name: str) -> ModelInfo:
        """One model."""
        with told():
            return self._model_info(await self._store.model(name))

    async def version(self, name: str, number: int) -> VersionInfo:
        """One version."""
        with told():
            for version in (await self._store.model(name)).versions:
                if version.number == number:
                    return self._version_info(version)
        raise errors.NotFound(f"model {name!r} has no version {number}: `tensorgate model show {name}` lists them")

    async def register(
        self,
        name: str,
        artifact: str,
        framework: str | None = None,
        number: int | None = None,
        *,
        config: dict[str, Any] | None = None,
        deploy: bool = True,
    ) -> ModelVersion:
        """Register a version. The artifact is digested, and loaded once to read its signature, before anything is kept.

        The same content under the same number again is answered with the version that exists.
        """
        with told():
            new = await _describe(name, artifact, framework, number, config or {}, deploy)
            signature = await self._probe(new)
            added = await self._store.add_version(msgspec.structs.replace(new, signature=signature))
        log.info("registered %s:%d from %s", name, added.number, artifact)
        self._manager.poke()
        return added

    async def load(self, name: str, number: int, *, wait_s: float = 0.0) -> VersionInfo:
        """Say that a version ought to run; one that failed is tried again."""
        with told():
            await self._store.set_desired(name, number, True)
        self._manager.retry(name, number)
        return await self.wait(name, number, LOADED, wait_s)

    async def unload(self, name: str, number: int, *, wait_s: float = 0.0) -> VersionInfo:
        """Say that a version ought not to run; it ends after its last request."""
        with told():
            await self._store.set_desired(name, number, False)
        self._manager.poke()
        return await self.wait(name, number, UNLOADED, wait_s)

    async def wait(self, name: str, number: int, states: frozenset[VersionState], timeout_s: float) -> VersionInfo:
        """Wait until the version is in one of ``states``; what it is then, or after ``timeout_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while timeout_s:
                    status = await self._manager.wait_settled(name, number, timeout_s)
                    if status.state in states:
                        break
                    await asyncio.sleep(_POLL_S)  # it was settled, and has yet to hear of what is wanted now
        return await self.version(name, number)

    async def sync_repositories(self, folders: Iterable[Path]) -> tuple[Problem, ...]:
        """Make the registry's repository versions those of ``folders``; what cannot be served is told, and logged.

        Raises ``ConfigurationError`` if a folder is missing or cannot be read.
        """
        results = [await in_background(scan, folder) for folder in folders]
        found = [version for result in results for version in result.versions]
        with told():
            wanted, clashes = _without_clashes(found, await self._store.models())
            await self._store.sync_repository(wanted)
        self.problems = (*(problem for result in results for problem in result.problems), *clashes)
        self._manager.catalog.problems = self.problems
        for problem in self.problems:
            log.error("not served: %s: %s", problem.label, problem.reason)
        self._manager.poke()
        return self.problems

    def workers(self) -> list[WorkerStatus]:
        """All workers of this gateway."""
        return self._manager.workers()

    def devices(self) -> Inventory:
        """The GPUs of this machine as they are now."""
        return self._manager.room.inventory()

    async def restart_worker(self, id: str) -> None:
        """End a worker at once; its replica starts a new one. Raises ``NotFound``."""
        await self._manager.restart_worker(id)

    async def _probe(self, new: NewVersion) -> Signature | None:
        """The signature, read by a worker; not needed where the number is taken: the store judges that by itself."""
        taken = [version.number for version in await self._known(new.model)]
        if new.number in taken:
            return None
        number = new.number or max(taken, default=0) + 1
        spec = to_spec(from_dict(new.config), name=new.model, version=number, path=new.path, framework=new.framework)
        return await self._manager.probe(spec)

    async def _known(self, name: str) -> tuple[ModelVersion, ...]:
        try:
            return (await self._store.model(name)).versions
        except registry.ModelNotFound:
            return ()

    def _model_info(self, model: Model) -> ModelInfo:
        versions = tuple(map(self._version_info, model.versions))
        return ModelInfo(model.name, model.created_at, versions, model.aliases)

    def _version_info(self, version: ModelVersion) -> VersionInfo:
        status = self._manager.status(version.model, version.number)
        return VersionInfo(
            model=version.model,
            number=version.number,
            framework=version.framework,
            artifact=version.artifact,
            digest=version.digest,
            size_bytes=version.size_bytes,
            source=version.source,
            desired=version.desired,
            created_at=version.created_at,
            state=status.state,
            reason=status.reason,
            workers=status.workers,
            config=version.config,
            signature=version.signature or self._loaded_signature(version),
        )

    def _loaded_signature(self, version: ModelVersion) -> Signature | None:
        """As the loaded model says: a repository's versions are not probed before they are kept."""
        served = self._manager.catalog.versions.get(version.model, {}).get(version.number)
        return served.validator.signature if served is not None and served.validator is not None else None


async def _describe(
    name: str, artifact: str, framework: str | None, number: int | None, config: dict[str, Any], deploy: bool
) -> NewVersion:
    """What is to be registered. Raises ``RegistryError``, ``ConfigError`` or ``InvalidRequest``."""
    check_name(name)
    if number is not None:
        check_number(name, number)
    message = from_dict(config)
    given = framework or framework_of(message)
    _check_framework(artifact, given)
    found = _NO_ARTIFACT if artifact == ECHO else await asyncio.to_thread(resolve, artifact)
    return NewVersion(
        model=name,
        framework=given or _framework(artifact, found.path),
        artifact=artifact,
        path=found.path,
        digest=found.digest,
        size_bytes=found.size_bytes,
        number=number,
        desired=deploy,
        config=to_dict(message),
    )


def _check_framework(artifact: str, given: str | None) -> None:
    """Raises ``InvalidRequest`` for a framework that is not known, or that this artifact is not for."""
    if given is not None and given not in FRAMEWORKS:
        raise errors.InvalidRequest(f"framework {given!r} is not known; one of {', '.join(FRAMEWORKS)} is")
    if artifact == ECHO and given not in (None, _ECHO_FRAMEWORK):
        raise errors.InvalidRequest(f"the artifact {ECHO!r} is for the framework echo only; give a file or folder")
    if artifact != ECHO and given == _ECHO_FRAMEWORK:
        raise errors.InvalidRequest(
            f"artifact {artifact!r}: the framework echo runs no artifact and would ignore it; give {ECHO!r} as the "
            "artifact (a config may name inputs and outputs), or the framework that runs this one, one of "
            f"{', '.join(_RUNNERS)}"
        )


def _framework(artifact: str, path: str) -> str:
    """As the artifact tells it. Raises ``InvalidRequest``."""
    framework = _ECHO_FRAMEWORK if artifact == ECHO else framework_of_artifact(Path(path))
    if framework is None:
        raise errors.InvalidRequest(
            f"artifact {artifact!r}: its framework cannot be told from its name; give framework, one of "
            f"{', '.join(_RUNNERS)}"
        )
    return framework


def _without_clashes(found: Iterable[NewVersion], models: Iterable[Model]) -> tuple[list[NewVersion], list[Problem]]:
    """Leave out what other versions stand in the way of, so that the rest is served."""
    registered = {
        (version.model, version.number): version
        for model in models
        for version in model.versions
        if version.source is Source.REGISTERED
    }
    wanted: dict[tuple[str, int | None], NewVersion] = {}
    problems = []
    for new in found:
        first = wanted.setdefault((new.model, new.number), new)
        other = registered.get((new.model, new.number or 0))
        if first is not new:
            reason = f"{first.path} has this version already: rename the model or the version's folder in {new.path}"
            problems.append(Problem(new.model, new.number, reason))
        elif other is not None and relation(other, new) is Relation.OTHER:
            del wanted[new.model, new.number]
            reason = (
                f"{new.path} differs from the version registered under this number ({differences(other, new)}): "
                "rename its folder to a free number"
            )
            problems.append(Problem(new.model, new.number, reason))
    return list(wanted.values()), problems
