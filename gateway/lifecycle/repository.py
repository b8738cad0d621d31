"""Reads a model repository: a folder of models as Triton lays it out.

    REPOSITORY/NAME/config.pbtxt          optional; config.json and config.toml are read as well
    REPOSITORY/NAME/VERSION/model.onnx    or another artifact; VERSION is 1, 2, 3, ...

Nothing is written, and no model stops another: what cannot be served is a ``Problem`` with its mend.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from backends.spec import FRAMEWORKS
from gateway.modelconfig.parse import FORMATS, ConfigError, parse_file, to_dict
from gateway.modelconfig.render import DEFAULT_FILENAME
from gateway.modelconfig.spec import framework_of, served_versions, to_spec
from gateway.proto.model_config_pb2 import ModelConfig
from gateway.settings.errors import ConfigurationError
from registry.artifacts import resolve
from registry.errors import ArtifactError
from registry.names import is_number, name_problem
from registry.record import NewVersion, Source

log = logging.getLogger("tensorgate.repository")

_CONFIG_NAMES: Final = tuple(f"config{suffix}" for suffix in FORMATS)
#: Suffix of a model file (or folder) -> framework.
_SUFFIX: Final = {
    ".onnx": "onnx",
    ".pt": "torch", ".jit": "torch", ".pt2": "torch", ".safetensors": "torch", ".pth": "torch", ".pkl": "torch",
    ".savedmodel": "tf", ".keras": "tf", ".tflite": "tf", ".h5": "tf",
}  # fmt: skip
#: Frameworks with formats beside the one that Triton has a file name for.
_SEVERAL_FORMATS: Final = ("torch", "tf")
#: A file that makes the folder it lies in a model -> framework.
_MARK: Final = {"saved_model.pb": "tf", "model.safetensors": "torch", "model.safetensors.index.json": "torch"}


class Problem(msgspec.Struct, frozen=True):
    """Why a model, or one version of it (``None``: all), is not served, and what to do."""

    name: str
    version: int | None
    reason: str

    @property
    def label(self) -> str:
        """How logs call it."""
        return self.name if self.version is None else f"{self.name}:{self.version}"


class ScanResult(msgspec.Struct, frozen=True):
    """What a repository offers: the versions that its configurations choose, and what is wrong with the rest."""

    versions: list[NewVersion]
    problems: list[Problem]


class _Unusable(Exception):
    """One version cannot be served; the text is the reason."""


def scan(repository: Path) -> ScanResult:
    """Read the whole repository (digests included: call in a thread).

    Raises ``ConfigurationError`` if the folder itself is missing, is none, or cannot be read.
    """
    result = ScanResult([], [])
    for folder in _folders_of_repository(repository):
        _scan_model(folder, result)
    return result


def framework_of_artifact(path: Path) -> str | None:
    """The framework that a file's suffix, or what lies in a folder, tells; ``None`` if nothing does, or two do.

    Formats that a backend only refuses count too: its refusal says how to convert them.
    """
    if path.is_file():
        return _SUFFIX.get(path.suffix.lower())
    if not path.is_dir():
        return None
    names = [entry.name for entry in path.iterdir()]
    default = {framework for framework, file in DEFAULT_FILENAME.items() if file in names}
    marked = {_MARK[name] for name in names if name in _MARK}
    others = {_SUFFIX[suffix] for name in names if (suffix := Path(name).suffix.lower()) in _SUFFIX}
    for found in (default, marked, others):
        if len(found) == 1:
            return found.pop()
    return None


def _folders_of_repository(repository: Path) -> Iterator[Path]:
    mend = "make it, or name another with --model-repository (setting model_repository)"
    try:
        entries = sorted(repository.iterdir())
    except FileNotFoundError:
        raise ConfigurationError(f"model repository {repository} does not exist: {mend}") from None
    except NotADirectoryError:
        raise ConfigurationError(f"model repository {repository} is a file, and has to be a folder: {mend}") from None
    except OSError as error:
        raise ConfigurationError(f"model repository {repository} cannot be read ({error.strerror}): {mend}") from error
    for entry in entries:
        if not entry.name.startswith(".") and entry.is_dir():
            yield entry
        elif not entry.name.startswith("."):
            log.info("ignored in the model repository: %s is no folder", entry)


def _scan_model(folder: Path, result: ScanResult) -> None:
    """Add what the model's folder offers."""
    try:
        config = _read_config(folder)
        numbers = served_versions(config, _version_numbers(folder))
        framework = framework_of(config)
    except (_Unusable, ConfigError) as error:
        result.problems.append(Problem(folder.name, None, str(error)))
        return
    except OSError as error:
        result.problems.append(Problem(folder.name, None, _unreadable(folder, error)))
        return
    for number in numbers:
        try:
            result.versions.append(_scan_version(folder, number, config, framework))
        except (_Unusable, ConfigError, ArtifactError) as error:
            result.problems.append(Problem(folder.name, number, str(error)))
        except OSError as error:
            result.problems.append(Problem(folder.name, number, _unreadable(folder, error)))


def _unreadable(folder: Path, error: OSError) -> str:
    return f"{error.filename or folder} cannot be read ({error.strerror}): change its owner or mode"


def _read_config(folder: Path) -> ModelConfig:
    trouble = name_problem(folder.name)
    if trouble is not None:
        raise _Unusable(f"the folder's name {trouble}")
    present = [folder / name for name in _CONFIG_NAMES if (folder / name).exists()]
    if len(present) > 1:
        raise _Unusable(f"it has {' and '.join(path.name for path in present)}: keep one of them")
    config = parse_file(present[0]) if present else ModelConfig()
    if config.name and config.name != folder.name:
        raise _Unusable(
            f"{present[0].name} says name {config.name!r}, the folder is called {folder.name!r}: "
            "make them equal, or leave name out"
        )
    return config


def _version_numbers(folder: Path) -> list[int]:
    entries = sorted(path for path in folder.iterdir() if path.name not in _CONFIG_NAMES and path.name[0] != ".")
    numbers = {path: version_number(path.name) if path.is_dir() else None for path in entries}
    others = ", ".join(path.name for path, number in numbers.items() if number is None)
    found = [number for number in numbers.values() if number is not None]
    if not found:
        hint = f" ({others} is no folder called 1, 2, 3, ...)" if others else ""
        raise _Unusable(f"it has no version{hint}: put the model into {folder / '1'}")
    if others:
        log.info("ignored in the folder of model %s, being no folder called 1, 2, 3, ...: %s", folder.name, others)
    return found


def version_number(name: str) -> int | None:
    """The number that a folder's name is: a positive integer without leading zeros; ``None`` for any other name."""
    if name.isascii() and name.isdigit() and not name.startswith("0") and is_number(int(name)):
        return int(name)
    return None


def _scan_version(folder: Path, number: int, config: ModelConfig, framework: str | None) -> NewVersion:
    """One version, digested. Raises ``_Unusable``, ``ConfigError`` or ``ArtifactError``."""
    place = folder / str(number)
    framework = framework or framework_of_artifact(place) or _framework_of_file(place, config)
    if framework not in FRAMEWORKS:
        raise _Unusable(f"framework {framework!r} is not offered by this release: {', '.join(FRAMEWORKS)} are")
    path = _model_file(place, config, framework)
    # Refuses now what a worker would refuse later, and names the field.
    to_spec(config, name=folder.name, version=number, path=str(path), framework=framework)
    started = time.monotonic()
    artifact = resolve(str(place))
    seconds = time.monotonic() - started
    log.info("%s:%d (%s, %d bytes) digested in %.2f s", folder.name, number, framework, artifact.size_bytes, seconds)
    return NewVersion(
        model=folder.name,
        framework=framework,
        artifact=str(place),
        path=str(path),
        digest=artifact.digest,
        size_bytes=artifact.size_bytes,
        number=number,
        source=Source.REPOSITORY,
        config=to_dict(config),
    )


def _framework_of_file(place: Path, config: ModelConfig) -> str:
    """By the configured file's suffix. Raises ``_Unusable`` that tells what to do."""
    framework = _SUFFIX.get(Path(config.default_model_filename).suffix.lower())
    if framework is None:
        expected = " or ".join(file for name, file in DEFAULT_FILENAME.items() if name in FRAMEWORKS)
        raise _Unusable(
            f"{place} has no {expected}{_holds(place)}: copy the model there, or name its backend in the config"
        )
    return framework


def _model_file(place: Path, config: ModelConfig, framework: str) -> Path:
    """The file (or folder) to be loaded, which has to be there and to hold something."""
    name = config.default_model_filename or DEFAULT_FILENAME.get(framework, "")
    path = place / name
    if framework in _SEVERAL_FORMATS and not config.default_model_filename and not path.exists():
        return place  # the backend finds the model in there, whatever its format
    if not path.exists():
        raise _Unusable(
            f"{path} is missing{_holds(place)}: copy the model there (into another name first, then rename it), "
            "or set default_model_filename"
        )
    if path.is_file() and path.stat().st_size == 0:
        raise _Unusable(f"{path} is empty: the copy has not ended, or failed; copy it again")
    return path


def _holds(place: Path) -> str:
    names = sorted(entry.name for entry in place.iterdir())[:5]
    return f" (it holds {', '.join(names)})" if names else " (it is empty)"
