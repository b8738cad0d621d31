"""The dynamic batcher of one worker: which waiting requests run together, and how they are joined and split.

Pure: no clock, no I/O, no threads of its own; whoever calls it says what time it is (nanoseconds of one clock).

Rules (those of Triton's dynamic batcher):

* without a ``BatchingSpec``, or without a batch dimension, each request runs alone, in order of arrival;
* only requests with equal keys (names, datatypes, shapes past the batch dimension) share a batch, and a batch holds at
  most ``max_batch_size`` rows; a request that is larger by itself still runs, alone;
* the oldest waiting request decides the key, hence no request is passed by for ever. Inside its key order is kept;
* with preferred sizes the largest one that can be formed is sent at once;
* otherwise the batch waits until its oldest request is ``max_queue_delay_us`` old, unless waiting is of no use: the
  next request does not fit any more (neither the limit nor the largest preferred size), or requests with another key
  wait behind. Then what is there is sent.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from backends.errors import InferenceFailed, InvalidInput, LoadFailed
from backends.spec import BatchingSpec, ModelSpec, TensorSpec
from backends.tensor import Tensor

#: Rows of a batch where the spec leaves that to the backend, and the backend knows that rows stay apart.
DEFAULT_MAX_BATCH_SIZE: Final = 32
#: A rebuild of the deadline heap is worth it only above this many entries.
_SMALL_HEAP: Final = 64


class Pending(msgspec.Struct, eq=False):
    """One request that waits in the worker. ``rows`` is its share of the batch dimension (1 where there is none).

    ``arrived_ns`` and ``deadline_ns`` (0: none) are readings of the clock that is handed to the ``Batcher``.
    """

    id: int
    tensors: list[Tensor]
    outputs: tuple[str, ...]
    parameters: dict[str, Any]
    priority: int
    arrived_ns: int
    deadline_ns: int
    rows: int
    key: Hashable


#: Requests that run together, oldest first; never empty.
Batch = list[Pending]


def decide(spec: ModelSpec, tensors: Sequence[TensorSpec], rows_apart: bool) -> tuple[int, BatchingSpec | None]:
    """A loaded model's ``max_batch_size`` and batching, from its inputs and outputs.

    What the spec says is taken as it is. Where it says nothing, the model batches only if the backend vouches for it
    (``rows_apart``): a wrong guess would mix the answers of different clients. Raises ``LoadFailed`` that names the
    tensor without a variable first dimension if the spec demands a batch.
    """
    fixed = next((tensor for tensor in tensors if tensor.shape[:1] != (-1,)), None)
    if spec.max_batch_size is None:
        if fixed is not None or not rows_apart:
            return 0, None
        return DEFAULT_MAX_BATCH_SIZE, spec.batching or BatchingSpec()
    if spec.max_batch_size < 0:
        raise LoadFailed(f"max_batch_size is {spec.max_batch_size}; it is 0 (no batching) or more")
    if spec.max_batch_size == 0:
        return 0, None
    if fixed is not None:
        raise LoadFailed(
            f"max_batch_size is {spec.max_batch_size}, but tensor {fixed.name!r} of shape {list(fixed.shape)} has no "
            "variable first dimension: set max_batch_size to 0, or export the model with a variable batch dimension"
        )
    return spec.max_batch_size, spec.batching


def batch_key(tensors: Sequence[Tensor], parameters: dict[str, Any] | None, batched: bool) -> Hashable:
    """What two requests must have in common to share a batch; the order of their inputs does not matter.

    ``parameters`` is None or empty for a backend that does not use them. ``batched`` leaves the first dimension out.
    """
    first = 1 if batched else 0
    shapes = sorted((tensor.name, tensor.datatype, tensor.shape[first:]) for tensor in tensors)
    # encoded, because True, 1 and 1.0 are equal as Python values and different as parameters
    encoded = msgspec.msgpack.encode(parameters, order="deterministic") if parameters else None
    return (*shapes, encoded)


class Batcher:
    """Holds what waits. Every operation costs about the same whether ten or ten thousand requests wait."""

    def __init__(self, max_batch_size: int, batching: BatchingSpec | None) -> None:
        self.joins = batching is not None and max_batch_size > 1  # otherwise there are no groups, and keys are unused
        spec = batching or BatchingSpec()
        self._delay_ns = spec.max_queue_delay_us * 1000 if self.joins else 0
        # a preferred size over the maximum can never be formed
        self._preferred = frozenset(size for size in spec.preferred_batch_sizes if 0 < size <= max_batch_size)
        self._limit = max(self._preferred, default=max_batch_size) if self.joins else 1
        self._goal = min(self._preferred, default=self._limit)
        # OrderedDict and not dict: the oldest entry of a dict is found in O(n) after removals at its front
        self._waiting: OrderedDict[int, Pending] = OrderedDict()
        self._groups: dict[Hashable, _Group] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Pending) -> None:
        """Queue a request; requests come in order of arrival. Raises ``ValueError`` if its id waits already."""
        if request.id in self._waiting:
            raise ValueError(f"request {request.id} waits already")
        self._waiting[request.id] = request
        if request.deadline_ns:
            heapq.heappush(self._deadlines, (request.deadline_ns, request.id))
        if not self.joins:
            return
        group = self._groups.get(request.key)
        if group is None:
            group = self._groups[request.key] = _Group()
        group.add(request)

    def cancel(self, id: int) -> bool:
        """Drop a request; False if it does not wait here (it runs already, or was answered)."""
        request = self._waiting.get(id)
        if request is None:
            return False
        self._remove(request)
        return True

    def take(self, now_ns: int) -> Batch | None:
        """The next batch, removed from the queue; None if nothing waits or more company is awaited.

        It does not look at deadlines: take what has ``expired`` out first.
        """
        if not self._waiting:
            return None
        if not self.joins:
            request = next(iter(self._waiting.values()))
            self._remove(request)
            return [request]
        group = self._head_group()
        if group.rows < self._goal and self._awaits_company(now_ns):
            return None
        batch, complete = self._fill(group)
        if not complete and self._awaits_company(now_ns):
            return None
        for request in batch:
            self._remove(request)
        return batch

    def expired(self, now_ns: int) -> list[Pending]:
        """Requests whose deadline has passed, removed from the queue, earliest deadline first."""
        gone: list[Pending] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now_ns:
            request = self._waiting[self._deadlines[0][1]]
            self._remove(request)
            gone.append(request)
        return gone

    def next_deadline(self) -> int | None:
        """The earliest deadline of what waits."""
        heap = self._deadlines
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def wake_at(self, now_ns: int) -> int | None:
        """When to look again although nothing new arrives: a batch is due, or a deadline passes.

        Not later than ``now_ns`` if ``take`` would give a batch at once; None if nothing waits.
        """
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        due = now_ns
        if self._awaits_company(now_ns) and not self._fill(self._head_group())[1]:
            due = oldest.arrived_ns + self._delay_ns
        deadline = self.next_deadline()
        return due if deadline is None else min(due, deadline)

    def _head_group(self) -> _Group:
        return self._groups[next(iter(self._waiting.values())).key]

    def _awaits_company(self, now_ns: int) -> bool:
        """Whether waiting may still complete the head's batch."""
        if not self._delay_ns or len(self._groups) > 1:
            return False
        return now_ns - next(iter(self._waiting.values())).arrived_ns < self._delay_ns

    def _fill(self, group: _Group) -> tuple[Batch, bool]:
        """The batch that the group gives now, and whether it is as good as it gets."""
        batch: Batch = []
        rows = preferred = 0
        full = False
        for request in group:
            if batch and rows + _share(request) > self._limit:
                full = True
                break
            batch.append(request)
            rows += _share(request)
            if rows in self._preferred:
                preferred = len(batch)
        if preferred:
            return batch[:preferred], True
        return batch, full or rows >= self._limit

    def _remove(self, request: Pending) -> None:
        del self._waiting[request.id]
        if self.joins:
            group = self._groups[request.key]
            group.remove(request)
            if not group.rows:
                del self._groups[request.key]
        if len(self._deadlines) > _SMALL_HEAP + 2 * len(self._waiting):
            self._deadlines = [entry for entry in self._deadlines if self._is_live(entry)]
            heapq.heapify(self._deadlines)

    def _is_live(self, entry: tuple[int, int]) -> bool:
        request = self._waiting.get(entry[1])
        return request is not None and request.deadline_ns == entry[0]


class _Group:
    """What waits with one key, in order of arrival."""

    def __init__(self) -> None:
        self._members: OrderedDict[int, Pending] = OrderedDict()
        self.rows = 0

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._members.values())

    def add(self, request: Pending) -> None:
        self._members[request.id] = request
        self.rows += _share(request)

    def remove(self, request: Pending) -> None:
        del self._members[request.id]
        self.rows -= _share(request)


def _share(request: Pending) -> int:
    """Rows that count towards the limit; a request without any counts as one, so that batches stay bounded."""
    return max(request.rows, 1)


def join(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """The batch's inputs, each as one array joined along axis 0; a batch of one passes its views unchanged.

    All members have equal keys. Raises ``InvalidInput`` that names the tensor whose bytes do not fit its shape.
    """
    if len(batch) == 1:
        return {tensor.name: _array(tensor) for tensor in batch[0].tensors}
    parts: dict[str, list[npt.NDArray[Any]]] = {tensor.name: [] for tensor in batch[0].tensors}
    for request in batch:
        for tensor in request.tensors:
            parts[tensor.name].append(_array(tensor))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    try:
        return tensor.numpy()
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"input {tensor.name!r}: {len(tensor.data)} bytes are no {tensor.datatype} tensor of shape "
            f"{list(tensor.shape)} ({error})"
        ) from error


def split(outputs: dict[str, npt.NDArray[Any]], rows: Sequence[int]) -> list[dict[str, npt.NDArray[Any]]]:
    """Each member's share of the outputs, as views; ``rows`` are the members' rows in the order of the batch.

    Only for models with a batch dimension. Raises ``InferenceFailed`` if an output does not have one row per input row:
    then nobody can say whose rows are whose.
    """
    total = sum(rows)
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != total:
            raise InferenceFailed(
                f"output {name!r} has shape {list(array.shape)} for {total} input row(s): the model does not keep the "
                "rows of a batch apart; set max_batch_size to 0 for it"
            )
    shares: list[dict[str, npt.NDArray[Any]]] = []
    start = 0
    for count in rows:
        shares.append({name: array[start : start + count] for name, array in outputs.items()})
        start += count
    return shares
