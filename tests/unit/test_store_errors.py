"""Every way in which the database cannot be used is a ``StoreError`` that says what is wrong and what to do."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import database, schema
from registry.errors import StoreError
from registry.sql import SqlModelStore
from support.postgresql import free_port
from support.versions import new, numbers

NOBODY = 65534


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of one's own, and no right to override a mode, which root would have."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


async def opened(path: Path) -> SqlModelStore:
    store = SqlModelStore(f"sqlite:///{path}")
    await store.open()
    return store


async def read(path: Path) -> None:
    store = SqlModelStore(f"sqlite:///{path}")
    try:
        await store.open()
        await store.models()
    finally:
        await store.close()


def set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


async def refusal(url: str) -> str:
    with pytest.raises(StoreError) as caught:
        await SqlModelStore(url).open()
    return str(caught.value)


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "driver", "name"),
    [
        ("sqlite:////data/r.db", "sqlite+aiosqlite", "/data/r.db"),
        ("sqlite+pysqlite:////data/r.db", "sqlite+aiosqlite", "/data/r.db"),
        ("sqlite:////data/../r 1.db", "sqlite+aiosqlite", "/r 1.db"),
        ("postgresql://u:p@h/d", "postgresql+asyncpg", "d"),
        ("postgres://u:p@h/d", "postgresql+asyncpg", "d"),
        ("postgresql+psycopg://u:p@h/d", "postgresql+asyncpg", "d"),
    ],
)
def test_a_url_gets_this_project_s_driver(text: str, driver: str, name: str) -> None:
    url = database.parse(text)
    assert (url.drivername, url.database) == (driver, name)


def test_a_relative_path_and_the_home_folder_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/somebody")
    assert database.parse("sqlite:///r.db").database == str(tmp_path / "r.db")
    assert database.parse("sqlite:///~/r.db").database == "/somebody/r.db"


def test_sslmode_is_spelt_as_the_driver_wants_it() -> None:
    url = database.parse("postgresql://h/d?sslmode=require")
    assert dict(url.query) == {"ssl": "require"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read: give sqlite:///path"),
        ("registry.db", "cannot be read: give sqlite:///path"),
        ("postgresql://u:p@h:port/d", "cannot be read: give sqlite:///path"),
        ("mysql://u:secret@h/d", "'mysql' is not supported, give sqlite:///path"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///file:r.db", "file: form"),
        ("sqlite:///r.db?mode=ro", "parameters are not supported"),
        ("postgresql://h/d?connect_timeout=1", "'connect_timeout' is not supported, these are: host"),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_with_the_forms_that_can(text: str, told: str) -> None:
    refused = await refusal(text)
    assert told in refused
    assert "secret" not in refused


# --- places -----------------------------------------------------------------------------------------------------------


async def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = await refusal(f"sqlite:///{tmp_path}/file/deep/r.db")
    assert f"{tmp_path}/file/deep" in told
    assert "--database" in told


async def test_a_file_in_the_folder_s_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be made" in await refusal(f"sqlite:///{tmp_path}/file/r.db")


async def test_a_folder_in_the_file_s_place_is_told(tmp_path: Path) -> None:
    assert f"is a folder: name a file in it, such as sqlite:///{tmp_path}/" in await refusal(f"sqlite:///{tmp_path}")


async def test_a_folder_that_may_not_be_written_is_told(unprivileged: Path) -> None:
    set_mode(unprivileged, 0o500)
    told = await refusal(f"sqlite:///{unprivileged}/r.db")
    assert "not writable for this user" in told
    assert "cannot be made" in await refusal(f"sqlite:///{unprivileged}/deep/r.db")


async def test_a_file_that_may_not_be_written_is_told(unprivileged: Path) -> None:
    store = await opened(unprivileged / "r.db")
    await store.close()
    set_mode(unprivileged / "r.db", 0o400)
    assert "read-only for this user" in await refusal(f"sqlite:///{unprivileged}/r.db")


async def test_a_lock_file_of_another_user_is_told(unprivileged: Path) -> None:
    lock = unprivileged / "r.db.lock"
    lock.write_text("")
    lock.chmod(0)
    assert f"the lock file {lock} cannot be opened" in await refusal(f"sqlite:///{unprivileged}/r.db")


# --- files ------------------------------------------------------------------------------------------------------------


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_bytes(b"PK\x03\x04" * 1024)
    assert "is no SQLite database: move it away" in await refusal(f"sqlite:///{path}")
    assert path.read_bytes() == b"PK\x03\x04" * 1024


async def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    store = await opened(path)
    for _ in range(30):
        await store.add_version(new(config={"text": "x" * 2000}))
    await store.close()
    with path.open("r+b") as file:  # the first page, with the schema, is left as it is
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with pytest.raises(StoreError, match="damaged: restore a backup"):
        await read(path)


async def test_a_schema_from_the_future_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    store = await opened(path)
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tensorgate_alembic_version SET version_num = '9999_future'")
    connection.close()
    told = await refusal(f"sqlite:///{path}")
    assert "'9999_future'" in told
    assert schema.head() in told
    assert "install the newer tensorgate" in told
    with pytest.raises(StoreError, match="9999_future"):
        await schema.downgrade(f"sqlite:///{path}", schema.BASE)
    assert await schema.current(f"sqlite:///{path}") == "9999_future"


@pytest.mark.parametrize(
    "damage", ["DROP TABLE model_version", "DELETE FROM registry_meta", "ALTER TABLE model RENAME COLUMN name TO title"]
)
async def test_tables_that_were_changed_under_the_store_are_told(tmp_path: Path, damage: str) -> None:
    store = await opened(tmp_path / "r.db")
    with sqlite3.connect(tmp_path / "r.db") as connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(StoreError, match="tensorgate migrate"):
        await store.add_version(new())
    await store.close()


async def test_a_database_held_by_another_process_is_told_and_serves_again_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0)
    store = await opened(tmp_path / "r.db")
    other = sqlite3.connect(tmp_path / "r.db")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process has held it"):
        await store.add_version(new())
    assert await numbers(store) == {}, "readers do not mind"
    other.close()
    await store.add_version(new())
    assert await numbers(store) == {"resnet": [1]}
    await store.close()


# --- servers ----------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    told = await refusal(f"postgresql://gate:secret@127.0.0.1:{free_port()}/registry")
    assert "cannot be reached" in told
    assert "secret" not in told


async def test_the_store_has_to_be_opened_first(tmp_path: Path) -> None:
    store = SqlModelStore(f"sqlite:///{tmp_path}/r.db")
    with pytest.raises(StoreError, match=r"call open\(\) first"):
        await store.revision()
    with pytest.raises(StoreError, match=r"call open\(\) first"):
        await store.add_version(new())
    await store.open()
    assert (await store.add_version(new())).number == 1
    await store.close()
