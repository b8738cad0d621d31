"""Reads a model's configuration from protobuf text, JSON or TOML into one form: the ``ModelConfig`` message."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from google.protobuf import json_format, text_format

from gateway.proto import POOL
from gateway.proto.model_config_pb2 import ModelConfig

Format = Literal["pbtxt", "json", "toml"]

#: File name suffix -> format.
FORMATS: Final[dict[str, Format]] = {".pbtxt": "pbtxt", ".json": "json", ".toml": "toml"}
MAX_BYTES: Final = 4 << 20

_POSITION: Final = re.compile(r"^\d+:\d+ : ")
_UNKNOWN_FIELD: Final = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>[^"]*)"')
_UNKNOWN_VALUE: Final = re.compile(
    r'Enum type "(?P<text>[\w.]+)" has no value|Invalid enum value \S+ for enum type (?P<json>[\w.]+?) at'
)


class ConfigError(ValueError):
    """A model's configuration cannot be used; the text names file, place, field and the mend."""


def parse_file(path: str | Path) -> ModelConfig:
    """The configuration in a ``.pbtxt``, ``.json`` or ``.toml`` file. Raises ``ConfigError``."""
    path = Path(path)
    form = FORMATS.get(path.suffix)
    if form is None:
        raise ConfigError(f"{path}: cannot tell its format; name it *{', *'.join(FORMATS)}")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes; this is no model configuration")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8 text") from error
    return parse(text, form, source=str(path))


def parse(text: str, form: Format, *, source: str = "config") -> ModelConfig:
    """The configuration in ``text``; ``source`` stands for it in errors. Raises ``ConfigError``."""
    if form == "pbtxt":
        return _parse_pbtxt(text, source)
    try:
        values = json.loads(text, object_pairs_hook=_unique) if form == "json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not valid {form.upper()}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply to be a model configuration") from error
    return from_dict(values, source=source)


def from_dict(values: Mapping[str, object], *, source: str = "config") -> ModelConfig:
    """The configuration in JSON form, with the definition file's field names. Raises ``ConfigError``."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{source}: a model configuration is an object of fields, this is {type(values).__name__}")
    try:
        return json_format.ParseDict(dict(values), ModelConfig(), descriptor_pool=POOL)
    except json_format.ParseError as error:
        text = str(error).split("\n Available Fields")[0]
        raise ConfigError(f"{source}: {text.rstrip('.')}{_hint(text)}") from error


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """The JSON form of what is set, for ``from_dict``."""
    return json_format.MessageToDict(config, preserving_proto_field_name=True, descriptor_pool=POOL)


def _parse_pbtxt(text: str, source: str) -> ModelConfig:
    try:
        return text_format.Parse(text, ModelConfig(), descriptor_pool=POOL)
    except text_format.ParseError as error:
        message = _POSITION.sub("", str(error)).rstrip(".")
        place = f":{error.GetLine()}:{error.GetColumn()}" if error.GetLine() is not None else ""
        raise ConfigError(f"{source}{place}: {message}{_hint(message)}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON allows a key twice and drops the first: a mistake in a configuration."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"key {key!r} is given twice")
        values[key] = value
    return values


def _hint(message: str) -> str:
    """What could have been meant by an unknown field or value."""
    unknown = _UNKNOWN_FIELD.search(message)
    if unknown:
        fields = list(POOL.FindMessageTypeByName(unknown["type"]).fields_by_name)
        near = difflib.get_close_matches(unknown["name"], fields)
        return f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; its fields are {', '.join(fields)}"
    value = _UNKNOWN_VALUE.search(message)
    if value:
        names = POOL.FindEnumTypeByName(value["text"] or value["json"]).values_by_name
        return f"; use one of {', '.join(name for name in names if name != 'TYPE_INVALID')}"
    return ""
