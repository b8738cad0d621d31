"""AOTInductor packages (``.pt2`` of ``aoti_compile_and_package``): programs compiled to machine code.

That code runs with the worker's rights, whoever wrote it: hence only with the option ``allow_code``. A package names
its outputs if the model gave a dict; types and shapes have to be declared, unless the archive holds the exported
program as well. It is compiled for one kind of processor, and by default for sizes of two and more: see
``_MEND_SINGLE``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from backends.errors import InvalidInput, LoadFailed
from backends.spec import ModelSpec, TensorSpec
from backends.torch import exported_check, exported_signature, faults, signature
from backends.torch.archive import Archive
from backends.torch.artifact import Artifact
from backends.torch.framework import torch
from backends.torch.kinds.exported import model_name
from backends.torch.options import Options
from backends.torch.program import Outputs, Program

PLATFORM: Final = "pytorch_aotinductor"

_FOLDER: Final = "data/aotinductor/"
_TEMPORARY: Final = "TMPDIR"
_CHECK_VARIABLE: Final = "AOTI_RUNTIME_CHECK_INPUTS"
_MEND_SINGLE: Final = (
    "; torch compiles for sizes of at least 2 unless told otherwise: compile with inductor_configs="
    "{'aot_inductor.check_lowerbound': False}, or set the option check_inputs = false if the model is right for "
    "smaller ones as well"
)


def load(artifact: Artifact, spec: ModelSpec, chosen: Options, device: Any) -> Program:
    """Raises ``LoadFailed``: code is not allowed, another processor, no declaration."""
    archive, name = artifact.archive, artifact.path.name
    if not chosen.allow_code:
        raise LoadFailed(
            f"{name} is an AOTInductor package: machine code of its author, which runs with the worker's rights. It is "
            "served only with the option allow_code = true, which the operator sets; or serve the program that it was "
            "compiled from (torch.export.save), which needs no such trust"
        )
    model = _model(archive)
    os.environ[_CHECK_VARIABLE] = "1" if chosen.check_inputs else "0"
    index = (device.index or 0) if device.type == "cuda" else -1
    runners = max(spec.instances, 1)
    loader = _open(str(artifact.path), model, runners == 1, runners, index)
    _check_device(loader.get_metadata(), device, name)
    arguments = [f"INPUT__{number}" for number in range(_leaves(loader.get_call_spec()[0]))]
    spec = _declared(archive, spec, name)
    keys = exported_signature.output_names(loader.get_call_spec()[1], _leaves(loader.get_call_spec()[1]))
    if not spec.inputs or not spec.outputs:
        offered = dict.fromkeys(arguments, "Tensor")
        raise LoadFailed(signature.undeclared(name, offered, not spec.inputs, [] if spec.outputs else keys))
    return Program(
        platform=PLATFORM,
        inputs=spec.inputs,
        outputs=spec.outputs,
        run=_runner(loader, spec, arguments, keys),
        check=_checker(spec.inputs),
    )


def _open(*arguments: Any) -> Any:
    """torch's loader of packages. It unpacks them into temporary files, and forgets those when the load fails."""
    folder = tempfile.mkdtemp(prefix="aotinductor-")
    try:
        with _temporary_files_in(folder):
            loader = torch._C._aoti.AOTIModelPackageLoader(*arguments)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(loader, shutil.rmtree, folder, ignore_errors=True)
    return loader


@contextlib.contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """For code that is not Python, which has no other way to be told."""
    before = os.environ.get(_TEMPORARY)
    os.environ[_TEMPORARY] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TEMPORARY]
        else:
            os.environ[_TEMPORARY] = before


def _model(archive: Archive) -> str:
    names = sorted({PurePosixPath(name.removeprefix(_FOLDER)).parts[0] for name in archive.under(_FOLDER)})
    if len(names) != 1:
        raise LoadFailed(
            f"{archive.path.name} holds {len(names)} models ({', '.join(names)}); package one in each file"
        )
    return names[0]


def _check_device(metadata: dict[str, str], device: Any, name: str) -> None:
    compiled = metadata.get("AOTI_DEVICE_KEY", device.type)
    if compiled != device.type:
        raise LoadFailed(f"{name} was compiled for {compiled}, the model is placed on {device}: place it on {compiled}")


def _declared(archive: Archive, spec: ModelSpec, name: str) -> ModelSpec:
    """The spec, with inputs and outputs that it lacks from the exported program, if that is in the archive as well."""
    if (spec.inputs and spec.outputs) or not archive.under("models/"):
        return spec
    checked = exported_check.read(archive.read(f"models/{model_name(archive)}.json"), name)
    described = exported_signature.describe(checked, name)
    return msgspec.structs.replace(
        spec,
        inputs=spec.inputs or tuple(value.spec() for value in described.inputs),
        outputs=spec.outputs or tuple(value.spec() for value in described.outputs),
    )


def _runner(loader: Any, spec: ModelSpec, arguments: list[str], keys: list[str]) -> Any:
    """A package does not know the names of its arguments: inputs are taken by number, or else in order."""
    names = [tensor.name for tensor in spec.inputs]
    order = sorted(names, key=arguments.index) if all(name in arguments for name in names) else names
    if len(order) != len(arguments):
        raise LoadFailed(
            f"{len(order)} inputs are declared, the model takes {len(arguments)}: declare all, in its order"
        )
    outputs = Outputs([tensor.name for tensor in spec.outputs])
    outputs.check(len(keys))
    by_key = all(tensor.name in keys for tensor in spec.outputs)

    def run(feeds: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
        try:
            answer = loader.boxed_run([feeds[name] for name in order])
        except RuntimeError as error:
            if "too small" in str(error):
                raise InvalidInput(f"torch: {faults.text_of(error)}{_MEND_SINGLE}") from error
            raise
        return outputs.pick(dict(zip(keys, answer, strict=True)) if by_key else tuple(answer), wanted)

    return run


def _checker(inputs: tuple[TensorSpec, ...]) -> Any:
    """Machine code would read past the end of a tensor that is smaller than it expects."""

    def check(arrays: Any) -> None:
        for tensor in inputs:
            shape = arrays[tensor.name].shape
            fits = len(shape) == len(tensor.shape) and all(
                wanted in (-1, size) for wanted, size in zip(tensor.shape, shape, strict=True)
            )
            if not fits:
                raise InvalidInput(
                    f"input {tensor.name!r} has shape {list(shape)}, the model takes {list(tensor.shape)}"
                )

    return check


def _leaves(tree: str) -> int:
    """How many tensors a tree of torch's has."""
    waiting, count = [json.loads(tree)[1]], 0
    while waiting:
        node = waiting.pop()
        count += node["type"] is None
        waiting.extend(node["children_spec"])
    return count
