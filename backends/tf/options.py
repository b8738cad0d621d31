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

from typing import Final

import msgspec

from backends.devices import wants_cuda
from backends.options import Table, names, number, switch, thread_count, threads_of_one, words
from backends.spec import ModelSpec
from backends.tf.artifact import KERAS, LITE, SAVED_MODEL


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


def parse(spec: ModelSpec, cores: int) -> Options:
    """Raises ``LoadFailed`` that names the option and what it accepts, or the device."""
    values = TABLE.read(spec.options)
    instances = max(spec.instances, 1)
    return Options(
        intra_op_threads=threads_of_one(values.pop("intra_op_thread_count", 0), cores, instances),
        inter_op_threads=values.pop("inter_op_thread_count", 0),
        instances=instances,
        gpu=wants_cuda(spec.device),
        **values,
    )


_tag_names: Final = names("tags", "serve,gpu")

TABLE: Final = Table(
    "tf",
    {
        "signature": words("the name of a signature"),
        "tags": lambda text: frozenset(_tag_names(text)),
        "intra_op_thread_count": thread_count,
        "inter_op_thread_count": thread_count,
        "xla": switch,
        "memory_growth": switch,
        "memory_limit_mb": number(1, 1 << 30, "megabytes"),
        "allow_code": switch,
    },
    aliases={
        "TF_SIGNATURE_DEF": "signature",
        "TF_GRAPH_TAG": "tags",
        "TF_NUM_INTRA_THREADS": "intra_op_thread_count",
        "TF_NUM_INTER_THREADS": "inter_op_thread_count",
    },
    ignored=frozenset({"TF_USE_PER_SESSION_THREADS", "MAX_SESSION_SHARE_COUNT"}),
    kinds={
        "signature": (SAVED_MODEL, LITE),
        "tags": (SAVED_MODEL,),
        "inter_op_thread_count": (SAVED_MODEL, KERAS),
        "xla": (SAVED_MODEL, KERAS),
        "memory_growth": (SAVED_MODEL, KERAS),
        "memory_limit_mb": (SAVED_MODEL, KERAS),
    },
)
