"""Errors of the layers below, as clients are told them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from backends.errors import LoadFailed
from gateway import errors
from gateway.modelconfig.parse import ConfigError
from registry import errors as registry

#: Registry error -> what a client gets; the nearest class counts.
_GATEWAY_ERROR: Final[Mapping[type[registry.RegistryError], type[errors.GatewayError]]] = {
    registry.ModelNotFound: errors.NotFound,
    registry.VersionNotFound: errors.NotFound,
    registry.RevisionNotFound: errors.NotFound,
    registry.VersionConflict: errors.Conflict,
    registry.RevisionConflict: errors.Outdated,
    registry.InUse: errors.Conflict,
    registry.InvalidTraffic: errors.InvalidRequest,
    registry.InvalidName: errors.InvalidRequest,
    registry.ArtifactError: errors.InvalidRequest,
    registry.StoreError: errors.Unavailable,
    registry.RegistryError: errors.Internal,
}


@contextmanager
def told() -> Iterator[None]:
    """Turns errors of the layers below into the gateway's, at this one place."""
    try:
        yield
    except registry.RegistryError as error:
        kind = next(_GATEWAY_ERROR[cls] for cls in type(error).__mro__ if cls in _GATEWAY_ERROR)
        raise kind(str(error)) from error
    except ConfigError as error:
        raise errors.InvalidRequest(f"config: {error}") from error
    except LoadFailed as error:
        raise errors.InvalidRequest(f"the artifact cannot be served: {error}") from error
