"""The dynamic batcher of one worker: which waiting requests run together, and when.

Pure: no clock, no I/O, no threads of its own; whoever calls it says what time it is (nanoseconds of one clock).

Rules (those of Triton's dynamic batcher, but for the ageing and for what "delayed" means):

* without a ``BatchingSpec``, or without a batch dimension, each request runs alone;
* requests stand in line by arrival; one of priority p as if it had arrived (p - 1) times ``ageing_us`` later;
* only requests with equal keys (names, datatypes, shapes past the batch dimension, of which ``backends.padding`` leaves
  the lengths out) share a batch, and a batch holds at most ``max_batch_size`` rows; a request that is larger by itself
  still runs, alone;
* the first in line decides the key, hence no request is passed by for ever. Inside its key the order is kept;
* with preferred sizes the largest one that can be formed is sent at once;
* otherwise the batch waits until the oldest request is ``max_queue_delay_us`` old, unless waiting is of no use: the
  next request does not fit any more (neither the limit nor the largest preferred size), or requests with another key
  wait behind. Then what is there is sent;
* a request whose policy's time is up is refused, or stands in line anew, behind whoever waits with its priority.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import msgspec

from backends.errors import LoadFailed
from backends.spec import BatchingSpec, ModelSpec, QueuePolicy, TensorSpec
from backends.tensor import Tensor

#: Rows of a batch where the spec leaves that to the backend, and the backend knows that rows stay apart.
DEFAULT_MAX_BATCH_SIZE: Final = 32
#: A rebuild of the deadline heap is worth it only above this many entries.
_SMALL_HEAP: Final = 64


class QueueFull(Exception):
    """As many requests as the policy allows wait already."""


class Pending(msgspec.Struct, eq=False):
    """One request that waits in the worker. ``rows`` is its share of the batch dimension (1 where there is none).

    ``arrived_ns`` and ``deadline_ns`` (0: none) are readings of the clock that is handed to the ``Batcher``, which
    sets the last four: the level (priority), since when and with which rank it stands in line, and until when (0: any).
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
    level: int = 1
    queued_ns: int = 0
    rank: int = 0
    until_ns: int = 0


#: Requests that run together, oldest first; never empty.
Batch = list[Pending]


def decide(spec: ModelSpec, tensors: Sequence[TensorSpec], rows_apart: bool) -> tuple[int, BatchingSpec | None]:
    """A loaded model's ``max_batch_size`` and batching, from its inputs and outputs.

    What the spec says is taken as it is. Where it says nothing, the model batches only if the backend vouches for it
    (``rows_apart``): a wrong guess would mix the answers of different clients. Raises ``LoadFailed`` that names the
    tensor without a variable first dimension if the spec demands a batch.
    """
    alone = spec.batching if spec.batching is not None and spec.batching.orders else None
    fixed = next((tensor for tensor in tensors if tensor.shape[:1] != (-1,)), None)
    if spec.max_batch_size is None:
        if fixed is not None or not rows_apart:
            return 0, alone
        return DEFAULT_MAX_BATCH_SIZE, spec.batching or BatchingSpec()
    if spec.max_batch_size < 0:
        raise LoadFailed(f"max_batch_size is {spec.max_batch_size}; it is 0 (no batching) or more")
    if spec.max_batch_size == 0:
        return 0, alone
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
        self._spec = spec = batching or BatchingSpec()
        self._ageing_ns = spec.ageing_us * 1000
        self._delay_ns = spec.max_queue_delay_us * 1000 if self.joins else 0
        # a preferred size over the maximum can never be formed
        self._preferred = frozenset(size for size in spec.preferred_batch_sizes if 0 < size <= max_batch_size)
        self._limit = max(self._preferred, default=max_batch_size) if self.joins else 1
        self._goal = min(self._preferred, default=self._limit)
        self._waiting: dict[int, Pending] = {}
        self._line = _Line()
        self._groups: dict[Hashable, _Line] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Pending) -> None:
        """Queue a request; requests come in order of arrival.

        Raises ``QueueFull`` if the policy allows no more, ``ValueError`` if its id waits already.
        """
        if request.id in self._waiting:
            raise ValueError(f"request {request.id} waits already")
        request.level = self._level(request.priority)
        policy = self._policy(request.level)
        if policy.max_size and self._line.waiting(request.level) >= policy.max_size:
            raise QueueFull(
                f"Exceeds maximum queue size: {policy.max_size} requests of priority {request.level} wait already "
                "(max_queue_size of the model's configuration); try again later"
            )
        until_ns = request.deadline_ns
        if policy.timeout_us:
            limit_ns = request.arrived_ns + policy.timeout_us * 1000
            until_ns = min(limit_ns, until_ns or limit_ns)
        self._enqueue(request, request.arrived_ns, until_ns)

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
            request = self._line.first()
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
        """Requests whose time is up, removed from the queue, earliest first; those that are delayed stay in it."""
        gone: list[Pending] = []
        while (until := self.next_deadline()) is not None and until <= now_ns:
            request = self._waiting[self._deadlines[0][1]]
            self._remove(request)
            if self._policy(request.level).delays and request.deadline_ns != until:
                self._enqueue(request, now_ns, request.deadline_ns)
            else:
                gone.append(request)
        return gone

    def next_deadline(self) -> int | None:
        """When the time of the first of those that wait is up."""
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
        due = now_ns
        if self._awaits_company(now_ns) and not self._fill(self._head_group())[1]:
            due = self._line.oldest_ns() + self._delay_ns
        deadline = self.next_deadline()
        return due if deadline is None else min(due, deadline)

    def _level(self, priority: int) -> int:
        levels = self._spec.priority_levels
        return priority if 0 < priority <= levels else self._spec.default_priority or 1

    def _policy(self, level: int) -> QueuePolicy:
        return self._spec.policies.get(level, self._spec.policy)

    def _enqueue(self, request: Pending, now_ns: int, until_ns: int) -> None:
        """To the end of the line of its level."""
        request.queued_ns = now_ns
        request.rank = now_ns + (request.level - 1) * self._ageing_ns
        request.until_ns = until_ns
        self._waiting[request.id] = request
        self._line.add(request)
        if until_ns:
            heapq.heappush(self._deadlines, (until_ns, request.id))
        if self.joins:
            group = self._groups.get(request.key)
            if group is None:
                group = self._groups[request.key] = _Line()
            group.add(request)

    def _head_group(self) -> _Line:
        return self._groups[self._line.first().key]

    def _awaits_company(self, now_ns: int) -> bool:
        """Whether waiting may still complete the head's batch."""
        if not self._delay_ns or len(self._groups) > 1:
            return False
        return now_ns - self._line.oldest_ns() < self._delay_ns

    def _fill(self, group: _Line) -> tuple[Batch, bool]:
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
        self._line.remove(request)
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
        return request is not None and request.until_ns == entry[0]


class _Line:
    """Requests by rank. Inside a level that is the order in which they were added: one lane for each level."""

    def __init__(self) -> None:
        # OrderedDict and not dict: the oldest entry of a dict is found in O(n) after removals at its front
        self._lanes: dict[int, OrderedDict[int, Pending]] = {}  # none is empty
        self.rows = 0

    def __iter__(self) -> Iterator[Pending]:
        lanes = [lane.values() for lane in self._lanes.values()]
        return iter(lanes[0]) if len(lanes) == 1 else heapq.merge(*lanes, key=_by_rank)

    def add(self, request: Pending) -> None:
        lane = self._lanes.get(request.level)
        if lane is None:
            lane = self._lanes[request.level] = OrderedDict()
        lane[request.id] = request
        self.rows += _share(request)

    def remove(self, request: Pending) -> None:
        lane = self._lanes[request.level]
        del lane[request.id]
        if not lane:
            del self._lanes[request.level]
        self.rows -= _share(request)

    def first(self) -> Pending:
        """Who is next; there has to be somebody."""
        fronts = self._fronts()
        return fronts[0] if len(fronts) == 1 else min(fronts, key=_by_rank)

    def oldest_ns(self) -> int:
        """Since when the one that waits longest stands in line; there has to be somebody."""
        return min(request.queued_ns for request in self._fronts())

    def waiting(self, level: int) -> int:
        """How many wait with this level."""
        return len(self._lanes.get(level, ()))

    def _fronts(self) -> list[Pending]:
        return [next(iter(lane.values())) for lane in self._lanes.values()]


def _by_rank(request: Pending) -> tuple[int, int]:
    return request.rank, request.level


def _share(request: Pending) -> int:
    """Rows that count towards the limit; a request without any counts as one, so that batches stay bounded."""
    return max(request.rows, 1)
