"""Every key of the server's settings: its type, default, limits and description (the help text of its flag too)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from backends.spec import FRAMEWORKS
from gateway.network import is_loopback
from gateway.settings.errors import ConfigurationError, suggestion
from gateway.settings.urls import absolute, sqlite_file
from gateway.sizes import parse_size

PREFIX: Final = "TENSORGATE_"


def _split_paths(value: object) -> object:
    return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value


def _known_framework(name: str) -> str:
    if name not in FRAMEWORKS:
        raise ValueError(f"{name!r} is no framework{suggestion(name, FRAMEWORKS)}")
    return name


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/tensorgate`` (counts only if it is absolute), or else ``~/.local/share/tensorgate``.

    Raises ``ConfigurationError`` for a user without a home.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    if base.startswith("/"):
        return Path(base) / "tensorgate"
    try:
        return Path.home() / ".local" / "share" / "tensorgate"
    except RuntimeError as error:
        raise ConfigurationError(
            "this user has no home folder for the data: set data_dir (--data-dir, TENSORGATE_DATA_DIR)"
        ) from error


def _default_database(validated: dict[str, Any]) -> str:
    return f"sqlite:///{validated['data_dir']}/registry.db"


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
SecondsOrNever = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=1 << 50)]
BytesOrNone = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 50)]


class Settings(BaseSettings):
    """Everything that can be set. Made by ``load``; ``Settings(key=value)`` itself reads no environment and no file."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True, frozen=True, extra="forbid"
    )

    host: str = Field(
        default="127.0.0.1", min_length=1, description="the address to bind, such as 127.0.0.1, ::1 or a name"
    )
    http_port: Port = Field(default=8000, description="an integer from 0 to 65535; 0 takes any free port")
    grpc_port: Port = Field(default=8001, description="an integer from 0 to 65535; 0 takes any free port")
    data_dir: Path = Field(default_factory=default_data_dir, description="a folder that this user can write")
    database: str = Field(
        default_factory=_default_database,
        pattern=r"^[a-z][a-z0-9+]*://",
        description="a database URL, such as sqlite:////var/lib/tensorgate/registry.db",
    )
    model_repository: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_split_paths)] = Field(
        default=(), description="folders of models (NAME/VERSION/model.onnx); the environment separates them with ':'"
    )
    log_format: Literal["text", "json"] = Field(default="text", description="text or json")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    load_timeout_s: Seconds = Field(
        default=300.0, description="seconds a model may take to load: over 0, at most 86400"
    )
    idle_trim_s: SecondsOrNever = Field(
        default=60.0, description="seconds without a request after which a worker gives memory back; 0 (never) to 86400"
    )
    max_loading: int = Field(default=2, ge=1, le=64, description="versions that may load at a time: 1 to 64")
    memory_reserve_bytes: BytesOrNone = Field(
        default=0,
        description="memory that loads leave free, such as 2GiB: they wait until they fit; 0: they wait for each other",
    )
    worker_memory_limit_bytes: BytesOrNone = Field(
        default=0, description="resident memory above which a worker is ended and started again, such as 8GiB; 0: any"
    )
    heartbeat_s: Seconds = Field(
        default=1.0, description="seconds between a worker's heartbeats: over 0, at most 86400"
    )
    heartbeat_timeout_s: Seconds = Field(
        default=30.0,
        description="seconds without a heartbeat after which a worker is ended: over heartbeat_s, at most 86400",
    )
    execution_timeout_s: Seconds = Field(
        default=300.0, description="seconds one execution may take before its worker is ended: over 0, at most 86400"
    )
    drain_timeout_s: Seconds = Field(
        default=30.0,
        description="seconds that requests in flight, and then the workers, get when the server stops: over 0, at most "
        "86400",
    )
    strict_readiness: bool = Field(
        default=True,
        description="true or false; true: the server is ready while every model that ought to run is, and none of a "
        "model repository is broken; false: one that was given up does not count",
    )
    max_waiting: int = Field(
        default=1024, ge=1, le=1_000_000, description="requests that may wait for a version: 1 to 1000000"
    )
    max_json_bytes: Bytes = Field(default=64 << 20, description="the most bytes of JSON in a request, such as 64MiB")
    # A body is held in memory, and anyone may send one: a large tensor fits, and a few of them do not end the server.
    max_body_bytes: Bytes = Field(default=1 << 30, description="the most bytes in a request, such as 1GiB")
    arena_bytes: Annotated[Bytes, Field(ge=1 << 20)] = Field(
        default=1 << 30, description="shared memory for each direction of a worker, 1MiB or more, such as 1GiB"
    )
    interpreters: dict[Annotated[str, AfterValidator(_known_framework)], Path] = Field(
        default_factory=dict, description=f"a Python interpreter for each framework ({', '.join(FRAMEWORKS)})"
    )
    insecure: bool = Field(
        default=False, description="true or false; true lets anyone who reaches a non-loopback host use the models"
    )
    allow_code: bool = Field(
        default=False,
        description="true or false; true lets a model bring code that runs in its worker, such as a Python class",
    )
    frontends: int = Field(default=1, description="1: this release runs one frontend only")

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _absolute_folder(cls, value: Path) -> Path:
        return absolute(value)

    @field_validator("model_repository")
    @classmethod
    def _absolute_folders(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(absolute(path) for path in value))

    @field_validator("interpreters")
    @classmethod
    def _absolute_interpreters(cls, value: dict[str, Path]) -> dict[str, Path]:
        # Not resolved: the python of a virtual environment is a link, and the link is what makes it that environment's.
        return {name: absolute(path) for name, path in value.items()}

    @field_validator("grpc_port")
    @classmethod
    def _another_port(cls, value: int, info: Any) -> int:
        if value and value == info.data.get("http_port"):
            raise ValueError("http_port is the same; the two need a port each")
        return value

    @field_validator("heartbeat_timeout_s")
    @classmethod
    def _longer_than_heartbeat(cls, value: float, info: Any) -> float:
        beat = info.data.get("heartbeat_s", 0.0)
        if value <= beat:
            raise ValueError(f"a worker that beats every {beat:g} s would never be in time")
        return value

    @field_validator("insecure")
    @classmethod
    def _said_aloud(cls, value: bool, info: Any) -> bool:
        host = info.data.get("host", "")
        if host and not value and not is_loopback(host):
            raise ValueError(
                f"host {host!r} is reachable from other machines and inference asks for no key: "
                "bind 127.0.0.1, or say --insecure (TENSORGATE_INSECURE=true)"
            )
        return value

    @field_validator("frontends")
    @classmethod
    def _one_frontend(cls, value: int) -> int:
        if value != 1:
            raise ValueError("several frontends come with a later release")
        return value

    @property
    def admin_key_path(self) -> Path:
        """The file of the administrator's key: beside the database if that is a file, or else in the data folder."""
        file = sqlite_file(self.database)
        return (file.parent if file else self.data_dir) / "admin.key"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the arguments: ``load`` reads the sources one by one, so that an error can tell them apart."""
        return (init_settings,)
