"""``tensorgate demo``: a tour on real models."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.cli.errors import CommandFailed
from gateway.cli.serve import Config, Database, DataDir, GrpcPort, Host, HttpPort
from gateway.settings.schema import Settings, default_data_dir
from gateway.settings.sources import load

if TYPE_CHECKING:
    from gateway.cli.tour.packages import Packages
    from gateway.cli.tour.server import Server

#: "hello world" in MiniLM's vocabulary, for the curl command.
_TOKENS: Final = [101, 7592, 2088, 102]


def demo(
    config: Config = None,
    host: Host = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    data_dir: DataDir = None,
    database: Database = None,
    exit: Annotated[bool, typer.Option("--exit", help="Stop at the end instead of leaving the server up.")] = False,
) -> None:
    """Run real models over REST and gRPC, then leave the server up.

    They tell the types of files, compare sentences, find speech and transcribe music; the two that listen run in two
    frameworks each, which are compared. What is not installed is named and left out.

    Exit code 0 only if every answer was right. The demo keeps its models apart from yours: in the folder `demo` of the
    data folder, unless told otherwise.
    """
    flags = {key: value for key, value in locals().items() if key in Settings.model_fields}
    from gateway.cli.tour import packages, server

    found = packages.find()
    settings = _settings(flags, config)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background job inherits it as ignored
    print(f"starting a server; its log: {settings.data_dir / server.LOG_NAME}", flush=True)
    with server.running(settings, config) as running:
        right = _tour(running, settings, found)
        if not exit:
            _leave_up(running, settings)
    if not right:
        raise CommandFailed("some answers of the demo were not as they ought to be: see the tables above")


def _settings(flags: dict[str, Any], config: Path | None) -> Settings:
    """The settings of the demo's server, with the ports that it will have."""
    from gateway.cli.tour.server import free_port

    first = load(flags, config)
    if first.data_dir == default_data_dir():
        flags = {**flags, "data_dir": first.data_dir / "demo"}
    ports = {key: getattr(first, key) for key in ("http_port", "grpc_port")}
    for key, port in ports.items():
        if port == 0 or not flags[key]:  # a port that was asked for is that port, or the server's error
            ports[key] = free_port(first.host, port)
    return load({**flags, **ports}, config)


def _tour(running: Server, settings: Settings, found: Packages) -> bool:
    """All steps; whether everything was right."""
    from backends.loader import is_installed
    from gateway.cli.client import AdminClient
    from gateway.cli.tour import listening, models, steps
    from gateway.cli.tour.calls import Caller
    from gateway.serving.keys import read_admin_key
    from gateway.settings.urls import sqlite_file

    served = models.served(lambda framework: framework in settings.interpreters or is_installed(framework))
    models.register(AdminClient(running.http_url, read_admin_key(settings.admin_key_path)), served)
    caller = Caller(running.http_url, running.grpc_address)
    try:
        right = [
            steps.classify(caller, found, sqlite_file(settings.database)),
            steps.compare(caller, found),
            listening.find_speech(caller, served),
            listening.transcribe(caller, served),
        ]
    finally:
        caller.close()
    return all(right)


def _leave_up(running: Server, settings: Settings) -> None:
    """Show how to go on, then wait for Ctrl-C (or the server's own end)."""
    print(_next_commands(running, settings), flush=True)
    try:
        code = running.process.wait()
    except KeyboardInterrupt:
        print("\nstopping the server")
        return
    raise CommandFailed(f"the server ended with code {code}: see {running.log_file}")


def _next_commands(running: Server, settings: Settings) -> str:
    tensor = {"name": "", "shape": [1, len(_TOKENS)], "datatype": "INT64", "data": _TOKENS}
    ones, zeros = [1] * len(_TOKENS), [0] * len(_TOKENS)
    inputs = [
        tensor | {"name": "input_ids"},
        tensor | {"name": "attention_mask", "data": ones},
        tensor | {"name": "token_type_ids", "data": zeros},
    ]
    body = shlex.quote(json.dumps({"inputs": inputs}))
    url, command = running.http_url, _command()
    return f"""
The server stays up: REST {url}, gRPC {running.grpc_address}. Ctrl-C stops it. Try, in another terminal:

  export TENSORGATE_URL={url} TENSORGATE_DATA_DIR={shlex.quote(str(settings.data_dir))}
  {command} model list
  {command} worker list
  curl -i {url}/v2/health/ready
  curl {url}/v2/models/minilm
  curl -s {url}/v2/models/minilm/infer -d {body} | head -c 300
"""


def _command() -> str:
    """This program as another terminal finds it, whether or not its virtual environment is active there."""
    script = Path(sys.executable).with_name("tensorgate")  # not resolved: its folder is the virtual environment's
    return shlex.quote(str(script)) if script.is_file() else f"{shlex.quote(sys.executable)} -P -m gateway"
