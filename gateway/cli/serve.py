"""``tensorgate serve`` and ``tensorgate migrate``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from gateway.settings.schema import Settings
from gateway.settings.sources import load
from gateway.settings.urls import hide_password
from gateway.telemetry import logs


def _flag(key: str, *names: str) -> typer.models.OptionInfo:
    """An option for the setting ``key``, whose description is the help; it has no default, the settings do."""
    help_text = (Settings.model_fields[key].description or "").replace("[", r"\[")
    option: typer.models.OptionInfo = typer.Option(*names, help=help_text, show_default=False)
    return option


Config = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.", show_default=False)]
Database = Annotated[str | None, _flag("database", "--database")]
DataDir = Annotated[Path | None, _flag("data_dir", "--data-dir")]
Host = Annotated[str | None, _flag("host", "--host")]
# Numbers stay text here: the settings say what is allowed, with the place that a bad one came from.
HttpPort = Annotated[str | None, _flag("http_port", "--http-port")]
GrpcPort = Annotated[str | None, _flag("grpc_port", "--grpc-port")]
ModelRepository = Annotated[list[Path] | None, _flag("model_repository", "--model-repository")]


def serve(
    config: Config = None,
    host: Host = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    database: Database = None,
    data_dir: DataDir = None,
    model_repository: ModelRepository = None,
    frontends: Annotated[str | None, _flag("frontends", "--frontends")] = None,
    log_format: Annotated[str | None, _flag("log_format", "--log-format")] = None,
    log_level: Annotated[str | None, _flag("log_level", "--log-level")] = None,
    insecure: Annotated[bool | None, _flag("insecure", "--insecure")] = None,
    allow_code: Annotated[bool | None, _flag("allow_code", "--allow-code")] = None,
) -> None:
    """Serve models over REST and gRPC until SIGTERM or Ctrl-C."""
    flags = {key: value for key, value in locals().items() if key in Settings.model_fields}
    settings = load(flags, config)
    logs.configure(settings.log_format, settings.log_level)
    from gateway import server

    raise typer.Exit(server.serve(settings))


def migrate(config: Config = None, database: Database = None) -> None:
    """Bring the database's schema up to date (`serve` does this too)."""
    from registry import schema

    url = load({"database": database}, config).database

    async def run() -> str | None:
        before = await schema.current(url)
        await schema.upgrade(url)
        return before

    before, after = asyncio.run(run()), schema.head()
    change = f"is at revision {after} already" if before == after else f"went from {before or 'no schema'} to {after}"
    print(f"{hide_password(url)} {change}")
