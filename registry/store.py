"""The storage contract of the registry. Implementations: ``registry.sql`` (SQLAlchemy)."""

from __future__ import annotations

import abc

from backends.spec import Signature
from registry.audit import SYSTEM, AuditEntry, Author
from registry.keys import ApiKey, NewKey
from registry.record import Model, ModelVersion, NewVersion
from registry.traffic import Traffic, TrafficRevision


class ModelStore(abc.ABC):
    """Models, versions, and how requests are shared among them.

    Every write is one transaction, its entries of the audit log included (``by`` is who makes it); every read is a
    snapshot.
    """

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
    async def next_revision(self, known: int, timeout_s: float) -> int:
        """The revision as soon as it is not ``known``, whoever changed something, or after ``timeout_s``."""

    @abc.abstractmethod
    async def models(self) -> list[Model]:
        """All models that have versions, by name."""

    @abc.abstractmethod
    async def model(self, name: str) -> Model:
        """Raises ``ModelNotFound``."""

    @abc.abstractmethod
    async def add_version(self, new: NewVersion, by: Author = SYSTEM) -> ModelVersion:
        """Register a version (and its model).

        The same number with the same digest and config is answered with the version that exists (idempotent); with
        other content it raises ``VersionConflict``. Raises ``InvalidName``.
        """

    @abc.abstractmethod
    async def set_desired(self, name: str, number: int, desired: bool, by: Author = SYSTEM) -> ModelVersion:
        """Say whether a version ought to run.

        Raises ``ModelNotFound``, ``VersionNotFound``, ``InUse`` for one that takes traffic and ought not to run.
        """

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

    @abc.abstractmethod
    async def delete_version(self, name: str, number: int, by: Author = SYSTEM) -> None:
        """Remove a version.

        Raises ``ModelNotFound``, ``VersionNotFound``; ``InUse`` if it runs, takes traffic, has an alias, or comes from
        a repository.
        """

    @abc.abstractmethod
    async def set_alias(self, name: str, alias: str, number: int | None, by: Author = SYSTEM) -> Model:
        """Give a version another name, or with None take the name away.

        Raises ``ModelNotFound``, ``VersionNotFound``, ``InvalidTraffic``.
        """

    @abc.abstractmethod
    async def set_traffic(
        self, name: str, traffic: Traffic | None, expected: int | None = None, by: Author = SYSTEM, note: str = ""
    ) -> Model:
        """Share requests anew, as the next revision; the versions that it needs ought to run from then on.

        Raises ``ModelNotFound``, ``InvalidTraffic``; ``RevisionConflict`` if the newest revision is not ``expected``
        (0: there is none).
        """

    @abc.abstractmethod
    async def roll_back(
        self, name: str, to: int | None = None, expected: int | None = None, by: Author = SYSTEM
    ) -> Model:
        """Share requests as revision ``to`` did (by default the one before the newest), as a new revision.

        A model without any revision goes to the version before the greatest that runs. Raises ``ModelNotFound``,
        ``RevisionNotFound``, ``RevisionConflict``, ``InUse`` where that cannot be.
        """

    @abc.abstractmethod
    async def rollback_target(self, name: str, to: int | None = None) -> Traffic | None:
        """The split that ``roll_back`` would lead to now; what it raises, this raises as well."""

    @abc.abstractmethod
    async def traffic_history(self, name: str, limit: int = 50, before: int | None = None) -> list[TrafficRevision]:
        """Revisions below ``before``, newest first. Raises ``ModelNotFound``."""

    @abc.abstractmethod
    async def audit(self, limit: int = 50, before: int | None = None, subject: str = "") -> list[AuditEntry]:
        """Changes with ids below ``before``, newest first; of one subject and what belongs to it, or of all."""

    @abc.abstractmethod
    async def add_key(self, new: NewKey, by: Author = SYSTEM) -> ApiKey:
        """Keep a key."""

    @abc.abstractmethod
    async def keys(self) -> list[ApiKey]:
        """All keys, revoked and expired ones too, the oldest first."""

    @abc.abstractmethod
    async def revoke_key(self, id: str, by: Author = SYSTEM) -> ApiKey:
        """Make a key useless for ever; again changes nothing. Raises ``KeyNotFound``."""
