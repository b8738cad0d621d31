"""Hearing of what others change in the registry: other gateways, and whoever else has the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from registry.errors import StoreError
from registry.store import ModelStore

_WAIT_S: Final = 60.0
#: How long after a failure the registry is read again.
RETRY_S: Final = 5.0


async def follow(store: ModelStore, changed: Callable[[], None]) -> None:
    """Call ``changed`` whenever the registry has changed, until cancelled. Whoever reads it then tells of faults."""
    known = -1
    while True:
        try:
            found = await store.next_revision(known, _WAIT_S)
        except StoreError:
            await asyncio.sleep(RETRY_S)
            continue
        if found != known:
            known = found
            changed()
