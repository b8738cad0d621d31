"""The command line's client of the administration API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

import typer

from gateway.cli.errors import CommandFailed
from gateway.cli.following import OnEvent, call_following
from gateway.network import is_loopback
from gateway.serving.keys import read_admin_key
from gateway.settings.client import client_settings
from gateway.settings.sources import load

if TYPE_CHECKING:
    import httpx

#: For calls that load no model.
TIMEOUT_S: Final = 30.0

Url = Annotated[
    str | None, typer.Option("--url", help="The server (TENSORGATE_URL, or else http://127.0.0.1:8000).", metavar="URL")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class AdminClient:
    """Calls ``/admin/v1`` of one server. Whatever goes wrong is a ``CommandFailed`` with a text for a person."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._key = key

    def get(self, *path: str, params: Mapping[str, int | str] | None = None) -> Any:
        """The JSON answer of a GET; ``path`` in parts, which may hold any character."""
        return self._call("GET", path, timeout_s=TIMEOUT_S, params=params)

    def put(self, *path: str, body: object, wait_s: float = 0.0, timeout_s: float | None = TIMEOUT_S) -> Any:
        """The JSON answer of a PUT, as with ``post``."""
        return self._call("PUT", path, body=body, wait_s=wait_s, timeout_s=timeout_s)

    def delete(self, *path: str) -> Any:
        """The JSON answer of a DELETE, None where there is none."""
        return self._call("DELETE", path, timeout_s=TIMEOUT_S)

    def post(self, *path: str, body: object = None, wait_s: float = 0.0, timeout_s: float | None = TIMEOUT_S) -> Any:
        """The JSON answer of a POST, with ``?wait=`` if that is asked for; ``timeout_s`` ``None`` is endless."""
        return self._call("POST", path, body=body, wait_s=wait_s, timeout_s=timeout_s)

    def post_following(self, *path: str, on_event: OnEvent, body: object = None, wait_s: float = 0.0) -> Any:
        """The same without an end; ``on_event`` is called for what the server publishes until it answers."""
        import httpx

        async def call() -> httpx.Response:
            async with httpx.AsyncClient(**self._options(None)) as client:
                request = client.build_request("POST", self._address(*path), json=body, params=_wait(wait_s))
                events = client.build_request("GET", self._address("events"))
                return await call_following(client, request, events, on_event)

        return self._answered(lambda: asyncio.run(call()))

    def _call(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        timeout_s: float | None,
        body: object = None,
        wait_s: float = 0.0,
        params: Mapping[str, int | str] | None = None,
    ) -> Any:
        import httpx

        def call() -> httpx.Response:
            with httpx.Client(**self._options(timeout_s)) as client:
                return client.request(method, self._address(*path), json=body, params=_wait(wait_s) or params)

        return self._answered(call)

    def _answered(self, call: Callable[[], httpx.Response]) -> Any:
        import httpx

        try:
            response = call()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandFailed(_unreachable(self.url, error)) from error
        return _answer(self.url, response)

    def _address(self, *path: str) -> str:
        return "/".join([f"{self.url}/admin/v1", *(quote(part, safe="") for part in path)])

    def _options(self, timeout_s: float | None) -> dict[str, Any]:
        # A proxy of the environment is for the way out, never for this machine itself.
        headers = {"Authorization": f"Bearer {self._key}"}
        return {"trust_env": not _is_local(self.url), "timeout": timeout_s, "headers": headers}


def _wait(seconds: float) -> dict[str, float] | None:
    return {"wait": seconds} if seconds else None


def connect(url: str | None) -> AdminClient:
    """A client for ``url`` (or the environment's, or the default), with its key. Raises ``CommandFailed``.

    The key file of this machine is for a server on this machine: it is never sent elsewhere.
    """
    given = client_settings(url)
    if not given.url.startswith(("http://", "https://")):
        raise CommandFailed(f"the URL {given.url!r} must begin with http:// or https://")
    return AdminClient(given.url, given.api_key or _local_key(given.url))


def _local_key(url: str) -> str:
    if not _is_local(url):
        raise CommandFailed(f"a key is needed for {url}: set TENSORGATE_API_KEY")
    path = load().admin_key_path
    try:
        return read_admin_key(path)
    except FileNotFoundError:
        raise CommandFailed(
            f"no key: there is no {path}. If a server runs, its log says where its admin.key is: set "
            "TENSORGATE_API_KEY to what that file holds (or TENSORGATE_DATA_DIR to its folder). If none runs, start "
            "one: tensorgate serve"
        ) from None


def _is_local(url: str) -> bool:
    with contextlib.suppress(ValueError):  # not a URL at all: the request itself says so
        return is_loopback(urlsplit(url).hostname or "")
    return False


def _unreachable(url: str, error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.ConnectError) and "SSL" in str(error):
        return (
            f"no TLS at {url} ({error}): a tensorgate server speaks plain HTTP, give http:// (or its proxy's address)"
        )
    if isinstance(error, httpx.ConnectError):
        return f"no server answers at {url} ({error}): start one with `tensorgate serve`, or name another with --url"
    if isinstance(error, httpx.TimeoutException):
        return f"the server at {url} did not answer in time: see its log"
    if isinstance(error, httpx.RemoteProtocolError):
        return (
            f"what answers at {url} is no REST server ({error}): is that the gRPC port? Give the one of REST, 8000 "
            "unless it was set; the server's log has both in the line `serving REST on`"
        )
    return f"the call to {url} failed: {error}"


def _answer(url: str, response: Any) -> Any:
    try:
        content = response.json() if response.content else None
    except ValueError:
        raise CommandFailed(
            f"{url} answered {response.status_code} and no JSON: is a tensorgate server there?"
        ) from None
    if response.is_success:
        return content
    detail = content.get("detail") if isinstance(content, dict) else None
    if detail is None:  # no problem of ours: another server, or a path in the URL
        raise CommandFailed(
            f"{url} answered {response.status_code} without a reason: give the address of a tensorgate server's REST "
            "port alone, such as http://127.0.0.1:8000"
        )
    if response.status_code == 401:
        detail = f"{detail}. The key came from TENSORGATE_API_KEY, or else from admin.key of the local data folder"
    raise CommandFailed(str(detail))
