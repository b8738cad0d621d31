"""From the path of a version to what is to be loaded, and of which kind it is. Files are told by their content.

Whatever would have to be unpickled is refused here, before any of it is looked at: a pickle is a program.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, Final

import msgspec

from backends.errors import LoadFailed
from backends.torch.archive import Archive
from backends.torch.options import AOTINDUCTOR, CLASS, EXPORTED, TORCHSCRIPT, TRANSFORMERS, Options

#: A file of one of these names is the model of its folder, whatever else lies beside it.
DEFAULT_NAMES: Final = ("model.pt2", "model.pt", "model.jit")
CONFIG: Final = "config.json"
_HEAD: Final = 512
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_PICKLE_NAMES: Final = (".bin", ".ckpt", ".pickle", ".pkl", ".pth")
#: Whose work some other files are.
_FOREIGN: Final = {b"GGUF": "a GGUF file", b"\x89HDF": "an HDF5 (Keras) file", b"\x08": "an ONNX file, it seems"}

HOW_TO_CONVERT: Final = (
    "Convert it once, where you trust it:\n"
    "  torch.export:  torch.export.save(torch.export.export(model.eval(), (example,)), 'model.pt2')\n"
    "  TorchScript:   torch.jit.script(model.eval()).save('model.pt')\n"
    "  safetensors:   model.save_pretrained('folder')  # a model of transformers; writes config.json as well\n"
    "  or serve its class: put model.py beside the weights, and set the options class and allow_code"
)


class Artifact(msgspec.Struct):
    """What to load: ``path`` is the file, or the folder of a transformers model or a class."""

    kind: str
    path: Path
    archive: Any = None


def locate(path: Path, chosen: Options) -> Artifact:
    """The model at ``path``: the file itself, or in a folder the one that has a default name, or the only one.

    Raises ``LoadFailed`` if there is none, more than one, or something that has to be unpickled or is not torch's.
    """
    if chosen.class_name:
        if not path.is_dir():
            raise LoadFailed(f"option class is set, and {path} is no folder: give the folder that holds the class")
        return Artifact(CLASS, path)
    if not path.is_dir():
        if not path.is_file():
            raise LoadFailed(f"{path} does not exist, or is no file; give a model file or a folder that holds one")
        return _of_file(path)
    named = [path / name for name in DEFAULT_NAMES if (path / name).exists()]
    if len(named) == 1:
        return locate(named[0], chosen)  # Triton allows a folder of that name around the model
    if named:
        raise LoadFailed(_several(path, [entry.name for entry in named]))
    return _search(path)


def _search(folder: Path) -> Artifact:
    files = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    heads = {entry: _head(entry) for entry in files}
    archives = [entry for entry in files if heads[entry].startswith(_ZIP) and not _is_state(entry)]
    is_transformers = _is_transformers(folder)
    candidates = [*(entry.name for entry in archives), *([f"{CONFIG} with safetensors"] if is_transformers else [])]
    if len(candidates) > 1:
        raise LoadFailed(_several(folder, candidates))
    if archives:
        return _of_file(archives[0])
    if is_transformers:
        return Artifact(TRANSFORMERS, folder)
    raise LoadFailed(_none(folder, files, heads))


def _several(folder: Path, names: list[str]) -> str:
    return (
        f"{folder} holds several models ({', '.join(names)}); keep one, or call the one to serve "
        f"{' or '.join(DEFAULT_NAMES)}"
    )


def _none(folder: Path, files: list[Path], heads: dict[Path, bytes]) -> str:
    names = {entry.name for entry in files}
    pickles = [entry for entry in files if heads[entry][:1] == _PICKLE or _is_pickle_name(entry) or _is_state(entry)]
    if (folder / "model.py").is_file():
        return (
            f"{folder} holds a Python class (model.py), which runs with the worker's rights: it is served only with "
            "the options class = module:Class and allow_code = true, which the operator sets"
        )
    if pickles:
        return refuse_pickle(pickles[0].name)
    if any(name.endswith(".safetensors") for name in names):
        return f"{folder} holds weights (safetensors) without an architecture: add the {CONFIG} of transformers"
    return (
        f"{folder} holds no model of torch; put it there as {DEFAULT_NAMES[0]} (torch.export), {DEFAULT_NAMES[1]} "
        f"(TorchScript), or {CONFIG} with *.safetensors (transformers)"
    )


def refuse_pickle(name: str) -> str:
    """Why a pickle is not loaded, and what to do instead."""
    return f"{name} is a pickle, and unpickling runs whatever its author put there: it is not loaded. {HOW_TO_CONVERT}"


def _of_file(path: Path) -> Artifact:
    """Raises ``LoadFailed`` for what is no model of torch, or a pickle."""
    head = _head(path)
    if head.startswith(_ZIP):
        archive = Archive(path)
        return Artifact(_kind(archive), path, archive)
    if path.suffix == ".safetensors":
        if not _is_transformers(path.parent):
            raise LoadFailed(f"{path.name} holds weights without an architecture: add the {CONFIG} of transformers")
        return Artifact(TRANSFORMERS, path.parent)
    if path.name == CONFIG and _is_transformers(path.parent):
        return Artifact(TRANSFORMERS, path.parent)
    raise LoadFailed(_not_torch(path, head))


def _kind(archive: Archive) -> str:
    """What an archive is, by its members. Raises ``LoadFailed`` for one that is nothing to serve."""
    name = archive.path.name
    if "archive_format" in archive:
        if archive.under("data/aotinductor/"):
            return AOTINDUCTOR
        if archive.under("models/"):
            return EXPORTED
        raise LoadFailed(f"{name} is a .pt2 archive without a program; save the model again")
    if "constants.pkl" in archive and archive.under("code/"):
        return TORCHSCRIPT
    if "data.pkl" in archive:
        raise LoadFailed(refuse_pickle(name))
    listed = ", ".join(archive.names[:3])
    raise LoadFailed(f"{name} is a zip archive and no model of torch (it holds {listed}, ...). {HOW_TO_CONVERT}")


def _not_torch(path: Path, head: bytes) -> str:
    if not head:
        return f"{path.name} is empty; copy the whole file"
    if head[:1] == _PICKLE or _is_pickle_name(path) or _is_tar(path):
        return refuse_pickle(path.name)
    foreign = next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), "in no format of torch")
    return f"{path.name} is {foreign}, or only a part of a file; it takes torch.export, TorchScript, or safetensors"


def _is_pickle_name(path: Path) -> bool:
    return path.suffix in _PICKLE_NAMES and path.name not in DEFAULT_NAMES


def _is_state(path: Path) -> bool:
    """Whether it is an archive of ``torch.save``: weights, or a pickled module, beside a model or instead of one."""
    if not _head(path).startswith(_ZIP):
        return False
    try:
        archive = Archive(path)
    except LoadFailed:  # it counts as a model, and says what is wrong with it if it is the only one
        return False
    return "data.pkl" in archive and not archive.under("code/")


def _is_tar(path: Path) -> bool:
    """torch wrote tar files of pickles before version 0.4."""
    return tarfile.is_tarfile(path)


def _is_transformers(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and any(folder.glob("*.safetensors"))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise LoadFailed(f"{path} cannot be read: {error.strerror}") from error
