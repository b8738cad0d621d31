"""Tiny torch models of every kind, and artifacts that must not be loaded. Builders write a model, and give its path."""

# mypy: allow-subclassing-any, allow-untyped-calls
# no postponed annotations: TorchScript reads those of classes as they are

import importlib
import io
import json
import os
import pickle  # noqa: TID251 - what is refused has to be made first
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from backends.spec import TensorSpec

DTYPE: Final[dict[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32, "UINT64": torch.uint64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64,
    "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32, "FP64": torch.float64,
}  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """TorchScript warns that it is deprecated, ``torch.export`` about much else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- modules -------------------------------------------------------------------------------------------------------


class AddOne(nn.Module):
    """``x + 1``."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Linear(nn.Module):
    """``x`` [n, 4] -> [n, 3], with fixed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(12).reshape(3, 4) / 10)
            self.layer.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result


class AddSub(nn.Module):
    """A tuple: the sum and the difference."""

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left + right, left - right


class Named(nn.Module):
    """A dict: ``double`` and ``sum``."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"double": x * 2, "sum": x.sum(1)}


class Numbers(nn.Module):
    """Takes Python numbers beside a tensor, one of them with a default."""

    def forward(self, x: Tensor, times: int, plus: float = 0.5) -> Tensor:
        return x * times + plus


class TakesDict(nn.Module):
    """One argument, a dict of tensors."""

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["left"] - tensors["right"]


class TakesList(nn.Module):
    """One argument, a list of tensors."""

    def forward(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0] - tensors[1]


class WritesInput(nn.Module):
    """Adds to its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2


class Counter(nn.Module):
    """Counts its calls: ``x`` plus the number of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x + self.calls

    @torch.jit.export
    def reset_calls(self) -> None:
        """Begin again."""
        self.calls = 0

    @torch.jit.export
    def twice(self, x: Tensor) -> Tensor:
        """A method of its own, without state."""
        return x * 2


class CountsInBuffer(nn.Module):
    """Counts its calls in a buffer, in place."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + self.calls


class GivesBuffer(nn.Module):
    """Counts its calls in a buffer, and gives the buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.calls


class Nested(nn.Module):
    """Arguments in a dict, constants, and answers in a dict and a tuple."""

    def forward(self, first: Tensor, rest: dict[str, Tensor], nothing: None, plus: int) -> dict[str, Any]:
        return {"one": first + plus, "two": (rest["a"] * 1, rest["b"] * 1)}


class MixesRows(nn.Module):
    """Its rows depend on each other, which its shapes do not show."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Complains(nn.Module):
    """Raises for negative numbers."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("negative numbers have no root")
        return x.sqrt()


class Fails(nn.Module):
    """Fails for a reason of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() > 0:
            raise RuntimeError("the model is out of order")
        return x


class Allocates(nn.Module):
    """As many zeros as it is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros([int(x.item())])


class Image(nn.Module):
    """A convolution over [n, 3, h, w]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.layers(image)
        return result


class Table(nn.Module):
    """Looks numbers up in a table of 4."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4) * 10.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x]


class WritesFile(nn.Module):
    """TorchScript that writes a file when it runs."""

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "planted")
        return x


class Step(nn.Module):
    """What a step of ``WritesFileInside`` looks like."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[empty-body]
        pass


with _quiet():
    torch.jit.interface(Step)


class WritesFileInside(nn.Module):
    """TorchScript that writes a file in a part that it calls through an interface."""

    step: Step

    def __init__(self) -> None:
        super().__init__()
        self.step = cast(Step, WritesFile())

    def forward(self, x: Tensor) -> Tensor:
        return self.step.forward(x)


class ReadsFile(nn.Module):
    """TorchScript that maps a file when it runs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_file("planted", True, 10) + x


class WritesFileWhenLoaded(nn.Module):
    """TorchScript that writes a file already while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 1

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return self.size, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        torch.save(state[0], "planted")
        self.size = state[0]
        self.training = state[1]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.size


# --- models --------------------------------------------------------------------------------------------------------


def scripted(module: nn.Module, folder: Path, name: str = "model.pt") -> Path:
    """A TorchScript file; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet():
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
    with _quiet():
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
    with _quiet():
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
    with _quiet():
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


def tensors(*declared: tuple[Any, ...]) -> tuple[TensorSpec, ...]:
    """Declarations: (name, datatype, dims ...)."""
    return tuple(TensorSpec(name, datatype, tuple(dims)) for name, datatype, *dims in declared)


# --- artifacts that must not be loaded -----------------------------------------------------------------------------


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._path,)


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
