"""Errors of the registry; they know no protocol.

RegistryError
├── ModelNotFound / VersionNotFound
├── VersionConflict     the number is taken by other content
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


class VersionConflict(RegistryError):
    """Versions are immutable: the number exists with other content."""


class InvalidName(RegistryError):
    """The model's name, or a version's number, is not acceptable."""


class ArtifactError(RegistryError):
    """The artifact cannot be used."""


class StoreError(RegistryError):
    """The database cannot be used."""
