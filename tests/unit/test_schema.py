"""How the database's schema gets from one revision to another (SQLite; both databases: tests/contract)."""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect

from registry import database, schema
from registry.errors import StoreError
from registry.sql import SqlModelStore
from registry.tables import Base
from support.versions import new, numbers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "registry.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


def query(file: Path, statement: str) -> list[Any]:
    connection = sqlite3.connect(file)
    rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def made(file: Path) -> bool:
    return file.exists()


def tables(file: Path) -> set[str]:
    return {name for (name,) in query(file, "SELECT name FROM sqlite_master WHERE type = 'table'")}


async def test_upgrade_makes_folder_file_and_tables_and_is_repeatable(file: Path, url: str) -> None:
    assert await schema.current(url) is None
    assert not file.parent.exists(), "looking must not make the file"
    await schema.upgrade(url)
    await schema.upgrade(url)
    assert await schema.current(url) == schema.head()
    assert tables(file) == {*Base.metadata.tables, schema.VERSION_TABLE}
    assert query(file, "SELECT id, revision FROM registry_meta") == [(1, 0)]
    assert query(file, "PRAGMA journal_mode") == [("wal",)]
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_downgrade_takes_the_tables_away_and_upgrade_brings_them_back(file: Path, url: str) -> None:
    await schema.upgrade(url)
    await schema.downgrade(url, schema.BASE)
    assert await schema.current(url) is None
    assert tables(file) == {schema.VERSION_TABLE}
    await schema.upgrade(url)
    store = SqlModelStore(url)
    await store.open()
    await store.add_version(new())
    assert await numbers(store) == {"resnet": [1]}
    await store.close()


async def test_downgrade_to_the_present_revision_keeps_the_data(url: str) -> None:
    store = SqlModelStore(url)
    await store.open()
    await store.add_version(new())
    await store.close()
    await schema.downgrade(url, schema.head())
    await store.open()
    assert await numbers(store) == {"resnet": [1]}
    await store.close()


async def test_a_revision_that_does_not_exist_is_refused_with_those_that_do(url: str) -> None:
    with pytest.raises(StoreError, match=f"'0000'.*base.*{schema.head()}"):
        await schema.downgrade(url, "0000")


async def test_many_tasks_may_upgrade_different_databases_at_once(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in "abcdef"]
    await asyncio.gather(*[schema.upgrade(url) for url in urls])
    assert await asyncio.gather(*[schema.current(url) for url in urls]) == [schema.head()] * 6


async def test_an_upgrade_waits_for_the_process_that_holds_the_lock(file: Path, url: str) -> None:
    file.parent.mkdir()
    with file.with_name("registry.db.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        upgrade = asyncio.create_task(schema.upgrade(url))
        done, _ = await asyncio.wait([upgrade], timeout=0.2)
        assert not done
        assert not made(file)
    await upgrade
    assert await schema.current(url) == schema.head()


async def test_a_lock_that_is_never_given_back_ends_in_a_text_that_names_it(
    file: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_S", 0)
    file.parent.mkdir()
    with file.with_name("registry.db.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=r"another process.*registry\.db\.lock"):
            await schema.upgrade(url)


async def test_a_failed_upgrade_leaves_nothing_behind(file: Path, url: str) -> None:
    """The last table to be made is there already, from another program."""
    file.parent.mkdir()
    query(file, "CREATE TABLE model_version (x INTEGER)")
    with pytest.raises(StoreError, match=r"another program.*model_version already exists"):
        await schema.upgrade(url)
    assert tables(file) == {"model_version"}


async def test_another_program_s_migrations_in_the_same_database_do_not_disturb(file: Path, url: str) -> None:
    file.parent.mkdir()
    query(file, "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    await schema.upgrade(url)
    await schema.downgrade(url, schema.BASE)
    assert tables(file) == {"alembic_version", schema.VERSION_TABLE}


async def test_check_constraints_and_indexes_are_those_of_the_models(tmp_path: Path) -> None:
    """Alembic's own comparison does not look at checks, nor at an index's WHERE."""

    def described(connection: Connection) -> dict[str, Any]:
        inspector = inspect(connection)
        return {
            name: (
                {check["name"]: check["sqltext"] for check in inspector.get_check_constraints(name)},
                {index["name"]: (index["column_names"], index["unique"]) for index in inspector.get_indexes(name)},
                [str(index["dialect_options"].get("sqlite_where")) for index in inspector.get_indexes(name)],
                inspector.get_unique_constraints(name),
                inspector.get_pk_constraint(name),
                inspector.get_foreign_keys(name),
            )
            for name in Base.metadata.tables
        }

    found = []
    for name in ("migrated", "made"):
        url = f"sqlite:///{tmp_path}/{name}.db"
        engine = database.create_engine(database.parse(url))
        if name == "migrated":
            await schema.upgrade(url)
        async with engine.begin() as connection:
            if name == "made":
                await connection.run_sync(Base.metadata.create_all)
            found.append(await connection.run_sync(described))
        await engine.dispose()
    assert found[0] == found[1]
    assert "superseded_at IS NULL" in str(found[0]["model_version"])
