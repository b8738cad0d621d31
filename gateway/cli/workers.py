"""``tensorgate worker``: list, restart."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from gateway.cli.client import AsJson, Url, connect
from gateway.cli.output import print_json, print_table, size

app = typer.Typer(help="The processes that run the models.", no_args_is_help=True)


@app.command("list")
def list_workers(json: AsJson = False, url: Url = None) -> None:
    """All workers of the server."""
    workers = connect(url).get("workers")["workers"]
    if json:
        print_json(workers)
        return
    print_table(
        ["id", "framework", "state", "pid", "memory", "model's", "loaded in", "restarts", "since", "reason"],
        [
            (
                *(w[key] for key in ("id", "framework", "state", "pid")),
                size(w["rss_bytes"]),
                size(w["load"]["model_bytes"]) if w["load"] else "",
                f"{w['load']['total_s']:.2f} s" if w["load"] else "",
                w["restarts"],
                _local_time(w["started_at"]),
                w["reason"],
            )
            for w in workers
        ],
    )


@app.command("restart")
def restart(id: Annotated[str, typer.Argument(help="As `worker list` shows it.")], url: Url = None) -> None:
    """End a worker at once; a new one takes its place."""
    connect(url).post("workers", id, "restart")
    print(f"worker {id} is restarting")


def _local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds") if seconds else ""
