"""A lifecycle manager at work for tests: over a real registry in a temporary file, with workers of the echo backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from gateway.inference.request import InferRequest
from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.manager import Manager
from gateway.lifecycle.state import VersionState, VersionStatus
from gateway.serving.dataplane import DataPlane
from gateway.workers.replica import WorkerLimits
from registry.record import NewVersion
from registry.sql import SqlModelStore
from support.children import children
from support.workers import LIMITS, floats

READY, FAILED, RESTARTING = VersionState.READY, VersionState.FAILED, VersionState.RESTARTING
DRAINING, LOADING, UNLOADED = VersionState.DRAINING, VersionState.LOADING, VersionState.UNLOADED
#: Requests that one worker of an echo model without batches takes at a time.
CREDITS = 16


def config(**options: str) -> dict[str, object]:
    """An echo model without batches that allows faults."""
    given = {"fault_injection": "true", **options}
    tensor = {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1, -1]}
    return {"input": [tensor], "parameters": {name: {"string_value": value} for name, value in given.items()}}


def version(model: str, number: int, *, desired: bool = True, **options: str) -> NewVersion:
    """A version of an echo model with these options."""
    return NewVersion(
        model, "echo", "echo:", "", "sha256:0", 0, number=number, desired=desired, config=config(**options)
    )


class Gateway:
    """A manager at work with its registry, and the data plane in front of it."""

    def __init__(self, store: SqlModelStore, limits: WorkerLimits, interpreters: dict[str, str], **given: Any) -> None:
        self.store = store
        self.catalog = Catalog()
        self.manager = Manager(store, self.catalog, limits, interpreters, **{"max_waiting": 1000, **given})
        self.dataplane = DataPlane(self.catalog, self.manager)
        self.task = asyncio.create_task(self.manager.run())

    async def add(self, *versions: NewVersion) -> None:
        """Register versions, and let the manager know."""
        for new in versions:
            await self.store.add_version(new)
        self.manager.poke()

    async def want(self, model: str, *numbers: int) -> None:
        """Of this model exactly these versions ought to run."""
        for known in (await self.store.model(model)).versions:
            await self.store.set_desired(model, known.number, known.number in numbers)
        self.manager.poke()

    async def settled(self, model: str, number: int) -> VersionStatus:
        return await self.manager.wait_settled(model, number, 30)

    async def is_ready(self, model: str = "m", number: int = 1) -> None:
        status = await self.settled(model, number)
        assert (status.state, status.reason) == (READY, "")

    def state(self, model: str = "m", number: int = 1) -> VersionState:
        return self.manager.status(model, number).state

    async def infer(self, model: str = "m", version: str = "", value: float = 1.0, **parameters: Any) -> str:
        """Run one request; the version that answered, after a look at the answer."""
        request = InferRequest(model, version, floats(value), parameters=parameters)
        response = await self.dataplane.infer(request)
        assert response.outputs[0].numpy().tolist() == [[value]]
        response.release()
        return response.version

    def many(self, count: int, **given: Any) -> list[asyncio.Task[str]]:
        """Requests under way."""
        return [asyncio.create_task(self.infer(value=float(n), **given)) for n in range(count)]

    def pid(self, model: str = "m", number: int = 1) -> int:
        (pid,) = (w.pid for w in self.manager.workers() if (w.model, w.number) == (model, number))
        assert pid is not None
        return pid

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    *versions: NewVersion,
    limits: WorkerLimits = LIMITS,
    interpreters: dict[str, str] | None = None,
    **given: int,
) -> AsyncIterator[Gateway]:
    store = SqlModelStore(f"sqlite:///{folder}/registry.db")
    await store.open()
    for new in versions:
        await store.add_version(new)
    gateway = Gateway(store, limits, interpreters or {}, **given)
    try:
        yield gateway
    finally:
        await gateway.stop()
        await store.close()
        assert children() == []


async def outcomes(tasks: Iterable[asyncio.Task[str]]) -> set[str]:
    """The versions that answered; every request has to be answered."""
    return set(await asyncio.gather(*tasks))
