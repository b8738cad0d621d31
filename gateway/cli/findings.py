"""What ``tensorgate check`` looks at, one function a subject; each gives its findings and raises nothing expected."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from backends.loader import install_line, package_of
from backends.spec import FRAMEWORKS
from gateway.serving.keys import read_admin_key
from gateway.settings import ConfigurationError, Settings, hide_password, sqlite_file, unknown_variables
from registry import schema
from registry.errors import StoreError
from registry.record import NewVersion

#: How long an interpreter may take to import a framework.
IMPORT_TIMEOUT_S: Final = 120
#: Run by a framework's interpreter: what a worker imports, and the framework.
_IMPORTS: Final = """
import importlib, json, platform, sys
found = {"python": platform.python_version(), "version": "", "missing": ""}
for name in sys.argv[1:]:
    try:
        found["version"] = str(getattr(importlib.import_module(name), "__version__", ""))
    except BaseException as error:
        found["missing"] = f"{name}: {type(error).__name__}: {error}"
        break
print(json.dumps(found))
"""


class Finding(msgspec.Struct, frozen=True):
    """``note`` is worth knowing and stops nothing; ``wrong`` has its mend in the text."""

    subject: str
    state: Literal["ok", "note", "wrong"]
    text: str


def environment() -> list[Finding]:
    """Variables with our prefix that nothing reads."""
    return [Finding("environment", "note", f"{name} is read by nothing: a slip?") for name in unknown_variables()]


def folders(settings: Settings) -> list[Finding]:
    """Whether files can be made in the data folder and beside the database, or the folders themselves."""
    file = sqlite_file(settings.database)
    found = [_writable("data folder", "data_dir", settings.data_dir)]
    if file is not None and file.parent != settings.data_dir:
        found.append(_writable("database folder", "database", file.parent))
    return found


def _writable(subject: str, key: str, folder: Path) -> Finding:
    place = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        text = f"{place} is not writable ({error.strerror}): change its owner or mode, or set {key} to another place"
        return Finding(subject, "wrong", text)
    return Finding(subject, "ok", str(folder) if place == folder else f"{folder}, made at the first start")


def admin_key(settings: Settings) -> Finding:
    """Whether the key file is there and private."""
    path = settings.admin_key_path
    try:
        read_admin_key(path)
    except FileNotFoundError:
        return Finding("admin key", "ok", f"{path}, made at the first start")
    except ConfigurationError as error:
        return Finding("admin key", "wrong", str(error))
    return Finding("admin key", "ok", str(path))


async def database(settings: Settings) -> Finding:
    """Whether the database answers, and the state of its schema."""
    url = hide_password(settings.database)
    try:
        found = await schema.current(settings.database)
    except StoreError as error:
        return Finding("database", "wrong", str(error))
    if found is None:
        return Finding("database", "ok", f"{url}, its schema is made at the first start")
    if found == schema.head():
        return Finding("database", "ok", f"{url}, schema revision {found}")
    mend = "`tensorgate migrate` (or the next start) changes that, or says why it cannot"
    return Finding("database", "note", f"{url} has schema revision {found}, this program's is {schema.head()}: {mend}")


def ports(settings: Settings) -> list[Finding]:
    """Whether the ports can be bound."""
    return [_port(settings.host, key, getattr(settings, key)) for key in ("http_port", "grpc_port")]


def _port(host: str, key: str, port: int) -> Finding:
    if port == 0:
        return Finding(key, "ok", "any free port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        flag = f"--{key.replace('_', '-')}"
        text = f"{host}:{port}: {error.strerror}. If that is no tensorgate of yours, stop it, or choose with {flag}"
        return Finding(key, "wrong", text)
    return Finding(key, "ok", f"{host}:{port} is free")


def framework(name: str, settings: Settings, needed: bool) -> Finding:
    """Whether the interpreter of a framework can run its workers; a missing framework matters if it is ``needed``."""
    interpreter = str(settings.interpreters.get(name, sys.executable))
    subject, package = f"framework {name}", package_of(name)
    worker, error = _imports(interpreter, ["msgspec", "numpy", "backends.worker"])
    if error:
        mend = "install tensorgate into that interpreter's environment, or mend interpreters." + name
        return Finding(subject, "wrong", f"{interpreter} cannot run workers: {error}. {mend}")
    found, error = _imports(interpreter, [package]) if package else (worker, "")
    if error:
        state: Literal["note", "wrong"] = "wrong" if needed or name in settings.interpreters else "note"
        return Finding(subject, state, f"{interpreter} has no {package} ({error}). Install: {install_line(name)}")
    version = f"{package} {found['version']}, " if package else ""
    return Finding(subject, "ok", f"{version}Python {found['python']} ({interpreter})")


def _imports(interpreter: str, modules: list[str]) -> tuple[dict[str, str], str]:
    """What the interpreter says after importing ``modules``, and what was wrong ("" if nothing)."""
    # As a worker starts: without the working folder in the path.
    command = [interpreter, "-P", "-c", _IMPORTS, *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False)
        found: dict[str, str] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except OSError as error:
        return {}, f"it cannot be started ({error.strerror})"
    except subprocess.TimeoutExpired:
        return {}, f"importing {modules[-1]} takes over {IMPORT_TIMEOUT_S} s"
    except ValueError:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        return {}, f"it ended with code {done.returncode}: {last or 'no output'}"
    return found, found["missing"]


def frameworks(settings: Settings, needed: Iterable[str]) -> list[Finding]:
    """Every framework of this release."""
    wanted = set(needed)
    return [framework(name, settings, name in wanted) for name in FRAMEWORKS]


async def repository(folder: Path, settings: Settings) -> tuple[list[Finding], set[str]]:
    """Each model of a repository, loaded once; and the frameworks that they need."""
    from gateway.lifecycle.repository import scan

    try:
        result = await asyncio.to_thread(scan, folder)
    except ConfigurationError as error:
        return [Finding("model repository", "wrong", str(error))], set()
    findings = [Finding(f"model {problem.label}", "wrong", problem.reason) for problem in result.problems]
    findings += [await _loads(version, settings) for version in result.versions]
    if not findings:
        findings = [Finding("model repository", "note", f"{folder} has no models")]
    return findings, {version.framework for version in result.versions}


async def _loads(version: NewVersion, settings: Settings) -> Finding:
    from gateway.modelconfig.parse import from_dict
    from gateway.modelconfig.spec import to_spec
    from gateway.workers.replica import NotLoaded, Replica, WorkerLimits

    number = version.number or 0
    subject = f"model {version.model}:{number}"
    spec = to_spec(
        from_dict(version.config), name=version.model, version=number, path=version.path, framework=version.framework
    )
    interpreter = str(settings.interpreters.get(version.framework, sys.executable))
    limits = WorkerLimits(load_timeout_s=settings.load_timeout_s, allow_code=settings.allow_code)
    replica = Replica(f"check-{os.getpid()}", spec, interpreter, limits, lambda: None)
    try:
        ready = await replica.load_once()
    except NotLoaded as error:
        return Finding(subject, "wrong", str(error))
    finally:
        await replica.stop()
    return Finding(subject, "ok", f"{ready.signature.platform}, loads in {ready.load_ns / 1e9:.2f} s")
