"""What ``tensorgate check`` looks at, one function a subject; each gives its findings and raises nothing expected."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from backends.loader import install_line, package_of
from backends.spec import FRAMEWORKS
from gateway.cli.output import size
from gateway.network import bind, endpoint
from gateway.placement.nvml import Nvml
from gateway.serving.dataplane import SERVER_NAME
from gateway.serving.keys import read_admin_key
from gateway.settings.errors import ConfigurationError
from gateway.settings.schema import Settings
from gateway.settings.sources import unknown_variables
from gateway.settings.urls import hide_password, sqlite_file
from gateway.workers.interpreter import command
from registry import schema
from registry.errors import StoreError
from registry.record import ModelVersion, NewVersion, Source

#: How long an interpreter may take to import a framework.
IMPORT_TIMEOUT_S: Final = 120
#: How long a server on one of our ports may take to say what it is.
_ANSWER_TIMEOUT_S: Final = 2.0
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
    return [Finding("environment", "note", text) for text in unknown_variables()]


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


async def registry(settings: Settings, folders: Iterable[Path]) -> list[Finding]:
    """Every registered version, but those of ``folders``, which ``repository`` looks at. Nothing is written.

    A registry that the first start makes, an older schema, and a database that does not answer are ``database``'s.
    """
    from registry.sql import SqlModelStore

    if not await _is_current(settings.database):
        return []
    store = SqlModelStore(settings.database)
    try:
        await store.open()
        versions = [version for model in await store.models() for version in model.versions]
    except StoreError as error:
        return [Finding("registry", "wrong", str(error))]
    finally:
        await store.close()
    return [await _registered(version) for version in versions if not _is_of(version, folders)]


async def _is_current(url: str) -> bool:
    try:
        return await schema.current(url) == schema.head()
    except StoreError:
        return False


def _is_of(version: ModelVersion, folders: Iterable[Path]) -> bool:
    return version.source is Source.REPOSITORY and any(map(Path(version.artifact).is_relative_to, folders))


async def _registered(version: ModelVersion) -> Finding:
    from gateway.lifecycle import content

    subject = f"registered {version.model}:{version.number}"
    trouble = await asyncio.to_thread(content.trouble, version)
    if not trouble:
        wanted = "ought to run" if version.desired else "is not to run"
        return Finding(subject, "ok", f"{version.artifact} ({version.framework}) is what was registered, and {wanted}")
    if version.source is Source.REPOSITORY:
        return Finding(
            subject, "note", f"of a model repository that is not named now, so the next start drops it: {trouble}"
        )
    if not version.desired:
        return Finding(subject, "note", f"{trouble}. It is not to run, so this stops nothing")
    unload = f"`tensorgate model unload {version.model}:{version.number}`"
    return Finding(subject, "wrong", f"{trouble}. If it is not needed any more: {unload}")


def ports(settings: Settings) -> list[Finding]:
    """Whether the ports can be bound; one that a tensorgate has is no fault, something else there is."""
    return [
        _port("http_port", settings.host, settings.http_port, _who_serves_rest),
        _port("grpc_port", settings.host, settings.grpc_port, _who_serves_grpc),
    ]


def _port(key: str, host: str, port: int, who: Callable[[str], str]) -> Finding:
    if port == 0:
        return Finding(key, "ok", "any free port")
    address = endpoint(host, port)
    try:
        bind(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and who(address) == SERVER_NAME:
            return Finding(key, "note", f"{address}: a tensorgate answers there; a second server needs another port")
        stop = "stop what uses it, which is no tensorgate, or " if error.errno == errno.EADDRINUSE else ""
        flag = f"--{key.replace('_', '-')}"
        return Finding(key, "wrong", f"{address}: {error.strerror}: {stop}choose with {flag}")
    return Finding(key, "ok", f"{address} is free")


def _who_serves_rest(address: str) -> str:
    """The name that the server there gives; "" if it is no inference server."""
    import httpx

    try:
        answer = httpx.get(f"http://{address}/v2", trust_env=False, timeout=_ANSWER_TIMEOUT_S).json()
    except (httpx.HTTPError, ValueError):
        return ""
    return str(answer.get("name", "")) if isinstance(answer, dict) else ""


def _who_serves_grpc(address: str) -> str:
    import grpc

    from gateway.proto import SERVICE
    from gateway.proto.inference_pb2 import ServerMetadataRequest, ServerMetadataResponse

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/ServerMetadata",
            request_serializer=ServerMetadataRequest.SerializeToString,
            response_deserializer=ServerMetadataResponse.FromString,
        )
        try:
            return str(ask(ServerMetadataRequest(), timeout=_ANSWER_TIMEOUT_S).name)
        except grpc.RpcError:
            return ""


def devices() -> list[Finding]:
    """The GPUs, or why there are none, which stops nothing."""
    inventory = Nvml()()
    return [
        Finding("device " + each.label, "ok", f"{each.name}, {size(each.free_bytes)} of {size(each.total_bytes)} free")
        for each in inventory.devices
    ] or [Finding("devices", "note", f"no GPU: {inventory.reason or 'the driver knows of none'}")]


def framework(name: str, settings: Settings, needed: bool) -> Finding:
    """Whether the interpreter of a framework can run its workers; a missing framework matters if it is ``needed``."""
    interpreter = str(settings.interpreters.get(name, sys.executable))
    subject, package = f"framework {name}", package_of(name)
    worker, error = _imports(interpreter, ["msgspec", "numpy", "backends.worker"])
    if error:
        mend = f"install numpy and msgspec for that interpreter (Python 3.11 or newer), or mend interpreters.{name}"
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
    try:
        done = subprocess.run(
            [*command(interpreter, _IMPORTS), *modules],
            capture_output=True,
            text=True,
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
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
    return Finding(subject, "ok", f"{ready.signature.platform}, loads in {ready.load.total_ns / 1e9:.2f} s")
