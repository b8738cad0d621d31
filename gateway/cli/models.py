"""``tensorgate model``: register, list, show, load, unload."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.cli.client import AsJson, Url, connect
from gateway.cli.errors import CommandFailed
from gateway.cli.following import OnEvent
from gateway.cli.output import load_text, print_json, print_table, size, spinner
from registry.names import check_name, is_number

app = typer.Typer(help="Models and their versions.", no_args_is_help=True)

DEFAULT_WAIT_S: Final = 300.0
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+]*:", re.IGNORECASE)

Name = Annotated[str, typer.Argument(help="The model's name.", show_default=False)]
Version = Annotated[str, typer.Argument(metavar="NAME:VERSION", help="The version, such as m:1.", show_default=False)]
Number = Annotated[
    int | None,
    typer.Argument(metavar="VERSION", help="Its number, after a NAME without one.", min=1, show_default=False),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is done.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait.", min=0.1, max=3600.0)]


@app.command("register")
def register(
    name: Name,
    artifact: Annotated[str, typer.Argument(help="A file, a folder, or a URI such as pkg://package/path.")],
    version: Annotated[int | None, typer.Option(help="Its number; the next one if not given.", min=1)] = None,
    framework: Annotated[str | None, typer.Option(help="Told by the artifact if not given.")] = None,
    config: Annotated[Path | None, typer.Option(help="A ModelConfig: config.pbtxt, .json or .toml.")] = None,
    deploy: Annotated[bool, typer.Option(help="Load it, and on every start.")] = True,
    no_wait: NoWait = False,
    timeout: Timeout = DEFAULT_WAIT_S,
    json: AsJson = False,
    url: Url = None,
) -> None:
    """Register a version of a model: the artifact is loaded once to see that it works, then stored."""
    check_name(name)  # a URL could not carry a bad one
    client = connect(url)
    body = {
        "artifact": _artifact(artifact),
        "framework": framework,
        "version": version,
        "config": _read_config(config) if config else None,
        "deploy": deploy,
    }
    wait_s = timeout if deploy and not no_wait else 0.0
    with spinner(f"registering {name}: the artifact is verified and loaded") as show_stage:
        info = client.post_following(
            "models", name, "versions", on_event=_stages_of(name, version, show_stage), body=body, wait_s=wait_s
        )
    _report(info, f"registered {_label(info)} ({info['framework']}, {size(info['size_bytes'])})", as_json=json)
    if wait_s:
        _expect(info, "ready", timeout)


@app.command("list")
def list_models(json: AsJson = False, url: Url = None) -> None:
    """All models and their versions."""
    answer = connect(url).get("models")
    if json:
        print_json(answer["models"])
        return
    versions = [version for model in answer["models"] for version in model["versions"]]
    print_table(
        ["model", "version", "framework", "state", "size", "source", "reason"],
        [
            (v["model"], v["version"], v["framework"], v["state"], size(v["size_bytes"]), v["source"], v["reason"])
            for v in versions
        ],
    )
    for problem in answer["problems"]:
        where = problem["name"] + (f" version {problem['version']}" if problem["version"] else "")
        typer.echo(f"not served: {where}: {problem['reason']}", err=True)


@app.command("show")
def show(name: Name, json: AsJson = False, url: Url = None) -> None:
    """One model: its versions, what they take and give, their workers."""
    model = connect(url).get("models", name)
    if json:
        print_json(model)
        return
    for version in model["versions"]:
        print_table(["field", "value"], _fields(version), title=f"{_label(version)} is {version['state']}")


@app.command("load")
def load(
    version: Version,
    number: Number = None,
    no_wait: NoWait = False,
    timeout: Timeout = DEFAULT_WAIT_S,
    json: AsJson = False,
    url: Url = None,
) -> None:
    """Load a version, now and on every start."""
    _change("load", *_named(version, number), "ready", 0.0 if no_wait else timeout, as_json=json, url=url)


@app.command("unload")
def unload(
    version: Version,
    number: Number = None,
    no_wait: NoWait = False,
    timeout: Timeout = DEFAULT_WAIT_S,
    json: AsJson = False,
    url: Url = None,
) -> None:
    """Unload a version after its last request; it stays registered."""
    _change("unload", *_named(version, number), "unloaded", 0.0 if no_wait else timeout, as_json=json, url=url)


@app.command("alias")
def alias(
    name: Name,
    alias: Annotated[str, typer.Argument(help="Another name for a version, such as stable.", show_default=False)],
    number: Number = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the name away.")] = False,
    json: AsJson = False,
    url: Url = None,
) -> None:
    """Name a version: requests may give the name in place of its number."""
    if (number is None) is not remove:
        raise typer.BadParameter("give the number of the version that the alias is for, or --remove")
    path = ("models", name, "aliases", alias)
    client = connect(url)
    aliases = (client.delete(*path) if remove else client.put(*path, body={"version": number}))["aliases"]
    if json:
        print_json(aliases)
    else:
        print_table(["alias", "version"], sorted(aliases.items()))


@app.command("delete")
def delete(
    version: Version,
    number: Number = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
) -> None:
    """Delete a version that is not in service. Its files stay where they are, its number is not given again."""
    name, number = _named(version, number)
    if not yes:
        typer.confirm(f"delete {name}:{number}?", abort=True, err=True)
    connect(url).delete("models", name, "versions", str(number))
    print(f"deleted {name}:{number}")


def _named(version: str, number: int | None) -> tuple[str, int]:
    """Name and number, from ``NAME:VERSION`` or from two arguments. A slip is one in usage."""
    if number is not None:
        return version, number
    name, _, digits = version.rpartition(":")  # the last colon: a name may hold some
    if not (name and digits.isascii() and digits.isdigit() and len(digits) < 20 and is_number(int(digits))):
        raise typer.BadParameter(
            f"{version!r} names no version: give NAME:VERSION, such as {version.partition(':')[0] or 'm'}:1 "
            "(`tensorgate model list` shows the numbers)"
        )
    return name, int(digits)


def _change(verb: str, name: str, number: int, target: str, wait_s: float, *, as_json: bool, url: str | None) -> None:
    client = connect(url)
    with spinner(f"{verb}ing {name}:{number}") as show_stage:
        info = client.post_following(
            "models", name, "versions", str(number), verb, on_event=_stages_of(name, number, show_stage), wait_s=wait_s
        )
    _report(info, _label(info), as_json=as_json)
    if wait_s:
        _expect(info, target, wait_s)


def _stages_of(name: str, number: int | None, show_stage: Callable[[str], None]) -> OnEvent:
    """Shows how far the loading of a version is, or of any of the model's if its number is not known yet."""

    def on_event(kind: str, event: dict[str, Any]) -> None:
        if kind != "progress" or event["model"] != name or number not in (None, event["version"]):
            return
        trial = ", on trial" if str(event["worker"]).startswith("probe-") else ""
        show_stage(f"{_label(event)}{trial}: {event['stage']} ({event['number']} of {event['count']})")

    return on_event


def _report(info: Any, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(info)
    else:
        print(f"{text}: {info['state']}")


def _expect(info: Any, target: str, wait_s: float) -> None:
    """Fail unless the version reached the state that was waited for."""
    if info["state"] == target:
        return
    if info["state"] == "failed":
        raise CommandFailed(f"{_label(info)} failed to load: {info['reason']}")
    reason = f" ({info['reason']})" if info["reason"] else ""
    raise CommandFailed(
        f"{_label(info)} is still {info['state']}{reason} after {wait_s:g} s: "
        f"see `tensorgate model show {info['model']}`, or give --timeout more"
    )


def _artifact(text: str) -> str:
    """A path as the server needs it: it may run in another folder."""
    if _SCHEME.match(text) or not text:
        return text
    try:
        return os.path.abspath(Path(text).expanduser())
    except RuntimeError:  # `~nobody`: the server says so
        return text


def _read_config(path: Path) -> dict[str, Any]:
    from gateway.modelconfig.parse import ConfigError, parse_file, to_dict

    try:
        return to_dict(parse_file(path))
    except ConfigError as error:
        raise CommandFailed(str(error)) from error


def _label(info: Any) -> str:
    return f"{info['model']}:{info['version']}"


def _fields(version: Any) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("framework", version["framework"]),
        ("artifact", version["artifact"]),
        ("digest", version["digest"]),
        ("size", size(version["size_bytes"])),
        ("source", version["source"]),
        ("registered", version["created_at"]),
    ]
    if version["reason"]:
        rows.append(("reason", version["reason"]))
    signature = version["signature"] or {"inputs": [], "outputs": []}
    for kind in ("inputs", "outputs"):
        rows += [(kind[:-1], f"{t['name']} {t['datatype']} {t['shape']}") for t in signature[kind]]
    if version["signature"]:
        rows.append(("max batch size", signature["max_batch_size"]))
    for w in version["workers"]:
        loaded = f", loaded {load_text(w['load'])}" if w["load"] else ""
        rows.append((f"worker {w['id']}", f"{w['state']}, pid {w['pid']}, {size(w['rss_bytes'])}{loaded}"))
    return rows
