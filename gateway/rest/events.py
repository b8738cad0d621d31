"""``GET /admin/v1/events``: what happens to versions and workers, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.params import Parameter
from litestar.response.sse import ServerSentEvent, ServerSentEventMessage

from gateway.serving.controlplane import ControlPlane
from gateway.telemetry.events import LOST, Event, EventLog, Lost

#: Seconds of silence after which a comment is sent: proxies close what is silent, and a lost client is found out.
_PING_S: Final = 15.0
_MAX_ID: Final = 64

LastEventId = Annotated[
    str, Parameter(header="Last-Event-ID", max_length=_MAX_ID, description="go on after this event, as far as kept")
]


@get("/events", summary="Follow what happens to versions and workers", media_type="text/event-stream")
async def follow_events(controlplane: ControlPlane, last_event_id: LastEventId = "") -> ServerSentEvent:
    """Events ``state``, ``progress`` and ``worker``, each JSON with ``id``, ``time``, ``model`` and ``version``.

    ``lost`` says how many are missing: the client was too slow, or away for too long. The stream ends when the server
    stops.
    """
    return ServerSentEvent(_messages(controlplane.events, last_event_id))


async def _messages(events: EventLog, after: str) -> AsyncIterator[ServerSentEventMessage]:
    with events.subscribe(after) as subscription:
        yield ServerSentEventMessage(comment="following", data=None)
        while not subscription.is_over:
            yield _message(await subscription.next(_PING_S))


def _message(item: Event | Lost | None) -> ServerSentEventMessage:
    match item:
        case Event():
            return ServerSentEventMessage(id=item.id, event=item.kind, data=msgspec.json.encode(item.fields()))
        case Lost(count=count):
            return ServerSentEventMessage(event=LOST, data=msgspec.json.encode({"count": count}))
        case None:
            return ServerSentEventMessage(comment="nothing new", data=None)
