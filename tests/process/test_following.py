"""The registry is read again whenever it has changed, and what was read before a change does not undo it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.inference.request import InferRequest
from registry.record import Model
from registry.traffic import Arm, Traffic
from support.lifecycle import Gateway, serving, version
from support.wait import until


def chosen(gateway: Gateway) -> int:
    """The version that a request without one goes to."""
    return gateway.catalog.route(InferRequest("m", "", [])).record.number


async def test_what_others_change_is_heard_of(tmp_path: Path) -> None:
    async with serving(tmp_path, version("m", 1), version("m", 2)) as gateway:
        for number in (1, 2):
            await gateway.is_ready("m", number)
        for number in (1, 2, 1):
            await gateway.store.set_traffic("m", Traffic((Arm(number, 1),)))
            await until(lambda number=number: chosen(gateway) == number)  # type: ignore[misc]


async def test_what_was_read_before_a_change_does_not_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, version("m", 1), version("m", 2)) as gateway:
        for number in (1, 2):
            await gateway.is_ready("m", number)
        read, begun, go = gateway.store.models, asyncio.Event(), asyncio.Event()

        async def slowly() -> list[Model]:
            found = await read()
            begun.set()
            await go.wait()
            return found

        monkeypatch.setattr(gateway.store, "models", slowly)
        gateway.manager.poke()
        await begun.wait()
        gateway.catalog.take_one(await gateway.store.set_traffic("m", Traffic((Arm(1, 1),))))
        assert chosen(gateway) == 1
        monkeypatch.setattr(gateway.store, "models", read)
        go.set()
        for _ in range(100):
            await asyncio.sleep(0)
            assert chosen(gateway) == 1
        await gateway.manager.wait_settled("m", 1, 60)
        assert chosen(gateway) == 1
