"""From the path of a version to the model file, and what that says about itself."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from backends.errors import LoadFailed
from backends.onnx import graph

DEFAULT_NAME: Final = "model.onnx"


def locate(path: Path) -> Path:
    """The model file: ``path`` itself, or in a folder ``model.onnx``, or the only ``.onnx`` there.

    Raises ``LoadFailed`` if there is none, or more than one.
    """
    if not path.is_dir():
        if not path.is_file():
            raise LoadFailed(f"{path} does not exist, or is no file; give a .onnx file or a folder that holds one")
        return path
    default = path / DEFAULT_NAME
    if default.exists():
        return locate(default)  # Triton allows a folder of that name around model and weights
    found = sorted(entry for entry in path.glob("*.onnx") if entry.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        raise LoadFailed(f"{path} holds no .onnx file; put the model there as {DEFAULT_NAME}")
    names = ", ".join(entry.name for entry in found)
    raise LoadFailed(f"{path} holds several models ({names}); keep one, or call the one to serve {DEFAULT_NAME}")


def inspect(model: Path) -> graph.Facts:
    """What the file says about itself. Raises ``LoadFailed`` if it cannot be read or is no ONNX model."""
    try:
        with model.open("rb") as file:
            # never closed by hand: the traceback of a failure may still hold views; it is unmapped with the last one
            return graph.read(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except OSError as error:
        raise LoadFailed(f"{model} cannot be read: {error.strerror}") from error
    except ValueError as error:  # of mmap, for an empty file, or of the reader
        raise LoadFailed(not_onnx(model, str(error))) from error


def not_onnx(model: Path, reason: str) -> str:
    """The text for a file that is something else, or half of one."""
    return f"{model.name} is no ONNX model, or only a part of one ({reason}); copy the whole file, or export it again"
