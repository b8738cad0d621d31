"""A call to the administration API that takes its time, with the events that the server publishes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import httpx

#: Gets the kind of an event and its fields.
OnEvent = Callable[[str, dict[str, Any]], None]

#: How long the stream of events may take to begin; the call goes out after that in any case.
_BEGIN_S: Final = 5.0


async def call_following(
    client: httpx.AsyncClient, request: httpx.Request, events: httpx.Request, on_event: OnEvent
) -> httpx.Response:
    """Send ``request``, with ``on_event`` called for what the stream ``events`` tells until it is answered.

    Raises what ``httpx`` raises for the request; a stream that fails costs only the events.
    """
    begun = asyncio.Event()
    following = asyncio.create_task(_follow(client, events, begun, on_event))
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(begun.wait(), _BEGIN_S)
        return await client.send(request)
    finally:
        following.cancel()
        await asyncio.wait((following,))


async def _follow(client: httpx.AsyncClient, events: httpx.Request, begun: asyncio.Event, on_event: OnEvent) -> None:
    import httpx

    with contextlib.suppress(httpx.HTTPError, ValueError):
        response = await client.send(events, stream=True)
        async with contextlib.aclosing(response):
            async for kind, data in _events(response.aiter_lines(), begun):
                on_event(kind, data)
    begun.set()


async def _events(lines: AsyncIterator[str], begun: asyncio.Event) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Kind and fields of each event in the lines of a stream. Raises ``ValueError`` for data that is no JSON."""
    kind = data = ""
    async for line in lines:
        begun.set()  # from its first line on the server keeps events for us
        name, _, value = line.partition(":")
        if name == "event":
            kind = value.strip()
        elif name == "data":
            data = value.strip()
        elif not line and data:
            yield kind, json.loads(data)
            kind = data = ""
