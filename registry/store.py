"""The storage contract of the registry. Implementations: ``registry.sql`` (SQLAlchemy)."""

from __future__ import annotations

import abc

from backends.spec import Signature
from registry.record import Model, ModelVersion, NewVersion


class ModelStore(abc.ABC):
    """Models and versions. Every write is one transaction; every read is a snapshot."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Connect, and bring the schema up to date. Raises ``StoreError`` with the mend (unwritable folder, ...)."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    @abc.abstractmethod
    async def revision(self) -> int:
        """A number that grows with every committed change, and only then."""

    @abc.abstractmethod
    async def models(self) -> list[Model]:
        """All models that have versions, by name."""

    @abc.abstractmethod
    async def model(self, name: str) -> Model:
        """Raises ``ModelNotFound``."""

    @abc.abstractmethod
    async def add_version(self, new: NewVersion) -> ModelVersion:
        """Register a version (and its model).

        The same number with the same digest and config is answered with the version that exists (idempotent); with
        other content it raises ``VersionConflict``. Raises ``InvalidName``.
        """

    @abc.abstractmethod
    async def set_desired(self, name: str, number: int, desired: bool) -> ModelVersion:
        """Say whether a version ought to run. Raises ``ModelNotFound`` or ``VersionNotFound``."""

    @abc.abstractmethod
    async def set_signature(self, name: str, number: int, signature: Signature) -> None:
        """Keep what the artifact says of itself (read once, by a worker).

        The same signature again changes nothing; another one raises ``VersionConflict``. Raises ``ModelNotFound`` or
        ``VersionNotFound``.
        """

    @abc.abstractmethod
    async def sync_repository(self, versions: list[NewVersion]) -> None:
        """Make the versions with source ``repository`` exactly these: others go, changed content replaces the old.

        ``desired`` follows as well; a signature is kept while the content is the same. A version that is registered
        with the same content stays as it is; with other content ``VersionConflict`` names it, and nothing changes.
        """
