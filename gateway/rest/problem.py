"""Errors of the administration API as ``application/problem+json`` (RFC 9457), whatever layer raised them."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from gateway.errors import GatewayError
from gateway.rest.errors import headers_of, status_of

log = logging.getLogger("tensorgate.rest")

MEDIA_TYPE: Final = "application/problem+json"


class Problem(msgspec.Struct, frozen=True):
    """The body of an error. ``type`` is ``about:blank``: the status says it all, ``detail`` is for a person."""

    title: str
    status: int
    detail: str
    instance: str
    type: str = "about:blank"


def problem_handler(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar exception handler: any exception -> a problem. A fault of ours is logged, and not shown."""
    status, detail, headers = _describe(request, error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, GatewayError):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    problem = Problem(_title(status), status, detail, request.url.path)
    return Response(msgspec.json.encode(problem), status_code=status, headers=headers, media_type=MEDIA_TYPE)


def _describe(request: Request[Any, Any, Any], error: Exception) -> tuple[int, str, dict[str, str]]:
    match error:
        case GatewayError():
            headers = {name.decode(): value.decode() for name, value in headers_of(error)}
            return status_of(error), str(error), headers
        case HTTPException(status_code=status) if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return status, _detail(request, error), dict(error.headers or {})
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log tells more", {}


def _detail(request: Request[Any, Any, Any], error: HTTPException) -> str:
    """The framework's text, with what it says of each field; where it has none, what the status means here."""
    if isinstance(error.extra, list):
        fields = (f"{item.get('key', 'body')}: {item['message']}" for item in error.extra if isinstance(item, dict))
        return f"{error.detail}: {'; '.join(fields)}"
    if error.detail != _title(error.status_code):
        return error.detail
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return f"there is no {request.url.path}: /schema lists what there is"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("allow", "another method")
            return f"{request.url.path} does not take {request.method}: use {allowed}"
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return "the body is larger than an administration call may be: 1 MiB"
        case _:
            return error.detail


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # 499 is a convention, and in no registry
        return "Client Closed Request"
