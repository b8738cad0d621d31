"""The data plane: one way through the gateway for every transport. Transports only convert.

resolve the version -> validate -> wait for a replica with room -> send -> await -> account
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

import msgspec

from backends.spec import Signature, TensorSpec
from gateway.errors import DeadlineExceeded, GatewayError, ModelNotReady
from gateway.inference.request import InferRequest, InferResponse
from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.manager import Manager
from gateway.lifecycle.served import Served
from gateway.lifecycle.state import VersionState
from gateway.modelconfig.render import render
from gateway.proto.model_config_pb2 import ModelConfig
from gateway.telemetry.statistics import ModelStatistics
from gateway.workers.channel import Channel, Reply, Sent
from gateway.workers.replica import Replica

SERVER_NAME = "tensorgate"
EXTENSIONS = ("model_configuration", "binary_tensor_data", "parameters", "statistics")


class ServerMetadata(msgspec.Struct, frozen=True):
    """What the server says of itself."""

    name: str
    version: str
    extensions: tuple[str, ...]


class ModelMetadata(msgspec.Struct, frozen=True):
    """What a model takes and gives; shapes with the batch dimension."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class IndexEntry(msgspec.Struct, frozen=True):
    """One version in the repository index; ``state`` in Triton's words, ``version`` "" for a model not loaded."""

    name: str
    version: str
    state: str
    reason: str


_INDEX_STATE = {
    VersionState.READY: "READY",
    VersionState.LOADING: "LOADING",
    VersionState.RESTARTING: "LOADING",
    VersionState.DRAINING: "UNLOADING",
    VersionState.UNLOADED: "UNAVAILABLE",
    VersionState.FAILED: "UNAVAILABLE",
}


class DataPlane:
    """Inference and what clients may ask about models. One event loop; nothing here touches the database."""

    def __init__(self, catalog: Catalog, manager: Manager) -> None:
        self._catalog = catalog
        self._manager = manager
        self._draining = False

    # --- health ---

    def live(self) -> bool:
        """The process answers."""
        return True

    def ready(self) -> bool:
        """Requests for every required model can be served, and the server is not stopping."""
        return not self._draining and self._manager.ready()

    def drain(self) -> None:
        """The server is stopping: say so to load balancers, go on serving."""
        self._draining = True

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a request for it would be taken now; false for an unknown one."""
        try:
            self._catalog.resolve(name, version)
        except GatewayError:
            return False
        return True

    # --- what is known ---

    def server_metadata(self) -> ServerMetadata:
        """Name, version and protocol extensions."""
        return ServerMetadata(SERVER_NAME, server_version(), EXTENSIONS)

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Raises ``NotFound`` or ``ModelNotReady``."""
        served = self._catalog.resolve(name, version)
        signature = served.signature
        versions = tuple(
            str(number)
            for number, other in sorted(self._catalog.versions[name].items())
            if other.state is VersionState.READY and version in ("", str(number))
        )
        return ModelMetadata(name, versions, signature.platform, signature.inputs, signature.outputs)

    def signature(self, name: str, version: str = "") -> Signature:
        """What the version takes and gives. Raises ``NotFound`` or ``ModelNotReady``."""
        return self._catalog.resolve(name, version).signature

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """The completed configuration. Raises ``NotFound`` or ``ModelNotReady``."""
        served = self._catalog.resolve(name, version)
        return render(served.spec, served.signature, served.config)

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Counters since each version was loaded: of all models, one model, or one version."""
        if not name:
            return [served.statistics for served in self._catalog.all()]
        if version:
            return [self._catalog.find(name, version).statistics]
        self._catalog.find(name, "")
        return [served.statistics for served in self._catalog.all() if served.record.model == name]

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """Every version that runs, is about to or was given up, and every model that does not run."""
        entries = [
            IndexEntry(served.record.model, str(served.record.number), _INDEX_STATE[served.state], served.reason)
            for served in self._catalog.all()
        ]
        if ready_only:
            return [entry for entry in entries if entry.state == "READY"]
        awaited = self._catalog.awaited()
        entries += [IndexEntry(model, str(number), "LOADING", "it waits for its turn") for model, number in awaited]
        entries += [
            IndexEntry(problem.name, str(problem.version or ""), "UNAVAILABLE", problem.reason)
            for problem in self._catalog.problems
        ]
        named = {entry.name for entry in entries}
        idle = sorted(name for name in self._catalog.registered if name not in named)
        return entries + [IndexEntry(name, "", "UNAVAILABLE", "unloaded") for name in idle]

    # --- inference ---

    async def infer(self, request: InferRequest) -> InferResponse:
        """Run one request. Raises ``GatewayError``. Encode the answer, then call its ``release``, always."""
        began = time.monotonic_ns()
        served = self._catalog.resolve(request.model, request.version)
        statistics = served.statistics
        served.enter()
        try:
            assert served.validator is not None  # READY
            served.validator.check(request.inputs, request.outputs)
            reply, waited = await self._run(served, request, began)
        except (GatewayError, asyncio.CancelledError):
            statistics.record_failure(time.monotonic_ns() - began)
            raise
        finally:
            served.leave()
        batch = reply.batch
        total, queued = time.monotonic_ns() - began, waited + reply.queue_ns
        rows = request.inputs[0].shape[0] if served.signature.max_batch_size else 1
        statistics.record_success(total, queued, batch.input_ns, batch.infer_ns, batch.output_ns, rows)
        return InferResponse(request.model, str(served.record.number), reply.tensors, reply.release, request.id)

    async def _run(self, served: Served, request: InferRequest, began: int) -> tuple[Reply, int]:
        """The reply, and the nanoseconds waited here for a replica."""
        deadline = began + request.timeout_us * 1000 if request.timeout_us else 0
        replica = served.pick() if not served.waiting else None
        waited = 0
        if replica is None:
            replica = await self._wait_for_room(served, deadline)
            replica.promised -= 1  # from here to the sending there is no await: the place is ours
            waited = time.monotonic_ns() - began
        try:
            return await self._call(replica, request, deadline), waited
        finally:
            if served.waiting:
                served.freed()

    async def _call(self, replica: Replica, request: InferRequest, deadline: int) -> Reply:
        process = replica.process
        if process is None:
            raise ModelNotReady(f"worker {replica.id} has just gone; try again")
        channel = process.channel
        timeout_us = max(1, (deadline - time.monotonic_ns()) // 1000) if deadline else 0
        sent = channel.submit(
            request.inputs, request.outputs, timeout_us, request.priority, request.parameters, request.trace
        )
        timer = None
        if deadline:
            timer = asyncio.get_running_loop().call_later(timeout_us / 1e6, _expire, channel, sent)
        try:
            return await sent.future
        except asyncio.CancelledError:
            channel.abandon(sent)
            if sent.future.done() and not sent.future.cancelled() and sent.future.exception() is None:
                sent.future.result().release()  # it came in the same turn in which the client left
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def _wait_for_room(self, served: Served, deadline: int) -> Replica:
        if not deadline:
            return await served.wait_for_room()
        try:
            async with asyncio.timeout(max(0, deadline - time.monotonic_ns()) / 1e9):
                return await served.wait_for_room()
        except TimeoutError:
            raise DeadlineExceeded(
                "Request timeout expired: it waited for a free worker until its time was up"
            ) from None


def _expire(channel: Channel, sent: Sent) -> None:
    """The client's time is up, whatever the worker does."""
    if not sent.future.done():
        sent.future.set_exception(DeadlineExceeded("Request timeout expired: the model had not answered in time"))
        channel.abandon(sent)


def server_version() -> str:
    """The version of the distribution."""
    try:
        return package_version("tensorgate")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "0+source"
