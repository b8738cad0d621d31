"""The Open Inference Protocol over HTTP, from a whole request to a whole answer.

Every answer that is no success is ``{"error": ...}``, whatever went wrong. The content type of a request is not looked
at: clients send many, and the protocol decides by ``Inference-Header-Content-Length`` alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from gateway.errors import GatewayError, InvalidRequest
from gateway.lifecycle.catalog import listed
from gateway.modelconfig.render import to_json
from gateway.rest.answer import (
    JSON,
    Answer,
    Headers,
    Reply,
    error_answer,
    fault_answer,
    json_answer,
    our_fault,
)
from gateway.rest.v2.infer import Inferences
from gateway.serving.call import Call
from gateway.serving.dataplane import DataPlane, IndexEntry, ModelMetadata
from gateway.telemetry.statistics import to_json_dict

log = logging.getLogger("tensorgate.rest")

PREFIX: Final = "/v2"


class Request(msgspec.Struct):
    """A routed request. ``model`` and ``version`` come from the path, decoded; "" where it has none."""

    model: str
    version: str
    headers: Headers
    body: bytes
    reply: Reply


_Handler = Callable[[Request], Answer | Call]


class V2App:
    """Answers everything under ``/v2``."""

    def __init__(self, dataplane: DataPlane, max_json_bytes: int, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._dataplane = dataplane
        self._inferences = Inferences(dataplane, max_json_bytes)
        self._fixed: dict[tuple[str, ...], tuple[str, _Handler]] = {
            (): ("GET", self._server_metadata),
            ("health", "live"): ("GET", self._live),
            ("health", "ready"): ("GET", self._ready),
            ("models",): ("GET", self._list),
            ("models", "stats"): ("GET", self._statistics),
            ("repository", "index"): ("POST", self._index),
        }
        self._of_model: dict[str, tuple[str, _Handler]] = {
            "infer": ("POST", self._infer),
            "": ("GET", self._model_metadata),
            "ready": ("GET", self._model_ready),
            "config": ("GET", self._model_config),
            "stats": ("GET", self._statistics),
        }

    def answer(self, method: str, raw_path: bytes, headers: Headers, body: bytes, reply: Reply) -> Answer | Call:
        """The answer to one request, or the call that goes on: ``reply`` gets the answer then, unless it is cancelled.

        ``raw_path`` is undecoded and without its query. Raises nothing of its own.
        """
        try:
            return self._answer(method, raw_path, headers, body, reply)
        except Exception:  # a fault of ours must not end the connection without an answer
            log.exception("%s %s failed", method, raw_path.decode("latin-1"))
            return our_fault()

    def _answer(self, method: str, raw_path: bytes, headers: Headers, body: bytes, reply: Reply) -> Answer | Call:
        try:
            (allowed, handler), model, version = self._route(raw_path)
            if method != allowed and not (method == "HEAD" and allowed == "GET"):
                text = f"method {method} is not allowed here; use {allowed}"
                return error_answer(405, text, (b"allow", allowed.encode()))
            return handler(Request(model, version, headers, body, reply))
        except _NoRoute:
            return error_answer(404, f"there is no route {raw_path.decode('latin-1')!r}")
        except GatewayError as error:
            return fault_answer(error)

    # --- routing ---

    def _route(self, raw_path: bytes) -> tuple[tuple[str, _Handler], str, str]:
        """The handler with its method, and the model and version in the path. Raises ``_NoRoute``."""
        root, *segments = raw_path.decode("latin-1").strip("/").split("/")
        if unquote(root) != "v2":  # such as /v2%2Fhealth, a name of one segment
            raise _NoRoute
        if len(segments) >= 2 and segments[0] == "models" and segments[1:] != ["stats"]:
            return self._route_model(segments)
        entry = self._fixed.get(tuple(segments))
        if entry is None:
            raise _NoRoute
        return entry, "", ""

    def _route_model(self, segments: list[str]) -> tuple[tuple[str, _Handler], str, str]:
        name, rest, version = segments[1], segments[2:], ""
        if "%" in name:
            name = unquote(name)
        if len(rest) >= 2 and rest[0] == "versions":
            version, rest = unquote(rest[1]), rest[2:]
        entry = self._of_model.get(rest[0] if rest else "")
        if entry is None or len(rest) > 1 or not name:
            raise _NoRoute
        return entry, name, version

    # --- inference ---

    def _infer(self, request: Request) -> Call:
        return self._inferences.start(request.model, request.version, request.headers, request.body, request.reply)

    # --- health and metadata ---

    def _live(self, request: Request) -> Answer:
        return _health(self._dataplane.live(), "not live")

    def _ready(self, request: Request) -> Answer:
        if self._dataplane.ready():
            return _health(True, "")
        return _health(False, _not_ready_text(self._dataplane.index()))

    def _model_ready(self, request: Request) -> Answer:
        return _health(self._dataplane.model_ready(request.model, request.version), "Model version not ready")

    def _server_metadata(self, request: Request) -> Answer:
        return json_answer(self._dataplane.server_metadata())

    def _model_metadata(self, request: Request) -> Answer:
        return json_answer(_metadata_json(self._dataplane.model_metadata(request.model, request.version)))

    def _model_config(self, request: Request) -> Answer:
        return Answer(200, to_json(self._dataplane.model_config(request.model, request.version)), (JSON,))

    def _statistics(self, request: Request) -> Answer:
        found = self._dataplane.statistics(request.model, request.version)
        return json_answer({"model_stats": [to_json_dict(statistics) for statistics in found]})

    def _list(self, request: Request) -> Answer:
        ready = self._dataplane.index(ready_only=True)
        return json_answer({"models": sorted({entry.name for entry in ready})})

    def _index(self, request: Request) -> Answer:
        return json_answer([_index_json(entry) for entry in self._dataplane.index(_ready_only(request.body))])


class _NoRoute(Exception):
    """The path is not one of ours."""


class _IndexBody(msgspec.Struct):
    ready: bool = False


def _ready_only(body: bytes) -> bool:
    if not body.strip():
        return False  # clients send an empty body
    try:
        return msgspec.json.decode(body, type=_IndexBody).ready
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Invalid value for 'ready': expected a boolean ({error})") from error


def _index_json(entry: IndexEntry) -> dict[str, str]:
    fields = {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
    return {key: value for key, value in fields.items() if value}


def _metadata_json(metadata: ModelMetadata) -> dict[str, Any]:
    def tensors(specs: Any) -> list[dict[str, Any]]:
        return [{"name": spec.name, "datatype": spec.datatype, "shape": spec.shape} for spec in specs]

    return {
        "name": metadata.name,
        "versions": metadata.versions,
        "platform": metadata.platform,
        "inputs": tensors(metadata.inputs),
        "outputs": tensors(metadata.outputs),
    }


def _not_ready_text(index: list[IndexEntry]) -> str:
    """Names the models that are away: those of which no version is ready, or else those that miss one."""
    ready = {entry.name for entry in index if entry.state == "READY"}
    away = {entry.name for entry in index if entry.state != "READY" and (entry.version or entry.reason != "unloaded")}
    names = sorted(away - ready) or sorted(away)
    if not names:
        return "not ready"  # it starts, or stops
    return f"not ready: {listed(names)} (POST /v2/repository/index says why)"


def _health(good: bool, text: str) -> Answer:
    return Answer(200, b"") if good else error_answer(400, text)
