"""What is inside of a ``.keras`` file, looked at before Keras does. Pure: imports no framework.

Keras' safe mode refuses code too, each release in more places than the one before. This rule is the same for every
release, is applied before anything is built, and its text names the layer and the mend.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from backends.errors import LoadFailed

_CONFIG: Final = "config.json"
_METADATA: Final = "metadata.json"
_WEIGHTS: Final = ("model.weights.h5", "model.weights.npz")
#: Keras stores what it packs as it is. Some tools compress, which makes weights a little smaller and never much.
_MOST_EXPANSION: Final = 20
_ALWAYS_ALLOWED_BYTES: Final = 64 << 20
_MOST_MEMBERS: Final = 10_000
_MOST_CONFIG_BYTES: Final = 64 << 20
#: Layers of Keras that hold Python code, or load something else that is not looked at.
_CODE: Final = frozenset({"Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"})
_MEND: Final = "export the model where its code is, as a SavedModel (model.export(path)), which needs none"


def check(file: Path) -> str:
    """The version of Keras that wrote the file, "" if it does not say.

    Raises ``LoadFailed`` if it is no Keras model or only a part of one, would unpack to far more than it is, or needs
    Python code.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            _check_sizes(file, archive)
            config = json.loads(archive.read(_CONFIG))
            metadata = json.loads(archive.read(_METADATA)) if _METADATA in archive.namelist() else {}
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, RecursionError, NotImplementedError) as error:
        raise LoadFailed(
            f"{file.name} is no Keras 3 model, or only a part of one ({error}); copy the whole file, or save it again"
        ) from error
    except OSError as error:
        raise LoadFailed(f"{file} cannot be read: {error.strerror or error}") from error
    if isinstance(config, dict):
        config.pop("compile_config", None)  # of training; it is not read
    _check_code(config)
    return str(metadata.get("keras_version", "")) if isinstance(metadata, dict) else ""


def _check_sizes(file: Path, archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise LoadFailed(f"{file.name} holds {len(members)} files; a Keras model holds at most {_MOST_MEMBERS}")
    for member in members:
        if member.filename.startswith("/") or ".." in Path(member.filename).parts:
            raise LoadFailed(f"{file.name} holds {member.filename!r}, which leads out of it: save the model again")
    unpacked, packed = sum(member.file_size for member in members), file.stat().st_size
    if unpacked > max(_ALWAYS_ALLOWED_BYTES, _MOST_EXPANSION * packed):
        raise LoadFailed(
            f"{file.name} has {packed} bytes and would unpack to {unpacked}, more than {_MOST_EXPANSION} times as "
            "much, as no model does: save it again with model.save(path)"
        )
    if archive.getinfo(_CONFIG).file_size > _MOST_CONFIG_BYTES:
        raise LoadFailed(f"{file.name}: {_CONFIG} has more than {_MOST_CONFIG_BYTES} bytes: save the model again")
    if not any(name in archive.namelist() for name in _WEIGHTS):
        raise KeyError(f"there is no {_WEIGHTS[0]} in it")


def _check_code(config: Any) -> None:
    for entry in _objects(config):
        kind, module = entry["class_name"], entry.get("module")
        inner = entry.get("config")
        name = inner.get("name", "") if isinstance(inner, dict) else ""
        place = f" (named {name!r})" if name else ""
        if kind in _CODE:
            raise LoadFailed(f"the model has a {kind} layer{place}, which is Python code and is not run here: {_MEND}")
        if kind == "function" and module == "builtins" and isinstance(inner, str):
            continue  # an activation by its name; Keras looks it up among its own
        own = module is None or (isinstance(module, str) and module.partition(".")[0] in ("keras", "builtins"))
        registered = entry.get("registered_name")
        if not own or (registered and kind not in (registered, "function")):
            raise LoadFailed(
                f"the model has {kind!r}{place} of {module or registered!r}, which is no part of Keras, and code from "
                f"elsewhere is not run here: {_MEND}"
            )


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Every serialised object in a configuration, at whatever depth."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("class_name"), str):
                yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
