"""Copies of requests for versions that are tried out: nobody waits for them, and their answers are only compared.

A copy starts when the original has been answered, runs with the lowest priority, is never tried again, and is the first
to go: where the version has no room at once, or too many copies run already, there is none.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from backends.tensor import Tensor
from gateway.errors import GatewayError
from gateway.inference.request import InferRequest, InferResponse
from gateway.lifecycle.served import Served
from gateway.serving.call import Call, Done, Inference, Outcome
from gateway.serving.lane import Lane
from gateway.telemetry.statistics import Duration
from registry.traffic import Shadow

#: Copies of one model that run at a time.
MAX_RUNNING: Final = 16
#: Answers that are larger are not compared: keeping one until its copy is there would hold up others.
MAX_COMPARED_BYTES: Final = 4 << 20
#: Floating-point numbers that differ by less are the same: other kernels round in another order.
RELATIVE: Final = 1e-3
ABSOLUTE: Final = 1e-5

_chance: Final = random.Random().random  # noqa: S311 - nobody gains by guessing it


class ShadowStatistics:
    """What came of the copies for one version. ``original`` and ``copy`` are the times of those that were compared."""

    __slots__ = ("copy", "different", "dropped", "equal", "failed", "incomparable", "original")

    def __init__(self) -> None:
        self.equal = 0
        self.different = 0
        self.incomparable = 0  # too large
        self.failed = 0
        self.dropped = 0  # there was no room
        self.original = Duration()
        self.copy = Duration()


class Original(msgspec.Struct, gc=False):
    """The answer that a copy's is compared with: kept, because its memory goes back to the worker."""

    outputs: list[Tensor] | None  # None: too large to keep
    ns: int


class Shadows:
    """The copies of all models of this gateway."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._running: dict[str, int] = {}
        self._statistics: dict[tuple[str, int], ShadowStatistics] = {}

    def watched(self, request: InferRequest, served: Served, shadows: list[tuple[Shadow, Served]], done: Done) -> Done:
        """``done`` of the original, which ``served`` gets, followed by the copies that chance gives it."""
        drawn = [shadow for entry, shadow in shadows if shadow is not served and _chance() * 100 < entry.percent]
        return self._followed(request, drawn, done) if drawn else done

    def _followed(self, request: InferRequest, versions: list[Served], done: Done) -> Done:
        """An original that fails has no copies."""
        began = time.monotonic_ns()

        def answered(outcome: Outcome) -> Call | None:
            original = None if isinstance(outcome, GatewayError) else _kept(outcome, time.monotonic_ns() - began)
            try:
                return done(outcome)
            finally:
                if original is not None:
                    for served in versions:
                        self._copy(request, served, original)

        return answered

    def _copy(self, request: InferRequest, served: Served, original: Original) -> None:
        name = served.record.model
        statistics = self.of(name, served.record.number)
        if self._running.get(name, 0) >= MAX_RUNNING or served.waiting or served.pick() is None:
            statistics.dropped += 1
            return
        batching = served.signature.batching
        copy = msgspec.structs.replace(request, priority=batching.priority_levels if batching else 0, timeout_us=0)
        self._running[name] = self._running.get(name, 0) + 1
        began = time.monotonic_ns()
        try:
            Inference(served, copy, partial(self._compare, name, statistics, original, began), self._lane).start()
        except GatewayError:  # it may take other inputs
            self._running[name] -= 1
            statistics.failed += 1

    def _compare(
        self,
        name: str,
        statistics: ShadowStatistics,
        original: Original,
        began: int,
        outcome: Outcome,
    ) -> None:
        self._running[name] -= 1
        if isinstance(outcome, GatewayError):
            statistics.failed += 1
            return
        try:
            statistics.original.add(original.ns)
            statistics.copy.add(time.monotonic_ns() - began)
            if original.outputs is None:
                statistics.incomparable += 1
            elif same(original.outputs, outcome.outputs):
                statistics.equal += 1
            else:
                statistics.different += 1
        finally:
            outcome.release()

    def of(self, model: str, number: int) -> ShadowStatistics:
        """The counters of one version; they begin when it is first asked for."""
        found = self._statistics.get((model, number))
        if found is None:
            found = self._statistics[model, number] = ShadowStatistics()
        return found


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether two answers say the same: names, datatypes, shapes, and elements (numbers nearly)."""
    by_name = {tensor.name: tensor for tensor in other}
    return len(one) == len(other) and all(_same(tensor, by_name.get(tensor.name)) for tensor in one)


def _same(one: Tensor, other: Tensor | None) -> bool:
    if other is None or (one.datatype, one.shape) != (other.datatype, other.shape):
        return False
    if one.data == other.data:
        return True
    if one.datatype == "BF16":
        return bool(np.allclose(_widened(one), _widened(other), RELATIVE, ABSOLUTE, equal_nan=True))
    if one.datatype in ("FP16", "FP32", "FP64"):
        return bool(np.allclose(one.numpy(), other.numpy(), RELATIVE, ABSOLUTE, equal_nan=True))
    return False


def _widened(tensor: Tensor) -> Any:
    """BF16 is the upper half of FP32."""
    return (tensor.numpy().astype(np.uint32) << 16).view(np.float32)


def _kept(response: InferResponse, ns: int) -> Original:
    if sum(len(tensor.data) for tensor in response.outputs) > MAX_COMPARED_BYTES:
        return Original(None, ns)
    return Original([msgspec.structs.replace(tensor, data=bytes(tensor.data)) for tensor in response.outputs], ns)
