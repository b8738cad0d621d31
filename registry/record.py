"""What the registry keeps: models, their versions, and what ought to run."""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from backends.spec import Signature
from registry.traffic import TrafficRevision


class Source(enum.StrEnum):
    """Where a version came from; versions of a repository folder live as long as the server serves that folder."""

    REGISTERED = "registered"
    REPOSITORY = "repository"


class ModelVersion(msgspec.Struct, frozen=True):
    """One immutable version. ``config`` is a ModelConfig in its JSON form; ``desired`` says that it ought to run."""

    model: str
    number: int
    framework: str
    artifact: str  # the URI as given
    path: str  # the file or folder on this machine
    digest: str  # sha256:...
    size_bytes: int
    source: Source
    desired: bool
    created_at: datetime
    config: dict[str, object] = {}
    signature: Signature | None = None


class NewVersion(msgspec.Struct, frozen=True):
    """A version to be registered; ``number`` None takes the next one."""

    model: str
    framework: str
    artifact: str
    path: str
    digest: str
    size_bytes: int
    number: int | None = None
    source: Source = Source.REGISTERED
    desired: bool = True
    config: dict[str, object] = {}
    signature: Signature | None = None


class Model(msgspec.Struct, frozen=True):
    """A name that clients call, with its versions in ascending order.

    ``aliases`` are names of versions; ``traffic`` is the newest revision of the split, None if there was never one.
    """

    name: str
    created_at: datetime
    versions: tuple[ModelVersion, ...] = ()
    aliases: dict[str, int] = {}
    traffic: TrafficRevision | None = None

    @property
    def traffic_revision(self) -> int:
        """What a change of the split has to expect; 0 before the first."""
        return self.traffic.revision if self.traffic else 0
