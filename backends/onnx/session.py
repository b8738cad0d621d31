"""Opening an onnxruntime session. The only module here that imports onnxruntime, and only when a model is loaded."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from backends import devices
from backends.errors import LoadFailed, MissingExtra
from backends.onnx import artifact
from backends.onnx.options import CUDA, Options

#: Errors come back as exceptions; onnxruntime would print each of them to stderr as well.
_SILENT: Final = 4
_PREFIX: Final = re.compile(r"^(\[ONNXRuntimeError\] : \d+ : |Error in execution: )")


def import_onnxruntime() -> Any:
    """The ``onnxruntime`` module. Raises ``MissingExtra``, or ``LoadFailed`` if it is installed and broken."""
    # The official builds report usage to their vendor, and keep a database in the home folder for it, unless told
    # otherwise before they are imported. A server must not do that behind its operator's back.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{sys.executable} has no onnxruntime: pip install 'tensorgate[onnx]'") from error
    except ImportError as error:
        raise LoadFailed(f"onnxruntime is installed and cannot be imported: {error}") from error
    onnxruntime.set_default_logger_severity(_SILENT)
    return onnxruntime


def check_device(ort: Any, device: str) -> None:
    """Raises ``LoadFailed`` if that is a CUDA device and onnxruntime, which does not count them, could use none."""
    has_cuda = CUDA in ort.get_available_providers()
    mend = (
        "nvidia-smi has to list the device"
        if has_cuda
        else "this build is for the CPU only, install the one for CUDA (pip install onnxruntime-gpu)"
    )
    seen = devices.count_cuda() if has_cuda else 0
    devices.check_cuda(device, seen, f"onnxruntime {ort.__version__}", mend)


def open_session(ort: Any, model: Path, chosen: Options, providers: list[str]) -> Any:
    """A session on exactly these providers. Raises ``LoadFailed`` with onnxruntime's reason."""
    if CUDA in providers and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # CUDA and cuDNN may come from Python packages, which no loader path knows
    with_options = [(name, chosen.cuda) if name == CUDA else name for name in providers]
    try:
        # without its fallback a provider that fails ends in an error, not in a model that is slow for no visible reason
        session = ort.InferenceSession(str(model), _session_options(ort, chosen), with_options, enable_fallback=0)
    except ort.capi.onnxruntime_pybind11_state.InvalidProtobuf as error:
        raise LoadFailed(artifact.not_onnx(model, text_of(error))) from error
    except Exception as error:  # onnxruntime's errors have no common base class
        text = text_of(error)
        raise LoadFailed(f"{model.name} cannot be loaded: {text}{_mend(text)}") from error
    missing = [name for name in providers if name not in session.get_providers()]
    if missing:
        raise LoadFailed(
            f"execution provider {missing[0]} is installed and did not start: its libraries or its device are missing "
            "(for CUDA: pip install 'onnxruntime-gpu[cuda,cudnn]', and nvidia-smi has to list the device)"
        )
    return session


def run_options(ort: Any, chosen: Options) -> Any:
    """``RunOptions`` for every run, or None for onnxruntime's own."""
    if not chosen.run:
        return None
    made = ort.RunOptions()
    for name, value in chosen.run.items():
        made.add_run_config_entry(name, value)
    return made


def text_of(error: BaseException) -> str:
    """The text of an onnxruntime error, without its code."""
    return "onnxruntime: " + _PREFIX.sub("", str(error)).strip()


def _mend(text: str) -> str:
    """What to do about a failed load, where onnxruntime's reason is one of the usual two."""
    if "opset" in text:
        return "; export the model with an opset that this onnxruntime supports, or install a newer onnxruntime"
    if "External initializer" in text:
        return "; copy the whole folder, the files with the model's data included"
    return ""


def _session_options(ort: Any, chosen: Options) -> Any:
    made = ort.SessionOptions()
    made.log_severity_level = _SILENT
    # never 0: onnxruntime would then pin its threads to cores, which fails noisily in containers
    made.intra_op_num_threads = chosen.intra_op_threads
    made.inter_op_num_threads = chosen.inter_op_threads
    made.execution_mode = ort.ExecutionMode.ORT_PARALLEL if chosen.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, chosen.level)
    made.enable_cpu_mem_arena = chosen.mem_arena
    made.enable_mem_pattern = chosen.mem_pattern
    for name, value in chosen.session.items():
        made.add_session_config_entry(name, value)
    return made
