"""Every message on the channel between gateway and worker, both directions.

Messages are msgspec structs in array form with an integer tag; the first field of a request's messages is its id.
A tensor's buffer is not in the message: it follows the header in the frame, or lies in an arena (``backends.wire``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from backends.spec import ModelSpec, Signature

#: Raised whenever the meaning of a message changes; both ends must agree.
PROTOCOL_VERSION = 2


class TensorHead(msgspec.Struct, array_like=True, gc=False):
    """A tensor without its bytes. ``offset`` -1: the bytes are in the frame; otherwise their place in the arena."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int
    offset: int = -1


# --- gateway to worker ---------------------------------------------------------------------------------------------


class Load(msgspec.Struct, array_like=True, tag=1):
    """Load the model; answered by ``Ready`` or ``Failed``, with ``Progress`` in between.

    ``idle_trim_s``: seconds without a request after which free memory goes back to the system; 0 is never.
    """

    spec: ModelSpec
    heartbeat_s: float
    idle_trim_s: float = 0.0


class Infer(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Run one request. ``timeout_us`` counts from arrival; 0 is none. ``outputs`` empty means all."""

    id: int
    tensors: list[TensorHead]
    outputs: tuple[str, ...] = ()
    timeout_us: int = 0
    priority: int = 0
    parameters: dict[str, Any] = {}
    trace: str = ""


class Cancel(msgspec.Struct, array_like=True, tag=3):
    """The client is gone: drop the request if it has not started. It is answered all the same."""

    id: int


class Release(msgspec.Struct, array_like=True, tag=4):
    """Blocks of the worker's arena that the gateway has consumed."""

    offsets: list[int]


class Drain(msgspec.Struct, array_like=True, tag=5):
    """Finish what was accepted, unload, answer ``Drained`` and exit 0."""


# --- worker to gateway ---------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, array_like=True, tag=32):
    """First message of a worker."""

    protocol: int
    pid: int


class Progress(msgspec.Struct, array_like=True, tag=33):
    """A stage of loading begins, the ``number``-th of ``count``, so long after the worker was told to load.

    How far a stage is nobody knows, hence no fraction.
    """

    stage: str
    number: int
    count: int
    elapsed_ns: int


class LoadReport(msgspec.Struct, array_like=True, frozen=True):
    """What a load took: the durations of its stages, and this process's resident memory.

    ``base_bytes`` is what was resident once the framework was imported, ``rss_bytes`` once the model was loaded and
    warmed up; the difference is the model's. ``peak_bytes`` is the most that was resident on the way.
    """

    import_ns: int
    read_ns: int
    warmup_ns: int
    base_bytes: int
    rss_bytes: int
    peak_bytes: int

    @property
    def total_ns(self) -> int:
        """All stages together."""
        return self.import_ns + self.read_ns + self.warmup_ns

    @property
    def model_bytes(self) -> int:
        """What the model added; 0 if it fitted into memory that was there already."""
        return max(0, self.rss_bytes - self.base_bytes)


class Ready(msgspec.Struct, array_like=True, tag=34):
    """The model is loaded. ``credits``: how many requests the worker will hold at a time."""

    signature: Signature
    runtime: str
    credits: int
    load: LoadReport


class Failed(msgspec.Struct, array_like=True, tag=35):
    """The model could not be loaded; the worker exits after this."""

    kind: str
    text: str


class Answer(msgspec.Struct, array_like=True, gc=False):
    """One request's outputs. ``queue_ns``: from its arrival in the worker to the start of its batch."""

    id: int
    tensors: list[TensorHead]
    queue_ns: int


class Answers(msgspec.Struct, array_like=True, tag=36, gc=False):
    """One executed batch. Durations are of the whole batch, in nanoseconds."""

    answers: list[Answer]
    batch_size: int
    input_ns: int
    infer_ns: int
    output_ns: int


class Refusal(msgspec.Struct, array_like=True, tag=37):
    """One request failed; ``kind`` is a ``BackendError.kind``, ``"cancelled"``, ``"deadline"`` or ``"overloaded"``."""

    id: int
    kind: str
    text: str
    queue_ns: int = 0


class Heartbeat(msgspec.Struct, array_like=True, tag=38):
    """The worker lives. ``executions`` is progress; ``batch_age_ns`` the age of the oldest running batch (0: idle)."""

    executions: int
    waiting: int
    batch_age_ns: int
    rss_bytes: int


class Drained(msgspec.Struct, array_like=True, tag=39):
    """Answer to ``Drain``: everything accepted was answered."""


ToWorker = Load | Infer | Cancel | Release | Drain
ToGateway = Hello | Progress | Ready | Failed | Answers | Refusal | Heartbeat | Drained
