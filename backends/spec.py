"""What a model is: datatypes, tensor and model specifications. Shared by both sides of the process border."""

from __future__ import annotations

from typing import Final

import msgspec

#: Open Inference Protocol datatypes and their bytes per element; ``BYTES`` has no fixed size (0).
ITEM_SIZE: Final[dict[str, int]] = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8,
    "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "BYTES": 0,
}  # fmt: skip

#: Frameworks whose backend is part of this distribution, in the order in which they are offered.
FRAMEWORKS: Final = ("echo", "onnx", "torch", "tf")

#: The option with which the operator (never a model's own configuration) lets a model bring code that runs; and the
#: frameworks that know it.
ALLOW_CODE: Final = "allow_code"
CODE_FRAMEWORKS: Final = frozenset({"torch", "tf"})


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output: ``shape`` is the full shape, the batch dimension included; -1 is variable."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


class QueuePolicy(msgspec.Struct, frozen=True):
    """What becomes of the requests that wait with one priority.

    One that has waited ``timeout_us`` (0: no limit) is refused, or goes to the end of the line where ``delays``.
    ``max_size`` is how many may wait; 0: any number.
    """

    timeout_us: int = 0
    delays: bool = False
    max_size: int = 0


class PaddingSpec(msgspec.Struct, frozen=True):
    """How requests of different lengths share a batch; lengths are sizes of variable axes past the batch dimension.

    ``values``: input -> the number that its variable axes are padded with. ``masks``: input that is 1 in real places
    and 0 in padded ones -> input of ``values`` that it is the mask of. ``crops``: output -> input whose lengths its
    variable axes have. The longest of a batch is at most ``max_ratio`` times as long as the shortest; 0: any.
    """

    values: dict[str, int | float]
    masks: dict[str, str] = {}
    crops: dict[str, str] = {}
    max_ratio: float = 0.0


class BatchingSpec(msgspec.Struct, frozen=True):
    """How a worker orders its requests and forms batches (Triton's dynamic batcher).

    Without one each request runs alone, in order of arrival. Priorities are 1 (highest) to ``priority_levels``; a
    request that names none of them has ``default_priority``. For each ``ageing_us`` of waiting a request overtakes
    one level, so that none starves. ``policies`` holds those of single levels, ``policy`` is for the others.
    Without ``padding`` only requests of one shape share a batch.
    """

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority: int = 0
    ageing_us: int = 1_000_000
    policy: QueuePolicy = QueuePolicy()
    policies: dict[int, QueuePolicy] = {}
    padding: PaddingSpec | None = None

    @property
    def orders(self) -> bool:
        """Whether this says more than who runs together: then it matters also where each request runs alone."""
        return self.preserve_ordering or self.holds_requests

    @property
    def holds_requests(self) -> bool:
        """Whether requests have to wait in the worker for these rules to have their effect."""
        policies = (self.policy, *self.policies.values())
        return self.priority_levels > 1 or any(policy != QueuePolicy() for policy in policies)


class WarmupInput(msgspec.Struct, frozen=True):
    """One input of a sample, with its full shape: zeros, random numbers, or the bytes of ``file`` (a plain name)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    random: bool = False
    file: str = ""


class Warmup(msgspec.Struct, frozen=True):
    """A sample that a worker runs ``count`` times before it is ready."""

    name: str
    inputs: tuple[WarmupInput, ...]
    count: int = 1


class ModelSpec(msgspec.Struct, frozen=True):
    """Everything a worker needs to load one version of a model.

    ``path`` is a file or folder on this machine. ``max_batch_size`` 0 means that the model has no batch dimension,
    ``None`` leaves the decision to the backend. ``inputs`` and ``outputs``, where given, narrow what the artifact says.
    ``options`` are the backend's own (documented there), always strings as in Triton's ``parameters``.
    """

    name: str
    version: int
    framework: str
    path: str
    max_batch_size: int | None = None
    batching: BatchingSpec | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    instances: int = 1
    device: str = "cpu"
    options: dict[str, str] = {}
    warmup: tuple[Warmup, ...] = ()


class Signature(msgspec.Struct, frozen=True):
    """What a loaded model takes and gives, and how it is batched; ``max_batch_size`` is decided (0: no batching)."""

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    batching: BatchingSpec | None = None
