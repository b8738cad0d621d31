"""``tensorgate check``: what is wrong with the settings, the environment and the model folders, and the mend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import typer

from gateway.cli.client import AsJson
from gateway.cli.output import print_json, print_table, spinner
from gateway.cli.serve import Config, Database, DataDir, GrpcPort, Host, HttpPort, ModelRepository
from gateway.settings.errors import ConfigurationError
from gateway.settings.schema import Settings
from gateway.settings.sources import load

if TYPE_CHECKING:
    from gateway.cli.findings import Finding


def check(
    config: Config = None,
    model_repository: ModelRepository = None,
    database: Database = None,
    data_dir: DataDir = None,
    host: Host = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    json: AsJson = False,
) -> None:
    """Look at everything that `serve` needs, models included, and say what is wrong. Exit code 1 if anything is."""
    flags = {key: value for key, value in locals().items() if key in Settings.model_fields}
    with spinner("checking"):
        found = _findings(lambda: load(flags, config))
    if json:
        print_json(msgspec.to_builtins(found))
    else:
        print_table(["subject", "state", "what"], [(one.subject, one.state, one.text) for one in found])
    raise typer.Exit(int(any(one.state == "wrong" for one in found)))


def _findings(read: Callable[[], Settings]) -> list[Finding]:
    from gateway.cli.findings import Finding, environment

    try:
        settings = read()
    except ConfigurationError as error:
        return [*(Finding("settings", "wrong", line) for line in str(error).splitlines()), *environment()]
    first = Finding("settings", "ok", "every value is acceptable")
    return [first, *environment(), *asyncio.run(_of_settings(settings))]


async def _of_settings(settings: Settings) -> list[Finding]:
    from gateway.cli import findings

    models: list[Finding] = []
    needed: set[str] = set()
    for folder in settings.model_repository:
        more, frameworks = await findings.repository(folder, settings)
        models += more
        needed |= frameworks
    return [
        *findings.folders(settings),
        findings.admin_key(settings),
        await findings.database(settings),
        *await findings.registry(settings, settings.model_repository),
        *await asyncio.to_thread(findings.ports, settings),
        *await asyncio.to_thread(findings.frameworks, settings, needed),
        *await asyncio.to_thread(findings.devices),
        *models,
    ]
