"""State machines over a model store: any sequence of changes, each example on a database of its own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import ClassVar, TypeVar

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, run_state_machine_as_test

from registry import schema
from registry.sql import SqlModelStore

T = TypeVar("T")


class OnStore(RuleBasedStateMachine):
    """A machine with a ``store``; ``run`` awaits one of its calls."""

    template: ClassVar[Path]  # an empty database, migrated once: each example begins with a copy

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())

    @initialize()
    def begin(self) -> None:
        shutil.copy(self.template, self.folder / "r.db")
        self.store = SqlModelStore(f"sqlite:///{self.folder}/r.db")
        self.run(self.store.open())
        self.fill()

    def fill(self) -> None:
        """What the store holds at the beginning: nothing, unless a machine says otherwise."""

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())


def run_machine(machine: type[OnStore], folder: Path, **given: int | None) -> None:
    """Try many sequences; ``given`` are hypothesis' settings."""
    machine.template = folder / "template.db"
    asyncio.run(schema.upgrade(f"sqlite:///{machine.template}"))
    run_state_machine_as_test(machine, settings=settings(**given))  # type: ignore[arg-type]
