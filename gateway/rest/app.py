"""The HTTP surface as one ASGI application: the V2 protocol beside Litestar's router, everything else inside it.

V2 wants no part of the framework (raw bodies whatever their type, its own error form), and its requests rarely come
here at all: ``gateway.rest.connection`` answers them before ASGI begins.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from gateway.errors import GatewayError
from gateway.rest.admin import admin_router
from gateway.rest.asgi import App, Receive, Scope, Send
from gateway.rest.errors import status_of
from gateway.rest.problem import problem_handler
from gateway.rest.v2.app import V2App
from gateway.serving.controlplane import ControlPlane
from gateway.serving.dataplane import server_version


def make_app(v2: V2App, controlplane: ControlPlane, admin_key: str) -> App:
    """The ASGI application."""
    framework: Any = _litestar(controlplane, admin_key)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"].startswith("/v2/") or scope["path"] == "/v2"):
            await v2(scope, receive, send)
        else:
            await framework(scope, receive, send)

    return app


def _litestar(controlplane: ControlPlane, admin_key: str) -> Litestar:
    bearer = SecurityScheme(type="http", scheme="bearer", description="the key in the server's admin.key file")
    return Litestar(
        route_handlers=[admin_router(controlplane, admin_key)],
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
    status = status_of(error) if isinstance(error, GatewayError) else getattr(error, "status_code", 500)
    text = getattr(error, "detail", "") or f"there is no route {request.url.path!r}"
    return Response(msgspec.json.encode({"error": text}), status_code=status, media_type="application/json")
