"""The command ``tensorgate``: its commands, and what becomes of their errors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gateway.cli import check, demo, devices, models, serve, traffic, workers
from gateway.cli.errors import EXPECTED, explain

app = typer.Typer(
    name="tensorgate",
    help="One gateway in front of models of every framework.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models.app, name="model")
app.add_typer(workers.app, name="worker")
app.add_typer(devices.app, name="device")
app.add_typer(traffic.app, name="traffic")
app.command()(traffic.rollback)
app.command()(serve.serve)
app.command()(demo.demo)
app.command()(check.check)
app.command()(serve.migrate)


def _show_version(wanted: bool) -> None:
    if wanted:
        from gateway.serving.dataplane import server_version

        print(f"tensorgate {server_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """One gateway in front of models of every framework."""


def run() -> None:
    """Run the command line. Errors that are to be expected end in one line on stderr and exit code 1."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone: nothing more to say, and nothing to flush at exit.
        sys.stdout = None
        sys.exit(1)
    except EXPECTED as error:
        print(f"tensorgate: {explain(error)}", file=sys.stderr)
        sys.exit(1)
