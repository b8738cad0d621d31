"""Where the registry's database is and how one connects to it: URL, folder, engine. No table is known here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from registry.errors import StoreError

BUSY_TIMEOUT_S: Final = 5
#: Connections that one store keeps to PostgreSQL; no request of a client ever waits for one.
POOL_SIZE: Final = 5

_ELSEWHERE: Final = "name another file with --database sqlite:///path/to/file.db"
_KNOWN: Final = "sqlite:///path/to/file.db or postgresql://user:password@host/database"
_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}

_PARAMETERS: Final = frozenset(
    {"host", "port", "sslmode", "ssl", "target_session_attrs", "prepared_statement_cache_size"}
)


def parse(text: str) -> URL:
    """A URL as people write it, made into one with this project's drivers. Raises ``StoreError``."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        # the text is not repeated: it may hold a password
        raise StoreError(f"the database URL cannot be read: give {_KNOWN}") from error
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise StoreError(f"database URL {shown(url)}: {backend!r} is not supported, give {_KNOWN}")
    url = url.set(drivername=_DRIVERS[backend])
    return _sqlite(url) if backend == "sqlite" else _postgresql(url)


def shown(url: URL) -> str:
    """The URL for a person: as it is written, and without its password."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL, None for another database."""
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def prepare_file(url: URL) -> None:
    """Make the folder of a SQLite file, for this user alone; both have to be writable. Raises ``StoreError``."""
    path = sqlite_path(url)
    if path is None:
        return
    if path.is_dir():
        raise StoreError(f"database {path} is a folder: name a file in it, such as sqlite:///{path}/tensorgate.db")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {path.parent} of the database cannot be made ({error.strerror}): make it, and writable for "
            f"this user, or {_ELSEWHERE}"
        ) from error
    if not _writable(path.parent, os.W_OK | os.X_OK):
        raise StoreError(
            f"the folder {path.parent} of the database is not writable for this user, and SQLite makes files beside "
            f"its own: change its owner or mode, or {_ELSEWHERE}"
        )
    if path.exists() and not _writable(path, os.R_OK | os.W_OK):
        # SQLite itself would open it for reading, and fail at the first change
        raise StoreError(f"database {path} is read-only for this user: change its owner or mode, or {_ELSEWHERE}")


def create_engine(url: URL, *, foreign_keys: bool = True) -> AsyncEngine:
    """An engine that is not connected yet.

    Its transactions are snapshots on every database; with the execution option ``write=True`` they are meant to write,
    and SQLite takes its lock at their beginning. Raises ``StoreError`` where the driver is missing.
    """
    try:
        if url.get_backend_name() == "sqlite":
            return _sqlite_engine(url, foreign_keys)
        return create_async_engine(url, pool_size=POOL_SIZE, max_overflow=0, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise StoreError(
            f"database {shown(url)} needs the package {error.name}: pip install 'tensorgate[postgres]'"
        ) from error


def _writable(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _sqlite(url: URL) -> URL:
    if not url.database or url.database.startswith(":memory:"):
        raise StoreError(
            f"database URL {shown(url)} names no file, and the registry must outlive a restart: give {_KNOWN}"
        )
    if url.database.startswith("file:") or url.query:
        raise StoreError(
            f"database URL {shown(url)}: SQLite's file: form and parameters are not supported, give {_KNOWN}"
        )
    path = Path(os.path.abspath(Path(url.database).expanduser()))
    return url.set(database=str(path))


def _postgresql(url: URL) -> URL:
    """asyncpg spells libpq's ``sslmode`` differently, and a parameter that it does not know is a TypeError to it."""
    unknown = sorted(set(url.query) - _PARAMETERS)
    if unknown:
        raise StoreError(
            f"database URL {shown(url)}: parameter {unknown[0]!r} is not supported, these are: "
            f"{', '.join(sorted(_PARAMETERS))}"
        )
    mode = url.query.get("sslmode")
    if mode is None:
        return url
    return url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})


def _sqlite_engine(url: URL, foreign_keys: bool) -> AsyncEngine:
    # isolation_level None: the driver begins nothing by itself, _begin does
    engine = create_async_engine(url, connect_args={"isolation_level": None, "timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine.sync_engine, "connect")
    def _connect(connection: Any, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        # a deferred transaction that reads and then writes fails at once when another has written: no busy_timeout
        write = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
