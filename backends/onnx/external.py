"""The rule for external data: a model's weights in files of their own, accepted only inside the model's folder.

onnxruntime refuses the rest by itself in its newer releases and reads it in older ones, where a model from elsewhere
could make the server hand out any file as weights. The rule here holds for every release, and its text names the mend.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from backends.errors import LoadFailed
from backends.onnx.graph import External

_MEND: Final = (
    "put the data file beside the model and save the model with its plain file name "
    "(onnx.save_model(model, path, save_as_external_data=True, location='weights.bin'))"
)


def check(model: Path, external: Iterable[External]) -> None:
    """Raises ``LoadFailed`` that names tensor, location and mend if data lies outside the model's folder, or nowhere.

    A model file that is a symbolic link may also have its data beside the file that it points to (the layout of the
    Hugging Face cache).
    """
    folders = {model.parent.resolve(), model.resolve().parent}
    accepted: set[str] = set()
    for item in external:
        if item.location in accepted:
            continue
        fault = _fault(item.location, model.parent, folders)
        if fault:
            raise LoadFailed(f"tensor {item.tensor!r} has its data at {item.location!r}, which {fault}: {_MEND}")
        accepted.add(item.location)


def _fault(location: str, parent: Path, folders: set[Path]) -> str:
    """What is wrong with a location; "" for nothing."""
    if not location or "\0" in location:
        return "is no file name"
    if Path(location).is_absolute():
        return "is an absolute path; external data must lie inside the model's folder"
    file = (parent / location).resolve()
    if not any(file.is_relative_to(folder) for folder in folders):
        return "is outside of the model's folder"
    return "" if file.is_file() else "does not exist in the model's folder"
