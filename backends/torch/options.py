"""Options of a torch model (``ModelSpec.options``). Pure: imports no framework.

Of every kind of model

=========================== =========================================================================================
``intra_op_thread_count``    threads for the operators of one run; 0 or absent: the cores there are, divided by
                             ``instances``. One number holds for the whole worker
``inter_op_thread_count``    threads for parallel parts of one run (TorchScript's ``fork``); 0 or absent: torch's choice
``allow_code``               allow what runs code of the model's author with the worker's rights: a Python class, an
                             AOTInductor package (default off)
=========================== =========================================================================================

Of some kinds

=========================== =========================================================================================
``dtype``                    ``float32``, ``float16`` or ``bfloat16``: convert the weights to it, and floating inputs on
                             the way in; outputs keep the type of the signature. TorchScript, transformers, class
``channels_last``            lay out weights and images with their channels last. TorchScript, torch.export, class
``compile``                  ``default``, ``reduce-overhead``, ``max-autotune`` or ``max-autotune-no-cudagraphs``:
                             compile with ``torch.compile``, which needs a C++ compiler in the worker's environment and
                             takes a minute or more. The model runs on zeros before it is ready, so that no request
                             waits for the compiler; shapes in which torch sees something special (a 0, a 1 where there
                             was none) may still compile when they are first seen. torch.export, transformers, class
``cuda_graphs``              record the run once and replay it: for models of fixed shapes on a CUDA device.
                             TorchScript, torch.export, transformers, class
``freeze``                   make weights constants of the program (``torch.jit.freeze``). TorchScript
``optimize_for_inference``   freeze, and replace operators by faster ones. TorchScript
``method``                   the method to serve (default ``forward``). TorchScript
``reset_method``             called before every run, for models that keep state between runs: then no request sees what
                             another one left behind. TorchScript
``state``                    ``shared``: serve a model that keeps state between runs although all clients share it.
                             TorchScript, torch.export
``class``                    ``module:Class``, a Python class in the model's folder. Needs ``allow_code``
``class_arguments``          arguments of its constructor, a JSON object
``check_inputs``             let a compiled program check its inputs (default on). AOTInductor
=========================== =========================================================================================

Triton's ``INTRA_OP_THREAD_COUNT`` and ``INTER_OP_THREAD_COUNT`` mean the same. Accepted without effect, so that models
made for Triton load: its other settings for TorchScript, ``graph_optimization_level``, and whatever begins with
``TRITON_``. Anything else is refused by name.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from backends.options import Reader, Table, one_of, switch, thread_count, threads_of_one
from backends.spec import ModelSpec

_ALIASES: Final = {
    "INTRA_OP_THREAD_COUNT": "intra_op_thread_count",
    "INTER_OP_THREAD_COUNT": "inter_op_thread_count",
}
_WITHOUT_EFFECT: Final = frozenset({
    "graph_optimization_level",
    "DISABLE_OPTIMIZED_EXECUTION", "INFERENCE_MODE", "DISABLE_CUDNN", "ENABLE_WEIGHT_SHARING", "ENABLE_CACHE_CLEANING",
    "ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER", "ENABLE_NVFUSER_FUSION",
})  # fmt: skip

#: The kinds of models, as texts call them.
TORCHSCRIPT: Final = "TorchScript"
EXPORTED: Final = "torch.export"
AOTINDUCTOR: Final = "AOTInductor"
TRANSFORMERS: Final = "transformers"
CLASS: Final = "Python class"

#: The options that only some kinds have.
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "dtype": (TORCHSCRIPT, TRANSFORMERS, CLASS),
    "channels_last": (TORCHSCRIPT, EXPORTED, CLASS),
    "compile": (EXPORTED, TRANSFORMERS, CLASS),
    "cuda_graphs": (TORCHSCRIPT, EXPORTED, TRANSFORMERS, CLASS),
    "freeze": (TORCHSCRIPT,),
    "optimize_for_inference": (TORCHSCRIPT,),
    "method": (TORCHSCRIPT,),
    "reset_method": (TORCHSCRIPT,),
    "state": (TORCHSCRIPT, EXPORTED),
    "class": (CLASS,),
    "class_arguments": (CLASS,),
    "check_inputs": (AOTINDUCTOR,),
}


class Options(msgspec.Struct, frozen=True):
    """``intra_op_threads`` is at least 1; ``inter_op_threads`` 0 leaves it to torch; texts are "" where not given."""

    intra_op_threads: int
    inter_op_threads: int = 0
    allow_code: bool = False
    dtype: str = ""
    channels_last: bool = False
    compile: str = ""
    cuda_graphs: bool = False
    freeze: bool = False
    optimize_for_inference: bool = False
    method: str = "forward"
    reset_method: str = ""
    shares_state: bool = False
    class_name: str = ""
    class_arguments: dict[str, Any] = {}
    check_inputs: bool = True


def parse(spec: ModelSpec, cores: int) -> Options:
    """Raises ``LoadFailed`` that names the option and what it accepts."""
    fields = {_FIELDS.get(name, name): value for name, value in TABLE.read(spec.options).items()}
    threads = threads_of_one(fields.pop("intra_op_threads", 0), cores, spec.instances)
    return Options(intra_op_threads=threads, **fields)


# --- values --------------------------------------------------------------------------------------------------------


def _method(text: str) -> str:
    if not text.isidentifier():
        raise ValueError("the name of a method")
    return text


def _class_name(text: str) -> str:
    module, _, name = text.partition(":")
    if not (all(part.isidentifier() for part in module.split(".")) and name.isidentifier()):
        raise ValueError("module:Class, for example model:Net for the class Net of model.py in the model's folder")
    return text


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f'a JSON object, for example {{"size": 3}} ({error})') from error


_DTYPES: Final = {
    "float32": "float32", "fp32": "float32", "float16": "float16", "fp16": "float16",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
}  # fmt: skip
_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_OPTIONS: Final[dict[str, Reader]] = {
    "intra_op_thread_count": thread_count,
    "inter_op_thread_count": thread_count,
    "allow_code": switch,
    "dtype": one_of(_DTYPES),
    "channels_last": switch,
    "compile": one_of({mode: mode for mode in _MODES}),
    "cuda_graphs": switch,
    "freeze": switch,
    "optimize_for_inference": switch,
    "method": _method,
    "reset_method": _method,
    "state": one_of({"shared": True}),
    "class": _class_name,
    "class_arguments": _arguments,
    "check_inputs": switch,
}
#: Option -> field of ``Options``, where they differ.
_FIELDS: Final = {
    "intra_op_thread_count": "intra_op_threads",
    "inter_op_thread_count": "inter_op_threads",
    "state": "shares_state",
    "class": "class_name",
}
TABLE: Final = Table("torch", _OPTIONS, _ALIASES, _WITHOUT_EFFECT, _KINDS)
