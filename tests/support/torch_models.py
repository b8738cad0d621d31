"""Tiny torch models of every kind, and artifacts that must not be loaded. Builders write a model, and give its path."""

# mypy: allow-untyped-calls

from __future__ import annotations

import importlib
import io
import json
import os
import pickle  # noqa: TID251 - what is refused has to be made first
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from backends.contract import Backend
from support.loading import Loading, tensors
from support.payloads import Payload
from support.torch_modules import AddSub, Linear, quiet

DTYPE: Final[dict[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32, "UINT64": torch.uint64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64,
    "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32, "FP64": torch.float64,
}  # fmt: skip

#: What a request sends, and what ``Linear`` answers to it.
ROWS: Final = np.arange(8, dtype=np.float32).reshape(2, 4)
LINEAR: Final = np.array([[2.4, 5.8, 9.2], [4.8, 14.6, 24.4]], np.float32)
#: Declarations: of ``Linear``, and of modules whose output is as wide as their input.
LINEAR_IO: Final[dict[str, Any]] = {
    "inputs": tensors(("x", "FP32", -1, 4)),
    "outputs": tensors(("y", "FP32", -1, 3)),
}
X_TO_Y: Final[dict[str, Any]] = {"inputs": tensors(("x", "FP32", -1, 4)), "outputs": tensors(("y", "FP32", -1, 4))}
#: The options with which ``python_class`` is served.
ALLOWED: Final = {"class": "model:Net", "allow_code": "true"}


def script(module: nn.Module, folder: Path, **fields: Any) -> Backend:
    """A backend that has loaded the module as TorchScript; ``fields`` are those of a ``ModelSpec``."""
    return Loading("torch").load(scripted(module, folder), **fields)[0]


def scripted(module: nn.Module, folder: Path, name: str = "model.pt") -> Path:
    """A TorchScript file; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        torch.jit.script(module.eval()).save(str(folder / name))
    return folder / name


def exported(
    module: nn.Module,
    arguments: tuple[Any, ...],
    folder: Path,
    *,
    dynamic: Any = None,
    name: str = "model.pt2",
) -> Path:
    """A ``torch.export`` program; ``dynamic`` as ``dynamic_shapes`` of ``torch.export.export``. Gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        program = torch.export.export(module.eval(), arguments, dynamic_shapes=dynamic)
        torch.export.save(program, folder / name)
    return folder / name


def rowwise(module: nn.Module, *widths: int, folder: Path, largest: int | None = None) -> Path:
    """A program over rows of these widths, any number of them (up to ``largest``)."""
    batch = torch.export.Dim("batch", max=largest)
    arguments = tuple(torch.ones(2, width) for width in widths)
    return exported(module, arguments, folder, dynamic=tuple({0: batch} for _ in widths))


def identities(datatypes: Sequence[str], shape: tuple[int, ...], folder: Path) -> Path:
    """A program that answers input ``IN_<datatype>`` as ``OUT_<datatype>``; -1 varies, the first one as the batch."""
    sizes = [size if size != -1 else 2 + index for index, size in enumerate(shape)]
    dimensions = {index: torch.export.Dim(f"d{index}") for index, size in enumerate(shape) if size == -1}
    arguments = tuple(torch.zeros(sizes, dtype=DTYPE[datatype]) for datatype in datatypes)
    return exported(_identity(datatypes), arguments, folder, dynamic=tuple(dimensions for _ in datatypes))


def _identity(datatypes: Sequence[str]) -> nn.Module:
    graph = torch.fx.Graph()
    inputs = {f"OUT_{datatype}": graph.placeholder(f"IN_{datatype}") for datatype in datatypes}
    graph.output(inputs)
    return torch.fx.GraphModule(nn.Module(), graph)


def encoder(
    folder: Path, architecture: str = "BertModel", *, model_type: str = "bert", pooler: bool = True, **changes: Any
) -> Path:
    """A transformers model with safetensors: vocabulary 50, 16 positions, width 8. Gives the folder."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers: Any = importlib.import_module("transformers")
    sizes = {
        "vocab_size": 50, "max_position_embeddings": 16, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8, "num_labels": 3,
    }  # fmt: skip
    config = transformers.CONFIG_MAPPING[model_type](**{**sizes, **changes})
    arguments = {} if pooler else {"add_pooling_layer": False}
    with quiet():
        torch.manual_seed(0)
        model = getattr(transformers, architecture)(config, **arguments)
        transformers.utils.logging.disable_progress_bar()
        model.save_pretrained(folder)
    return folder


CLASS_SOURCE: Final = """
import torch
from helper import OFFSET

class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = torch.nn.Linear(width, 3)

    def forward(self, x):
        return self.layer(x) + OFFSET
"""


def python_class(folder: Path, *, weights: str = "safetensors") -> Path:
    """``model.py`` with the class ``Net``, a helper module, and weights; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(CLASS_SOURCE)
    (folder / "helper.py").write_text("OFFSET = 100\n")
    state = {name: value.clone() for name, value in Linear().state_dict().items()}
    if weights == "safetensors":
        importlib.import_module("safetensors.torch").save_file(state, folder / "weights.safetensors")
    else:
        torch.save(state, folder / f"weights.{weights}")
    return folder


def compiled(folder: Path) -> Path:
    """An AOTInductor package of ``AddSub`` over rows of 4. Needs a C++ compiler and half a minute."""
    folder.mkdir(parents=True, exist_ok=True)
    batch = torch.export.Dim("batch")
    with quiet():
        program = torch.export.export(
            AddSub().eval(), (torch.ones(2, 4), torch.ones(2, 4)), dynamic_shapes=({0: batch}, {0: batch})
        )
        settings = {
            "aot_inductor.compile_wrapper_opt_level": "O0",
            "aot_inductor.check_lowerbound": False,
            "compile_threads": 1,
        }
        path = str(folder / "model.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=settings)
    return folder / "model.pt2"


# --- artifacts that must not be loaded -----------------------------------------------------------------------------


def pickled(path: Path, planted: Path, form: str) -> Path:
    """A pickle that makes the file ``planted``: ``plain``, or as ``torch.save`` writes it, ``zip`` or ``legacy``."""
    payload = Payload(planted)
    if form == "plain":
        path.write_bytes(pickle.dumps(payload))
    else:
        torch.save({"weight": payload}, path, _use_new_zipfile_serialization=form == "zip")
    return path


def rewrite(archive: Path, changes: Mapping[str, bytes | Callable[[bytes], bytes] | None], to: Path) -> Path:
    """A copy of an archive in which members are replaced, changed, left out (None) or added; gives the copy's path.

    Names are those inside of the archive's folder.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(to, "w") as target:
        root = source.namelist()[0].partition("/")[0]
        names = [name.partition("/")[2] for name in source.namelist()]
        for name in dict.fromkeys([*names, *changes]):
            change = changes.get(name, _same)
            if change is not None:
                content = source.read(f"{root}/{name}") if name in names else b""
                target.writestr(f"{root}/{name}", change if isinstance(change, bytes) else change(content))
    return to


def _same(content: bytes) -> bytes:
    return content


def edited_program(archive: Path, edit: Callable[[Any], None], to: Path) -> Path:
    """A copy of an exported program whose JSON ``edit`` has changed."""

    def change(content: bytes) -> bytes:
        data = json.loads(content)
        edit(data)
        return json.dumps(data).encode()

    return rewrite(archive, {"models/model.json": change}, to)


def bomb(archive: Path, to: Path, size: int = 256 << 20) -> Path:
    """A copy of an archive with a member that grows to ``size`` zeros when it is unpacked."""
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as target:
        root = source.namelist()[0].partition("/")[0]
        for name in source.namelist():
            target.writestr(name, source.read(name))
        with target.open(f"{root}/extra/zeros", "w", force_zip64=True) as member:
            for _ in range(size >> 20):
                member.write(bytes(1 << 20))
    return to


def payload_bytes(planted: Path) -> bytes:
    """A torch file that makes the file ``planted`` when all of it is unpickled."""
    buffer = io.BytesIO()
    torch.save((Payload(planted), {}), buffer)
    return buffer.getvalue()
