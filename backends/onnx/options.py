"""Options of an ONNX model (``ModelSpec.options``), read into what onnxruntime wants. Pure: imports no framework.

============================ ========================================================================================
``intra_op_thread_count``     threads for the operators of one run; 0 or absent: the cores there are, divided by
                              ``instances``
``inter_op_thread_count``     threads for operators side by side, in ``execution_mode`` parallel; 0 or absent: as above
``execution_mode``            ``sequential`` (default) or ``parallel``; 0 or 1
``graph_optimization_level``  ``disable``, ``basic``, ``extended``, ``all`` (default); or the numbers of Triton: -1
                              basic, 1 extended, 2 disable, 0 all
``allow_spinning``            idle threads wait in a busy loop (default off: idle cores belong to other models)
``enable_mem_arena``          keep freed memory for the next run (default on)
``enable_mem_pattern``        plan the memory of a run by its shapes (default on)
``execution_providers``       in order of preference, with commas: ``cuda``, ``tensorrt``, ``openvino``, ``cpu``, or
                              names of onnxruntime. Absent: CUDA on a CUDA device, or else CPU
``gpu_mem_limit``, ``arena_extend_strategy``, ``cudnn_conv_algo_search``, ``do_copy_in_default_stream``
                              of the CUDA provider, with Triton's values; without effect on the CPU
``session.disable_prepacking``, ``session.set_denormal_as_zero``, ``session.use_device_allocator_for_initializers``
                              session entries of onnxruntime, 0 or 1. There are more, and some of them read or write
                              files, which is why the list is closed
``memory.enable_memory_arena_shrinkage``
                              give memory back after each run, for example ``cpu:0``
============================ ========================================================================================

Accepted without effect, so that models made for Triton load: ``share_session_between_instances`` (it always is) and
whatever begins with ``TRITON_``, which Triton keeps for itself. Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from backends.devices import wants_cuda
from backends.errors import LoadFailed
from backends.options import Reader, Table, names, number, one_of, switch, thread_count, threads_of_one, words
from backends.spec import ModelSpec

_SHORT_NAMES: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
CPU: Final = _SHORT_NAMES["cpu"]
CUDA: Final = _SHORT_NAMES["cuda"]
TENSORRT: Final = _SHORT_NAMES["tensorrt"]
_INSTALL: Final = {
    CUDA: "pip install onnxruntime-gpu",
    TENSORRT: "pip install onnxruntime-gpu tensorrt",
    _SHORT_NAMES["openvino"]: "pip install onnxruntime-openvino",
}


class Options(msgspec.Struct, frozen=True):
    """``level`` is a member name of onnxruntime's ``GraphOptimizationLevel``; thread counts are at least 1."""

    intra_op_threads: int
    inter_op_threads: int
    parallel: bool = False
    level: str = "ORT_ENABLE_ALL"
    mem_arena: bool = True
    mem_pattern: bool = True
    providers: tuple[str, ...] = ()
    cuda: dict[str, str] = {}
    session: dict[str, str] = {}
    run: dict[str, str] = {}


def parse(spec: ModelSpec, cores: int) -> Options:
    """Raises ``LoadFailed`` that names the option and what it accepts."""
    values = _TABLE.read(spec.options)
    intra_op, inter_op = (
        threads_of_one(values.get(f"{kind}_op_thread_count", 0), cores, spec.instances) for kind in ("intra", "inter")
    )
    parallel = values.get("execution_mode", False)
    spinning = "1" if values.get("allow_spinning", False) else "0"
    session = {name: value for name, value in values.items() if name.startswith("session.")}
    return Options(
        intra_op_threads=intra_op,
        inter_op_threads=inter_op if parallel else 1,
        parallel=parallel,
        level=values.get("graph_optimization_level", "ORT_ENABLE_ALL"),
        mem_arena=values.get("enable_mem_arena", True),
        mem_pattern=values.get("enable_mem_pattern", True),
        providers=values.get("execution_providers", ()),
        cuda={name: value for name, value in values.items() if name in _CUDA},
        session={
            # a file that is named .ort would otherwise be read in another format, with rules of its own
            "session.load_model_format": "ONNX",
            "session.intra_op.allow_spinning": spinning,
            "session.inter_op.allow_spinning": spinning,
            **session,
        },
        run={name: value for name, value in values.items() if name.startswith("memory.")},
    )


def choose_providers(asked: Sequence[str], device: str, available: Sequence[str]) -> list[str]:
    """Execution providers in order of preference, the CPU last: it takes the operators that the others lack.

    Raises ``LoadFailed`` for one that is wanted and not available.
    """
    chosen = list(dict.fromkeys(asked)) or ([CUDA] if wants_cuda(device) else [])
    for name in chosen:
        if name not in available:
            install = f": {_INSTALL[name]}" if name in _INSTALL else ": name one that it has"
            raise LoadFailed(
                f"execution provider {name} is not part of this onnxruntime, which has {', '.join(available)}{install}"
            )
    if chosen == [TENSORRT] and CUDA in available:
        chosen.append(CUDA)
    return [*(name for name in chosen if name != CPU), CPU]


# --- values --------------------------------------------------------------------------------------------------------


def _providers(text: str) -> tuple[str, ...]:
    return tuple(_SHORT_NAMES.get(name.lower(), name) for name in _provider_names(text))


_provider_names: Final = names(f"{', '.join(_SHORT_NAMES)} or onnxruntime's own names", "cuda,cpu")
_bytes: Final = number(0, (1 << 64) - 1, "bytes")
_FLAG: Final = one_of({"1": "1", "true": "1", "0": "0", "false": "0"})
_CUDA: Final[dict[str, Reader]] = {
    "gpu_mem_limit": lambda text: str(_bytes(text)),
    "arena_extend_strategy": one_of({"0": "kNextPowerOfTwo", "1": "kSameAsRequested"}),
    "cudnn_conv_algo_search": one_of({"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"}),
    "do_copy_in_default_stream": _FLAG,
}
_LEVELS: Final = {
    "disable": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL",
    "-1": "ORT_ENABLE_BASIC", "0": "ORT_ENABLE_ALL", "1": "ORT_ENABLE_EXTENDED", "2": "ORT_DISABLE_ALL",
}  # fmt: skip
_TABLE: Final = Table(
    "onnx",
    {
        "intra_op_thread_count": thread_count,
        "inter_op_thread_count": thread_count,
        "execution_mode": one_of({"sequential": False, "parallel": True, "0": False, "1": True}),
        "graph_optimization_level": one_of(_LEVELS),
        "allow_spinning": switch,
        "enable_mem_arena": switch,
        "enable_mem_pattern": switch,
        "execution_providers": _providers,
        **_CUDA,
        "session.disable_prepacking": _FLAG,
        "session.set_denormal_as_zero": _FLAG,
        "session.use_device_allocator_for_initializers": _FLAG,
        "memory.enable_memory_arena_shrinkage": words("devices with semicolons between them, for example cpu:0;gpu:0"),
    },
    ignored=frozenset({"share_session_between_instances"}),
)
