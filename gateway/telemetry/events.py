"""What happens to versions and workers, as a stream that many can follow, each at its own pace.

Published on the event loop. The last ``kept`` events stay, so that who was away goes on where it stopped. Each
subscriber has a queue with a bound: one that does not keep up loses the oldest events, and is told how many.
"""

from __future__ import annotations

import asyncio
import collections
import time
import uuid
from types import TracebackType
from typing import Any, Final, Self

import msgspec

#: Kinds of events: a version's state changed; loading entered a stage; a worker became ready, died, or is restarted.
STATE: Final = "state"
PROGRESS: Final = "progress"
WORKER: Final = "worker"
#: Not an event: tells a subscriber that some are missing here.
LOST: Final = "lost"

_KEPT: Final = 1000
_QUEUED: Final = 256


class Event(msgspec.Struct, frozen=True):
    """``id`` tells this gateway's run and the event's number in it; ``time`` is Unix time in seconds."""

    id: str
    time: float
    kind: str
    model: str
    version: int
    data: dict[str, Any] = {}

    def fields(self) -> dict[str, Any]:
        """For JSON: everything in one object."""
        return {"id": self.id, "time": self.time, "model": self.model, "version": self.version, **self.data}


class Lost(msgspec.Struct, frozen=True):
    """So many events are missing before the next one."""

    count: int


class EventLog:
    """Where events are published and followed."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._run = uuid.uuid4().hex[:8]  # numbers begin again with each start of a gateway
        self._next = 1
        self._kept: collections.deque[Event] = collections.deque(maxlen=kept)
        self._subscriptions: set[Subscription] = set()
        self._is_open = True

    def publish(self, kind: str, model: str, version: int, **data: Any) -> None:
        """Tell all who follow, and keep it for those who come back."""
        event = Event(f"{self._run}-{self._next}", time.time(), kind, model, version, data)
        self._next += 1
        self._kept.append(event)
        for subscription in self._subscriptions:
            subscription.put(event)

    def subscribe(self, after: str = "", queued: int = _QUEUED) -> Subscription:
        """Follow from now on; or from after the event with that id, as far as it is known and kept.

        An id of another run of the gateway is from before everything that is kept.
        """
        backlog, lost = self._since(after) if after else ([], 0)
        subscription = Subscription(self._subscriptions, queued, backlog, lost)
        if not self._is_open:
            subscription.end()
        return subscription

    def close(self) -> None:
        """The gateway stops: every stream ends after what it has."""
        self._is_open = False
        for subscription in self._subscriptions:
            subscription.end()

    def _since(self, after: str) -> tuple[list[Event], int]:
        """Kept events after that one, and how many are not kept any more."""
        run, _, digits = after.rpartition("-")
        is_ours = run == self._run and digits.isascii() and digits.isdigit() and len(digits) < 20
        seen = min(int(digits), self._next - 1) if is_ours else 0
        oldest = self._next - len(self._kept)
        return list(self._kept)[max(0, seen + 1 - oldest) :], max(0, oldest - seen - 1)


class Subscription:
    """One follower's queue, which fills inside ``with``."""

    def __init__(self, all_of_them: set[Subscription], queued: int, backlog: list[Event], lost: int) -> None:
        self._all = all_of_them
        self._bound = max(queued, len(backlog))  # what is kept takes no more memory when it is queued
        self._queue = collections.deque(backlog)
        self._lost = lost
        self._ended = False
        self._news = asyncio.Event()
        if backlog or lost:
            self._news.set()

    def __enter__(self) -> Self:
        self._all.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._all.discard(self)

    def put(self, event: Event) -> None:
        """One more; the oldest makes room for it."""
        while len(self._queue) >= self._bound:
            self._queue.popleft()
            self._lost += 1
        self._queue.append(event)
        self._news.set()

    @property
    def is_over(self) -> bool:
        """Whether the gateway stops, and everything was taken."""
        return self._ended and not self._queue and not self._lost

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._news.set()

    async def next(self, timeout_s: float) -> Event | Lost | None:
        """The next one; None if none came in that time, or none will (``is_over``)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return None
        if self._lost:
            lost, self._lost = Lost(self._lost), 0
            return lost
        event = self._queue.popleft() if self._queue else None
        if not self._queue and not self._ended:
            self._news.clear()
        return event
