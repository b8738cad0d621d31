"""What the server is told: flags, then ``TENSORGATE_*`` environment, then the TOML file, then defaults.

These modules alone read the environment. A value that is not acceptable is answered with its key, where it came from,
the value, and what is allowed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource
from pydantic_settings import SettingsError as UnreadableEnvironment

from gateway.settings.client import CLIENT_VARIABLES
from gateway.settings.errors import ConfigurationError, suggestion
from gateway.settings.schema import PREFIX, Settings
from gateway.settings.urls import hide_password


class Layer(msgspec.Struct, frozen=True):
    """One source: its values by key, and how a person calls the place of a key."""

    values: Mapping[str, Any]
    place: str  # a format of {key} and {KEY}


def load(flags: Mapping[str, object] | None = None, config: Path | None = None) -> Settings:
    """Settings of this process. A flag that is ``None`` or empty was not given. Raises ``ConfigurationError``."""
    given = {key: value for key, value in (flags or {}).items() if value is not None and value != []}
    layers = [Layer(given, "flag --{flag}"), _environment(), *([_file(config)] if config else [])]
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        for key, value in layer.values.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **value} if both else value
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, layers)) from None


def _environment() -> Layer:
    try:
        return Layer(EnvSettingsSource(Settings)(), f"environment variable {PREFIX}{{KEY}}")
    except UnreadableEnvironment as error:
        key = "interpreters"  # the only key whose variable holds JSON
        allowed = f'JSON such as {{"onnx": "/path/to/python"}}, or {PREFIX}INTERPRETERS__ONNX=/path/to/python'
        value = os.environ.get(f"{PREFIX}{key.upper()}", "")
        raise ConfigurationError(
            f"{key} = {value!r} (environment variable {PREFIX}{key.upper()}): not readable. Allowed: {allowed}"
        ) from error


def _file(path: Path) -> Layer:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}: give --config an existing TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    for key in values:
        if key not in Settings.model_fields:
            raise ConfigurationError(
                f"{path}: unknown key {key!r}{suggestion(key, Settings.model_fields)}. "
                f"Keys: {', '.join(Settings.model_fields)}"
            )
    return Layer(values, f"file {path}, key {{key}}")


def _explain(error: ValidationError, layers: list[Layer]) -> str:
    # The database's default is made of data_dir: if that is bad, the complaint about the default says nothing.
    details = [detail for detail in error.errors() if detail["type"] != "default_factory_not_called"]
    return "\n".join(_explain_one(detail, layers) for detail in details)


def _explain_one(detail: ErrorDetails, layers: list[Layer]) -> str:
    key = str(detail["loc"][0])
    place = next((layer.place for layer in layers if _holds(layer.values, detail["loc"][:2])), "default")
    place = place.format(key=key, KEY=key.upper(), flag=key.replace("_", "-"))
    value = hide_password(str(detail["input"]))
    why = detail["msg"].removeprefix("Value error, ")
    return f"{key} = {value} ({place}): {why}. Allowed: {Settings.model_fields[key].description}"


def _holds(values: Mapping[str, Any], path: tuple[int | str, ...]) -> bool:
    """Whether a layer gave what an error is about: a key, or an entry of a table."""
    value = values.get(str(path[0]))
    return value is not None and (len(path) == 1 or not isinstance(value, dict) or path[1] in value)


def unknown_variables() -> list[str]:
    """A sentence on each ``TENSORGATE_*`` variable that nothing reads: no error (others may set them), worth a word."""
    known = {key.upper() for key in Settings.model_fields} | {name.removeprefix(PREFIX) for name in CLIENT_VARIABLES}
    keys = {name: name.upper().removeprefix(PREFIX) for name in sorted(os.environ) if name.upper().startswith(PREFIX)}
    return [
        f"environment variable {name} is read by nothing{suggestion(key, known, PREFIX)}"
        for name, key in keys.items()
        if key not in known and not key.startswith("INTERPRETERS__")
    ]
