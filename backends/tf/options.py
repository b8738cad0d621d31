"""Options of a TensorFlow model (``ModelSpec.options``), read into what TensorFlow wants. Pure: imports no framework.

=========================== =========================================================================================
``signature``                the signature to serve; absent: ``serving_default``, or the only one there is
                             (SavedModel, ``.tflite``)
``tags``                     the graph to serve, by its tags with commas; absent: ``serve``, or the only one there is
                             (SavedModel)
``intra_op_thread_count``    threads for the operators of one run; 0 or absent: the cores there are, divided by
                             ``instances``. All instances share one pool of them
``inter_op_thread_count``    threads for operators side by side; 0 or absent: none, the thread of the request runs
                             them one after the other, which is the fastest way unless a graph has wide branches
                             (SavedModel; a ``.keras`` model needs such threads and has one for each core)
``xla``                      compile the signature with XLA, once for every shape that comes (default off; SavedModel
                             of TensorFlow 2, ``.keras``). It takes no BYTES
``memory_growth``            take the memory of a GPU bit by bit (default on), or all of it at once
``memory_limit_mb``          the most memory of a GPU to take, in megabytes
``allow_code``               serve a SavedModel although its graph reads or writes files, or opens connections
                             (default off). It is never allowed to call Python
=========================== =========================================================================================

Names of Triton do the same: ``TF_SIGNATURE_DEF``, ``TF_GRAPH_TAG``, ``TF_NUM_INTRA_THREADS``, ``TF_NUM_INTER_THREADS``.
Accepted without effect, so that models made for Triton load: ``TF_USE_PER_SESSION_THREADS``,
``MAX_SESSION_SHARE_COUNT`` and whatever begins with ``TRITON_``. Anything else is refused by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from backends.errors import LoadFailed
from backends.spec import ModelSpec
from backends.tf.artifact import KERAS, LITE, SAVED_MODEL

_MAX_THREADS: Final = 1024
_WITHOUT_EFFECT: Final = ("TF_USE_PER_SESSION_THREADS", "MAX_SESSION_SHARE_COUNT")
_OF_TRITON: Final = "TRITON_"
_DEVICE: Final = re.compile(r"cpu|cuda(:\d+)?")


class Options(msgspec.Struct, frozen=True):
    """``intra_op_threads`` is at least 1; ``inter_op_threads`` 0 leaves their number to the kind of model."""

    intra_op_threads: int
    inter_op_threads: int = 0
    instances: int = 1
    gpu: bool = False
    signature: str = ""
    tags: frozenset[str] = frozenset()
    xla: bool = False
    memory_growth: bool = True
    memory_limit_mb: int = 0
    allow_code: bool = False


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def parse(spec: ModelSpec, cores: int) -> Options:
    """Raises ``LoadFailed`` that names the option and what it accepts."""
    values = {_TRITON_NAMES.get(name, name): _value(name, text) for name, text in _effective(spec.options).items()}
    instances = max(spec.instances, 1)
    return Options(
        intra_op_threads=values.get("intra_op_thread_count") or max(1, cores // instances),
        inter_op_threads=values.get("inter_op_thread_count", 0),
        instances=instances,
        gpu=_is_gpu(spec.device),
        **{name: values[name] for name in values if not name.endswith("_thread_count")},
    )


def check_kind(given: dict[str, str], kind: str) -> None:
    """Raises ``LoadFailed`` for an option that has no meaning for an artifact of that kind."""
    for name in _effective(given):
        kinds = _KINDS.get(_TRITON_NAMES.get(name, name), (kind,))
        if kind not in kinds:
            raise LoadFailed(f"option {name} is for {' and '.join(kinds)}, and this is a {kind}: leave it out")


# --- values --------------------------------------------------------------------------------------------------------


def _effective(given: dict[str, str]) -> dict[str, str]:
    return {
        name: text for name, text in given.items() if name not in _WITHOUT_EFFECT and not name.startswith(_OF_TRITON)
    }


def _value(name: str, text: str) -> Any:
    read = _OPTIONS.get(_TRITON_NAMES.get(name, name))
    if read is None:
        raise LoadFailed(f"the tf backend has no option {name!r}; it takes {', '.join(_OPTIONS)}")
    try:
        return read(text.strip())
    except ValueError as error:
        raise LoadFailed(f"option {name} is {text!r}; it takes {error}") from error


def _is_gpu(device: str) -> bool:
    """The worker sees one GPU whatever its number is on the machine, so the number does not matter here."""
    if not _DEVICE.fullmatch(device):
        raise LoadFailed(f"device is {device!r}; the tf backend takes cpu, cuda or cuda:N")
    return device != "cpu"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_THREADS:
        raise ValueError(f"a number of threads up to {_MAX_THREADS}, 0 for the default")
    return int(text)


def _megabytes(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError("a number of megabytes, at least 1")
    return int(text)


def _name(text: str) -> str:
    if not text:
        raise ValueError("the name of a signature")
    return text


def _tags(text: str) -> frozenset[str]:
    tags = frozenset(tag.strip() for tag in text.split(","))
    if not all(tags):
        raise ValueError("tags with commas between them, for example serve,gpu")
    return tags


def _switch(text: str) -> bool:
    choices = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in choices:
        raise ValueError(", ".join(choices))
    return choices[text.lower()]


_TRITON_NAMES: Final = {
    "TF_SIGNATURE_DEF": "signature",
    "TF_GRAPH_TAG": "tags",
    "TF_NUM_INTRA_THREADS": "intra_op_thread_count",
    "TF_NUM_INTER_THREADS": "inter_op_thread_count",
}
_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "signature": _name,
    "tags": _tags,
    "intra_op_thread_count": _count,
    "inter_op_thread_count": _count,
    "xla": _switch,
    "memory_growth": _switch,
    "memory_limit_mb": _megabytes,
    "allow_code": _switch,
}
#: Options that not every kind of artifact has.
_KINDS: Final = {
    "signature": (SAVED_MODEL, LITE),
    "tags": (SAVED_MODEL,),
    "inter_op_thread_count": (SAVED_MODEL, KERAS),
    "xla": (SAVED_MODEL, KERAS),
    "memory_growth": (SAVED_MODEL, KERAS),
    "memory_limit_mb": (SAVED_MODEL, KERAS),
}
