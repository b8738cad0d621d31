"""The data plane: one way through the gateway for every transport. Transports only convert.

It resolves the version; ``Inference`` does the rest of the way.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

import msgspec

from backends.spec import Signature, TensorSpec
from gateway.errors import GatewayError
from gateway.inference.request import InferRequest, InferResponse
from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.manager import Manager
from gateway.lifecycle.state import VersionState
from gateway.modelconfig.render import render
from gateway.proto.model_config_pb2 import ModelConfig
from gateway.serving.call import Call, Done, Inference, Outcome
from gateway.serving.lane import Lane
from gateway.serving.shadow import Shadows
from gateway.telemetry.statistics import ModelStatistics

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
        #: For the transports' large requests and answers, and the checks of what is large in them.
        self.lane = Lane()
        self.shadows = Shadows(self.lane)

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
        versions = tuple(str(n) for n in self._ready_numbers(name) if version in ("", str(n)))
        return ModelMetadata(name, versions, signature.platform, signature.inputs, signature.outputs)

    def signature(self, name: str, version: str = "") -> Signature:
        """What the version takes and gives. Raises ``NotFound`` or ``ModelNotReady``."""
        return self._catalog.resolve(name, version).signature

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """The completed configuration. Raises ``NotFound`` or ``ModelNotReady``."""
        served = self._catalog.resolve(name, version)
        return render(served.spec, served.signature, served.config, self._ready_numbers(name))

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

    def _ready_numbers(self, name: str) -> list[int]:
        versions = self._catalog.versions[name].items()
        return sorted(number for number, served in versions if served.state is VersionState.READY)

    # --- inference ---

    def start(self, request: InferRequest, done: Done) -> Call:
        """Start one request; ``done`` gets the response or the error, later. Encode a response, then ``release`` it.

        What ``done`` returns is cancelled with the call.

        Raises ``GatewayError`` for a request that is refused at once; ``done`` is not called then.
        """
        served = self._catalog.route(request)
        if shadows := self._catalog.shadows(request):
            done = self.shadows.watched(request, served, shadows, done)
        call = Inference(served, request, done, self.lane)
        call.start()
        return call

    async def infer(self, request: InferRequest) -> InferResponse:
        """``start`` for who would rather wait. Raises ``GatewayError``; a cancelled task cancels the request."""
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        call = self.start(request, partial(_settle, future))
        try:
            return await future
        except asyncio.CancelledError:
            call.cancel()
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release()  # it came in the same turn in which the client left
            raise


def _settle(future: asyncio.Future[InferResponse], outcome: Outcome) -> None:
    if future.cancelled():  # and the task that waits has not run since
        if isinstance(outcome, InferResponse):
            outcome.release()
    elif isinstance(outcome, InferResponse):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def server_version() -> str:
    """The version of the distribution."""
    try:
        return package_version("tensorgate")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "0+source"
