"""The errors that a person at the command line may meet in the course of things: told in words, without a trace."""

from __future__ import annotations

from gateway.errors import GatewayError
from gateway.settings.errors import ConfigurationError
from registry.errors import RegistryError


class CommandFailed(Exception):
    """The command could not do what it was asked; the text says why and what to do."""


EXPECTED = (CommandFailed, ConfigurationError, RegistryError, GatewayError, OSError)


def explain(error: Exception) -> str:
    """The text for the person."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
