"""The administration API, ``/admin/v1``: models, versions, workers, devices, events. Every call needs the key."""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, Router, get, post
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.params import Parameter
from litestar.types import Guard

from gateway.errors import InvalidRequest, Unauthenticated
from gateway.lifecycle.repository import Problem
from gateway.lifecycle.state import VersionState, WorkerStatus
from gateway.placement.inventory import Inventory
from gateway.rest import traffic
from gateway.rest.events import follow_events
from gateway.rest.problem import problem_handler
from gateway.rest.versions import MAX_WAIT_S, version_number
from gateway.serving.controlplane import LOADED, ControlPlane, ModelInfo, VersionInfo
from gateway.serving.trafficplane import TrafficPlane

PATH: Final = "/admin/v1"
MAX_BODY_BYTES: Final = 1 << 20
_SETTLED: Final = (VersionState.READY, VersionState.FAILED, VersionState.UNLOADED)

Wait = Annotated[
    float, Parameter(ge=0, le=MAX_WAIT_S, description="seconds to wait until the version is ready, failed or unloaded")
]


class NewVersionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A version to be registered. ``config`` is a ModelConfig in JSON form; ``version`` null takes the next number."""

    artifact: str
    framework: str | None = None
    version: int | None = None
    config: dict[str, Any] | None = None
    deploy: bool = True


class ModelList(msgspec.Struct):
    """All models; ``problems`` are those found in the model repositories."""

    models: list[ModelInfo]
    problems: list[Problem]


class WorkerList(msgspec.Struct):
    """All workers of this gateway."""

    workers: list[WorkerStatus]


@get("/models", summary="All models with their versions")
async def list_models(controlplane: ControlPlane) -> ModelList:
    """Models by name, their versions in ascending order."""
    return ModelList(await controlplane.list_models(), list(controlplane.problems))


@get("/models/{model:str}", summary="One model")
async def show_model(controlplane: ControlPlane, model: str) -> ModelInfo:
    """404 if there is no such model."""
    return await controlplane.show(model)


@post("/models/{model:str}/versions", summary="Register a version")
async def register_version(
    controlplane: ControlPlane, model: str, data: NewVersionBody | None = None, wait: Wait = 0.0
) -> Response[VersionInfo]:
    """The artifact is verified and loaded once, in a worker of its own, before anything is stored."""
    if data is None:
        raise InvalidRequest('the body is empty: send JSON such as {"artifact": "/models/add.onnx"}')
    added = await controlplane.register(
        model, data.artifact, data.framework, data.version, config=data.config, deploy=data.deploy
    )
    info = await controlplane.wait(model, added.number, LOADED, wait if data.deploy else 0.0)
    return Response(info, status_code=201, headers={"Location": f"{PATH}/models/{model}/versions/{added.number}"})


@get("/models/{model:str}/versions/{version:str}", summary="One version")
async def show_version(controlplane: ControlPlane, model: str, version: str) -> VersionInfo:
    """404 if there is no such version."""
    return await controlplane.version(model, version_number(version))


@post("/models/{model:str}/versions/{version:str}/load", summary="Load a version", status_code=202)
async def load_version(controlplane: ControlPlane, model: str, version: str, wait: Wait = 0.0) -> Response[VersionInfo]:
    """Ask for the version to run; 200 once it is ready or failed, 202 while it is on its way."""
    number = version_number(version)
    return _progress(await controlplane.load(model, number, wait_s=wait))


@post("/models/{model:str}/versions/{version:str}/unload", summary="Unload a version", status_code=202)
async def unload_version(
    controlplane: ControlPlane, model: str, version: str, wait: Wait = 0.0
) -> Response[VersionInfo]:
    """Ask for the version to stop after its last request; 200 once it is unloaded, 202 while it is on its way."""
    number = version_number(version)
    return _progress(await controlplane.unload(model, number, wait_s=wait))


@get("/workers", summary="All workers")
async def list_workers(controlplane: ControlPlane) -> WorkerList:
    """Workers of this gateway, by model and version."""
    return WorkerList(controlplane.workers())


@get("/devices", summary="The GPUs")
async def list_devices(controlplane: ControlPlane) -> Inventory:
    """GPUs of this machine with their memory now; ``reason`` says why there are none."""
    return controlplane.devices()


@post("/workers/{worker:str}/restart", summary="Restart a worker", status_code=202)
async def restart_worker(controlplane: ControlPlane, worker: str) -> None:
    """End the worker at once; its replica starts a new one."""
    await controlplane.restart_worker(worker)


def _progress(info: VersionInfo) -> Response[VersionInfo]:
    return Response(info, status_code=200 if info.state in _SETTLED else 202)


def require_key(key: str) -> Guard:
    """A guard that lets a request pass if it carries ``key``; compared in constant time."""
    expected = key.encode()

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        given = _given_key(connection)
        if given is None:
            raise Unauthenticated(
                "a key is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY' (the server's log says where "
                "its admin key is)"
            )
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected):
            raise Unauthenticated("the key is not this server's admin key")

    return guard


def _given_key(connection: ASGIConnection[Any, Any, Any, Any]) -> str | None:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return connection.headers.get("x-api-key")


def admin_router(controlplane: ControlPlane, trafficplane: TrafficPlane, key: str) -> Router:
    """The routes under ``/admin/v1``.

    Errors inside a route become problems here; the application has to send 404 and 405 of paths under ``/admin``
    (which no route sees) through ``problem_handler`` too.
    """
    return Router(
        path=PATH,
        route_handlers=[
            list_models, show_model, register_version, show_version, load_version, unload_version,
            list_workers, restart_worker, list_devices, follow_events, *traffic.ROUTES,
        ],
        dependencies={
            "controlplane": Provide(lambda: controlplane, sync_to_thread=False),
            "trafficplane": Provide(lambda: trafficplane, sync_to_thread=False),
            "author": Provide(traffic.author_of, sync_to_thread=False),
        },
        guards=[require_key(key)],
        exception_handlers={HTTPException: problem_handler, Exception: problem_handler},
        request_max_body_size=MAX_BODY_BYTES,
        tags=["administration"],
        security=[{"bearer": []}],
    )  # fmt: skip
