"""Framework name -> backend class, imported late: the table is strings, so nothing here depends on a framework."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Final, NamedTuple

from backends.contract import Backend
from backends.errors import LoadFailed, MissingExtra
from backends.spec import FRAMEWORKS


class _Entry(NamedTuple):
    module: str
    name: str
    package: str  # what has to be importable; "" for none
    install: str


_TABLE: Final = {
    "echo": _Entry("backends.echo", "EchoBackend", "", ""),
    "onnx": _Entry("backends.onnx.backend", "OnnxBackend", "onnxruntime", "pip install 'tensorgate[onnx]'"),
    "torch": _Entry("backends.torch.backend", "TorchBackend", "torch", "pip install 'tensorgate[torch]'"),
    "tf": _Entry("backends.tf.backend", "TfBackend", "tensorflow", "pip install 'tensorgate[tf]'"),
}
assert tuple(_TABLE) == FRAMEWORKS


def create(framework: str) -> Backend:
    """A new backend. Raises ``LoadFailed`` for an unknown name, ``MissingExtra`` if its framework is not installed."""
    entry = _TABLE.get(framework)
    if entry is None:
        raise LoadFailed(f"framework {framework!r} is not known; known are {', '.join(_TABLE)}")
    if not is_installed(framework):
        raise MissingExtra(
            f"framework {framework!r} needs the package {entry.package!r}, which this interpreter does not have: "
            f"{install_line(framework)}"
        )
    backend: Backend = getattr(importlib.import_module(entry.module), entry.name)()
    return backend


def is_installed(framework: str) -> bool:
    """Whether this interpreter can import the framework (found, not imported)."""
    package = _TABLE[framework].package
    return not package or importlib.util.find_spec(package) is not None


def install_line(framework: str) -> str:
    """The command that installs the framework."""
    return _TABLE[framework].install


def package_of(framework: str) -> str:
    """The import package of the framework, "" if it needs none."""
    return _TABLE[framework].package
