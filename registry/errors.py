"""Errors of the registry; they know no protocol.

RegistryError
├── ModelNotFound / VersionNotFound / RevisionNotFound / KeyNotFound
├── VersionConflict     the number is taken by other content
├── RevisionConflict    somebody else has changed it meanwhile
├── InUse               it takes traffic, or something refers to it
├── InvalidTraffic      a split or an alias that cannot be
├── InvalidName         a model name that no URL could carry
├── ArtifactError       the artifact cannot be had: missing, unreadable, half-copied
└── StoreError          the database cannot be used; the text says how to mend it
"""


class RegistryError(Exception):
    """Base; ``str()`` is a text for a person."""


class ModelNotFound(RegistryError):
    """No model of that name."""


class VersionNotFound(RegistryError):
    """The model has no such version."""


class RevisionNotFound(RegistryError):
    """The model's traffic never had this revision."""


class KeyNotFound(RegistryError):
    """No API key of that id."""


class VersionConflict(RegistryError):
    """Versions are immutable: the number exists with other content."""


class RevisionConflict(RegistryError):
    """The change was made for another revision than the present one."""


class InUse(RegistryError):
    """What is to be removed is needed."""


class InvalidTraffic(RegistryError):
    """Field, value and mend are in the text."""


class InvalidName(RegistryError):
    """The model's name, or a version's number, is not acceptable."""


class ArtifactError(RegistryError):
    """The artifact cannot be used."""


class StoreError(RegistryError):
    """The database cannot be used."""
