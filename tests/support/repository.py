"""A model repository on disk, laid out where a server looks for its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ModelProto

from support.onnx_models import save


def add_onnx(repository: Path, name: str, model: ModelProto | bytes, *, config: str = "", version: int = 1) -> Path:
    """Put an ONNX model into the repository; the folder of its version."""
    folder = save(model, repository / name / str(version))
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return folder


def add_echo(
    repository: Path,
    name: str,
    *,
    datatype: str = "FP32",
    dims: Sequence[int] = (-1,),
    max_batch_size: int = 0,
    instances: int = 1,
    options: Mapping[str, str] | None = None,
    config: str = "",
) -> Path:
    """Put a model into the repository that answers ``x`` as ``y``, and does what a request's parameters tell it to
    (see ``backends/echo.py``); the folder of its version."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "README").write_text("It answers what it is given.\n")
    tensor = f"data_type: TYPE_{'STRING' if datatype == 'BYTES' else datatype} dims: {list(dims)}"
    parameters = {"fault_injection": "true"} | dict(options or {})
    lines = [
        'backend: "echo"',
        f"max_batch_size: {max_batch_size}",
        f"instance_group {{ kind: KIND_CPU count: {instances} }}",
        f'input {{ name: "x" {tensor} }}',
        f'output {{ name: "y" {tensor} }}',
        *(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()),
    ]
    (folder.parent / "config.pbtxt").write_text("\n".join([*lines, config]))
    return folder
