"""``tensorgate traffic`` and ``tensorgate rollback``: how a model's requests are shared among its versions."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from gateway.cli.client import AsJson, Url, connect
from gateway.cli.models import DEFAULT_WAIT_S, Name, Timeout
from gateway.cli.output import print_json, print_table, spinner

app = typer.Typer(help="How a model's requests are shared among its versions.", no_args_is_help=True)

Force = Annotated[bool, typer.Option("--force", help="Do not wait until the versions are ready.")]
Expect = Annotated[
    int | None, typer.Option("--expect", help="Change nothing unless this revision is in force.", metavar="REVISION")
]
_LIMIT = 50


@app.command("show")
def show(name: Name, json: AsJson = False, url: Url = None) -> None:
    """The split in force."""
    _print(connect(url).get("models", name, "traffic"), as_json=json)


@app.command("set")
def set_traffic(
    name: Name,
    weights: Annotated[list[str], typer.Argument(metavar="VERSION=WEIGHT...", help="Such as 1=90 2=10.")],
    sticky: Annotated[
        str, typer.Option(help="What keeps a client with its version: header:NAME, parameter:NAME or key.")
    ] = "",
    shadow: Annotated[
        list[str] | None,
        typer.Option(help="A version that gets copies: VERSION, or VERSION=PERCENT.", metavar="VERSION[=PERCENT]"),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Requests with this header go to the version.", metavar="HEADER=VALUE:VERSION"),
    ] = None,
    note: Annotated[str, typer.Option(help="Why, for the history.")] = "",
    expect: Expect = None,
    force: Force = False,
    timeout: Timeout = DEFAULT_WAIT_S,
    json: AsJson = False,
    url: Url = None,
) -> None:
    """Share requests anew, from the next one on. Versions that are needed are loaded first."""
    shadows = [_pair(text, "--shadow", 100.0) for text in shadow or ()]
    body = {
        "weights": dict(_pair(text, "VERSION=WEIGHT") for text in weights),
        "sticky": sticky,
        "rules": [_rule(text) for text in rule or ()],
        "shadows": [{"version": version, "percent": percent} for version, percent in shadows],
        "note": note,
        "expected_revision": expect,
        "force": force,
    }
    client = connect(url)
    with spinner(f"sharing the requests of {name}"):
        info = client.put("models", name, "traffic", body=body, wait_s=timeout, timeout_s=None)
    _print(info, as_json=json)


@app.command("clear")
def clear(name: Name, note: str = "", expect: Expect = None, json: AsJson = False, url: Url = None) -> None:
    """Share nothing: all requests go to the greatest version that is ready, as at first."""
    body = {"weights": None, "note": note, "expected_revision": expect}
    _print(connect(url).put("models", name, "traffic", body=body), as_json=json)


@app.command("history")
def history(
    name: Name,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)] = _LIMIT,
    before: Annotated[int | None, typer.Option(help="Only revisions before this one.", metavar="REVISION")] = None,
    json: AsJson = False,
    url: Url = None,
) -> None:
    """Every split there ever was, the newest first."""
    page = {"limit": limit} | ({} if before is None else {"before": before})
    revisions = connect(url).get("models", name, "traffic", "history", params=page)["revisions"]
    if json:
        print_json(revisions)
        return
    print_table(
        ["revision", "when", "who", "shares", "note"],
        [(r["revision"], r["created_at"], r["author"], _shares(r), r["note"]) for r in revisions],
    )


@app.command("shadows")
def shadows(name: Name, json: AsJson = False, url: Url = None) -> None:
    """How the answers of shadows compare with those that clients got."""
    found = connect(url).get("models", name, "traffic", "shadows")["shadows"]
    if json:
        print_json(found)
        return
    counts = ("equal", "different", "incomparable", "failed", "dropped")
    print_table(
        ["version", "percent", *counts, "original ms", "copy ms"],
        [
            (s["version"], s["percent"], *(s[count] for count in counts), _ms(s["original_ms"]), _ms(s["copy_ms"]))
            for s in found
        ],
    )


def rollback(
    name: Name,
    to: Annotated[
        int | None, typer.Option("--to", help="The revision; by default the one before.", metavar="REVISION")
    ] = None,
    expect: Expect = None,
    force: Force = False,
    timeout: Timeout = DEFAULT_WAIT_S,
    json: AsJson = False,
    url: Url = None,
) -> None:
    """Share the requests of a model as an earlier revision did, from the next request on."""
    client = connect(url)
    body = {"to": to, "expected_revision": expect, "force": force}
    with spinner(f"rolling {name} back"):
        info = client.post("models", name, "rollback", body=body, wait_s=timeout, timeout_s=None)
    _print(info, as_json=json)


def _pair(text: str, field: str, default: float | None = None) -> tuple[int, float]:
    version, given, number = text.partition("=")
    value = default if default is not None and not given else _number(number)
    if not (version.isascii() and version.isdigit() and len(version) < 20) or value is None:
        raise typer.BadParameter(f"{text!r} is no {field}: give a version's number and a number, such as 2=10")
    return int(version), value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None  # JSON has no other


def _rule(text: str) -> dict[str, Any]:
    condition, _, version = text.rpartition(":")
    header, given, value = condition.partition("=")
    if not (given and version.isascii() and version.isdigit() and len(version) < 20):
        raise typer.BadParameter(f"{text!r} is no rule: give HEADER=VALUE:VERSION, such as x-beta=yes:2")
    return {"header": header, "value": value, "version": int(version)}


def _print(info: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    if not info["shares"]:
        print(f"{info['model']}: revision {info['revision']}, all requests go to the greatest version that is ready")
        return
    sticky = f", sticky by {info['sticky']}" if info["sticky"] else ""
    print(f"{info['model']}: revision {info['revision']}{sticky}")
    shares = [(f"version {s['version']}", f"{s['percent']:.4g} %", f"weight {s['weight']:g}") for s in info["shares"]]
    rules = [(f"version {r['version']}", "rule", f"{r['header']} = {r['value']}") for r in info["rules"]]
    shadows = [(f"version {s['version']}", "shadow", f"copies of {s['percent']:g} %") for s in info["shadows"]]
    print_table(["to", "share", "because"], [*rules, *shares, *shadows])


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _shares(revision: Any) -> str:
    parts = [f"{share['version']}={share['weight']:g}" for share in revision["shares"]]
    parts += [f"{rule['header']}={rule['value']}:{rule['version']}" for rule in revision["rules"]]
    parts += [f"sticky {revision['sticky']}"] if revision["sticky"] else []
    parts += [f"shadow {shadow['version']}={shadow['percent']:g}" for shadow in revision["shadows"]]
    return " ".join(parts) or "greatest version"
