"""Everything over HTTP but the V2 protocol: a Litestar application.

V2 wants no part of the framework (raw bodies whatever their type, its own error form): ``gateway.rest.connection``
answers it before ASGI begins.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from gateway.errors import GatewayError
from gateway.rest.admin import admin_router
from gateway.rest.errors import status_of
from gateway.rest.problem import problem_handler
from gateway.serving.controlplane import ControlPlane
from gateway.serving.dataplane import server_version
from gateway.serving.trafficplane import TrafficPlane

log = logging.getLogger("tensorgate.rest")


def make_app(controlplane: ControlPlane, trafficplane: TrafficPlane, admin_key: str) -> Litestar:
    """The application."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="the key in the server's admin.key file")
    return Litestar(
        route_handlers=[admin_router(controlplane, trafficplane, admin_key)],
        exception_handlers={HTTPException: _error, Exception: _error},
        openapi_config=OpenAPIConfig(
            title="Tensorgate", version=server_version(), components=Components(security_schemes={"bearer": bearer})
        ),
        logging_config=None,
    )


def _error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Errors that no route raised: problems under ``/admin``, the protocol's form elsewhere."""
    if request.url.path.startswith("/admin"):
        return problem_handler(request, error)
    status, text = _describe(request.url.path, error)
    return Response(msgspec.json.encode({"error": text}), status_code=status, media_type="application/json")


def _describe(path: str, error: Exception) -> tuple[int, str]:
    if isinstance(error, GatewayError):
        return status_of(error), str(error)
    if isinstance(error, HTTPException):
        return error.status_code, f"there is no route {path!r}" if error.status_code == 404 else error.detail
    log.error("%s failed", path, exc_info=error)
    return 500, "internal error of the server; its log has the details"
