"""What every model store keeps to: snapshots, all or nothing, and a schema that several processes may make."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from registry import database, rows, schema, watch
from registry.errors import StoreError
from registry.record import ModelVersion
from registry.sql import SqlModelStore
from registry.store import ModelStore
from registry.tables import Base
from support.versions import SIGNATURE, folder, new, numbers

OPEN = """
import asyncio, sys
from registry.sql import SqlModelStore

async def main() -> None:
    store = SqlModelStore(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    print(await store.revision())
    await store.close()

asyncio.run(main())
"""


async def test_a_read_is_a_snapshot_while_others_write(store: ModelStore, url: str) -> None:
    writer = SqlModelStore(url)
    await writer.open()

    async def write() -> None:
        for _ in range(10):
            await writer.sync_repository([folder("a", 1), folder("b", 1)])
            await writer.sync_repository([])

    writing = asyncio.create_task(write())
    seen = []
    while not writing.done():
        seen.append(tuple(await numbers(store)))
    await writing
    assert set(seen) <= {(), ("a", "b")}
    assert len(seen) > 1
    await writer.close()


async def test_a_read_of_several_queries_sees_one_moment(url: str) -> None:
    """Whatever is committed between its queries."""
    reader, writer = SqlModelStore(url), SqlModelStore(url)
    await reader.open()
    await writer.open()

    async def look_twice(connection: AsyncConnection) -> tuple[int, int]:
        before = len(await rows.live_versions(connection))
        await writer.add_version(new())
        return before, len(await rows.live_versions(connection))

    assert await reader._read(look_twice) == (0, 0)
    assert await numbers(reader) == {"resnet": [1]}
    await reader.close()
    await writer.close()


async def test_a_cancelled_registration_happens_wholly_or_not_at_all(store: ModelStore) -> None:
    for steps in range(40):
        tasks = [asyncio.create_task(store.add_version(new())), asyncio.create_task(store.models())]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    last = await store.add_version(new())
    assert (await numbers(store))["resnet"] == list(range(1, last.number + 1))
    assert await store.revision() == last.number


async def test_closing_waits_for_the_running_write_and_refuses_those_behind_it(store: ModelStore) -> None:
    writes = [asyncio.create_task(store.add_version(new())) for _ in range(3)]
    await asyncio.sleep(0)  # each has run up to its first wait
    await store.close()
    first, *others = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(first, ModelVersion)
    assert [type(other) for other in others] == [StoreError, StoreError]
    await store.open()
    assert (await store.model("resnet")).versions == (first,)


async def test_what_was_written_is_there_after_reopening(store: ModelStore) -> None:
    added = await store.add_version(new(signature=SIGNATURE))
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.models()
    await store.open()
    await store.open()
    assert (await store.model("resnet")).versions == (added,)


async def test_several_processes_may_open_an_empty_database_at_once(url: str) -> None:
    pipe = asyncio.subprocess.PIPE
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", OPEN, url, stdin=pipe, stdout=pipe, stderr=pipe)
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"
    ends = await asyncio.gather(*[child.communicate(b"\n") for child in children])
    assert ends == [(b"0\n", b"")] * 3
    assert await schema.current(url) == schema.head()


async def test_models_and_migrations_agree(url: str) -> None:
    def differences(connection: Connection) -> list[Any]:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        found: list[Any] = compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)
        return found

    await schema.upgrade(url)
    engine = database.create_engine(database.parse(url))
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


# --- hearing of changes ----------------------------------------------------------------------------------------------


async def test_a_change_of_another_store_is_heard_of(store: ModelStore, url: str) -> None:
    other = SqlModelStore(url)
    await other.open()
    for known in range(3):
        waiting = asyncio.create_task(other.next_revision(known, 60))
        await asyncio.sleep(0)
        await store.add_version(new())
        assert await waiting == known + 1
    assert await other.next_revision(1, 60) == 3, "what has changed already is told at once"
    await other.close()


async def test_where_nothing_changes_the_wait_has_an_end(store: ModelStore) -> None:
    assert await store.next_revision(0, 0.05) == 0


async def test_changes_are_heard_of_when_the_connection_that_told_them_is_gone(
    store: ModelStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LISTENING_S", 0.2)
    other = SqlModelStore(url)
    await other.open()
    if url.startswith("postgresql"):
        engine = create_async_engine(database.parse(url))
        async with engine.connect() as connection:
            while not (await connection.execute(text(LISTENERS))).all():
                await connection.rollback()
                await asyncio.sleep(0.01)
        await engine.dispose()
    waiting = asyncio.create_task(other.next_revision(0, 60))
    await store.add_version(new())
    assert await waiting == 1
    await other.close()


#: Ends the connections that listen, and tells which they were.
LISTENERS = (
    "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE 'LISTEN%'"
)
