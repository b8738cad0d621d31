"""From the path of a version to the artifact, and which kind of model it is."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from backends.errors import LoadFailed

SAVED_MODEL: Final = "SavedModel"
KERAS: Final = ".keras model"
LITE: Final = ".tflite model"

#: The file that makes a folder a SavedModel.
GRAPH_FILE: Final = "saved_model.pb"
#: As Triton calls the SavedModel folder inside of a version.
DEFAULT_FOLDER: Final = "model.savedmodel"

_SUFFIXES: Final = {".keras": KERAS, ".tflite": LITE}
_KNOWN: Final = f"a SavedModel folder (with its {GRAPH_FILE}), a .keras file or a .tflite file"
_MENDS: Final = {
    ".h5": "Keras' old format: load it with Keras and save it as .keras, or export it as a SavedModel",
    ".hdf5": "Keras' old format: load it with Keras and save it as .keras, or export it as a SavedModel",
    ".pb": "a graph without signatures: export the model as a SavedModel",
    ".pbtxt": f"a graph as text: save the model again with {GRAPH_FILE}",
    ".cpb": f"a SavedModel in chunks: save the model again with {GRAPH_FILE}",
}


class Artifact(NamedTuple):
    """A SavedModel folder, or a file of another kind."""

    path: Path
    kind: str


def locate(path: Path) -> Artifact:
    """The artifact: ``path`` itself, or in a folder the only one there; names that begin with ``model.`` win.

    Raises ``LoadFailed`` if there is none, or more than one.
    """
    artifact = _recognise(path)
    if artifact:
        return artifact
    if not path.is_dir():
        raise LoadFailed(_refusal(path))
    found = [each for entry in sorted(path.iterdir()) if (each := _recognise(entry))]
    if len(found) > 1:
        found = [each for each in found if each.path.name.startswith("model.")] or found
    if len(found) == 1:
        return found[0]
    if not found:
        raise LoadFailed(_empty(path))
    names = ", ".join(each.path.name for each in found)
    raise LoadFailed(f"{path} holds several models ({names}); keep one, or give the path of the one to serve")


def _recognise(path: Path) -> Artifact | None:
    if path.is_dir():
        return Artifact(path, SAVED_MODEL) if (path / GRAPH_FILE).is_file() else None
    if not path.is_file():
        return None
    if path.name == GRAPH_FILE:
        return Artifact(path.parent, SAVED_MODEL)
    kind = _SUFFIXES.get(path.suffix.lower())
    return Artifact(path, kind) if kind else None


def _refusal(path: Path) -> str:
    """What is wrong with a path that is neither a folder nor a model."""
    if not path.exists():
        return f"{path} does not exist; give {_KNOWN}"
    mend = _MENDS.get(path.suffix.lower())
    return f"{path.name} is {mend}" if mend else f"{path.name} is no model that TensorFlow serves; give {_KNOWN}"


def _empty(path: Path) -> str:
    """What is wrong with a folder that holds no model."""
    for entry in sorted(path.iterdir()):
        if entry.is_file() and entry.suffix.lower() in _MENDS:
            return f"{path} holds no model but {entry.name}, which is {_MENDS[entry.suffix.lower()]}"
        if entry.name == DEFAULT_FOLDER or (entry.is_dir() and entry.name == "variables"):
            return f"{path} holds {entry.name} and no {GRAPH_FILE} with it: copy the whole SavedModel folder"
    return f"{path} holds no model; put one there as {DEFAULT_FOLDER}/, model.keras or model.tflite"
