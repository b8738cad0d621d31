"""``tensorgate device``: list."""

from __future__ import annotations

import typer

from gateway.cli.client import AsJson, Url, connect
from gateway.cli.output import print_json, print_table, size

app = typer.Typer(help="The GPUs of the server's machine.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """The GPUs of the server's machine."""


@app.command("list")
def list_devices(json: AsJson = False, url: Url = None) -> None:
    """All GPUs, with their memory as it is now."""
    answer = connect(url).get("devices")
    if json:
        print_json(answer["devices"])
        return
    print_table(
        ["device", "name", "free", "total", "uuid"],
        [
            (f"cuda:{d['index']}", d["name"], size(d["free_bytes"]), size(d["total_bytes"]), d["uuid"])
            for d in answer["devices"]
        ],
    )
    if not answer["devices"]:
        typer.echo(f"no GPU: {answer['reason']}", err=True)
