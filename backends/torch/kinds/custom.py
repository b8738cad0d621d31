"""A Python class in the model's folder, with its weights beside it. Only with the option ``allow_code``.

``class = module:Class`` is found in ``module.py`` of the folder, made with ``class_arguments``, and given the weights
of the folder's only ``.safetensors`` file or torch file of weights, if there is one. Its inputs are the arguments of
``forward``.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any, Final

from backends.errors import LoadFailed
from backends.spec import ModelSpec
from backends.torch import artifact as artifacts
from backends.torch import faults, signature
from backends.torch.archive import Archive
from backends.torch.artifact import Artifact
from backends.torch.framework import import_part, torch
from backends.torch.options import Options
from backends.torch.program import Outputs, Program

PLATFORM: Final = "pytorch_class"

_WEIGHTS: Final = (".safetensors", ".pt", ".pth", ".bin")


def load(artifact: Artifact, spec: ModelSpec, chosen: Options, device: Any) -> Program:
    """Raises ``LoadFailed``: code is not allowed, no such class, weights that do not fit it, no declaration."""
    if not chosen.allow_code:
        raise LoadFailed(
            f"option class names {chosen.class_name}, Python of the model's author, which runs with the worker's "
            "rights: it is served only with the option allow_code = true, which the operator sets"
        )
    model = _make(artifact.path, chosen)
    _give_weights(model, artifact.path)
    arguments = _arguments(model)
    if not spec.inputs or not spec.outputs:
        offered = {name: "Tensor" for name, required in arguments.items() if required}
        missing = [] if spec.outputs else ["OUTPUT__0"]
        raise LoadFailed(signature.undeclared(chosen.class_name, offered, not spec.inputs, missing))
    assigned = signature.assign(spec.inputs, list(arguments))
    left = [name for name, required in arguments.items() if required and name not in assigned.values()]
    if left:
        raise LoadFailed(f"the model needs its argument {left[0]!r}, for which no input is declared")
    dtype = getattr(torch, chosen.dtype) if chosen.dtype else None
    model = model.to(device=device, dtype=dtype).eval()
    if chosen.channels_last:
        model = model.to(memory_format=torch.channels_last)
    varies = any(-1 in tensor.shape for tensor in spec.inputs)
    call = torch.compile(model, mode=chosen.compile, dynamic=varies) if chosen.compile else model
    outputs = Outputs([tensor.name for tensor in spec.outputs])

    def run(feeds: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
        return outputs.pick(call(**{assigned[name]: value for name, value in feeds.items()}), wanted)

    return Program(PLATFORM, tuple(spec.inputs), tuple(spec.outputs), run, dtype=dtype)


def _make(folder: Path, chosen: Options) -> Any:
    module, _, name = chosen.class_name.partition(":")
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        raise LoadFailed(f"option class is {chosen.class_name}, and {folder} has no {path.relative_to(folder)}")
    # at the end: a file of the folder must not stand in for a module of this program or of its libraries
    sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"model_code.{module}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:  # the code of a model may raise anything
        raise LoadFailed(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(loaded, name, None)
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise LoadFailed(f"option class is {chosen.class_name}, and {path.name} has no torch.nn.Module {name}")
    try:
        return found(**chosen.class_arguments)
    except Exception as error:  # as above
        if faults.is_out_of_memory(error):
            raise
        raise LoadFailed(f"{chosen.class_name} cannot be made: {type(error).__name__}: {error}") from error


def _give_weights(model: Any, folder: Path) -> None:
    files = sorted(entry for entry in folder.iterdir() if entry.suffix in _WEIGHTS and entry.is_file())
    if not files:
        return  # a class may bring its own
    if len(files) > 1:
        raise LoadFailed(
            f"{folder} holds several files of weights ({', '.join(file.name for file in files)}); keep one"
        )
    try:
        # assigned, not copied: they stay the file, mapped into memory
        model.load_state_dict(_weights(files[0]), strict=True, assign=True)
    except RuntimeError as error:
        raise LoadFailed(f"{files[0].name} does not fit {type(model).__name__}: {error}") from error


def _weights(file: Path) -> dict[str, Any]:
    if file.suffix == ".safetensors":
        loaded: dict[str, Any] = import_part("safetensors.torch", "pip install safetensors").load_file(file)
        return loaded
    try:
        Archive(file)
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except LoadFailed as error:
        raise LoadFailed(f"{error}. Weights are .safetensors, or a state_dict() saved by torch.save") from error
    except Exception as error:  # of the unpickler that lets nothing but tensors through
        raise LoadFailed(
            f"{artifacts.refuse_pickle(file.name)}\n  weights alone:  torch.save(model.state_dict(), '{file.name}')"
        ) from error
    return state


def _arguments(model: Any) -> dict[str, bool]:
    """Argument of ``forward`` -> whether it is required."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(model.forward).parameters.values()
    return {each.name: each.default is inspect.Parameter.empty for each in found if each.kind in kinds}
