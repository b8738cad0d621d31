"""The database's schema: which revision it has, and how it gets to another. Alembic, without an ``alembic.ini``.

Alembic keeps its context in globals of the process, so each migration runs in a thread with an event loop of its own,
one at a time in this process; other processes wait at a lock (a file beside SQLite's, an advisory one in PostgreSQL).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, text

from registry import database
from registry.errors import StoreError
from registry.mend import told

#: A name of its own: other programs that use alembic may share the database.
VERSION_TABLE: Final = "tensorgate_alembic_version"
#: As ``downgrade``'s revision: no tables at all.
BASE: Final = "base"
LOCK_TIMEOUT_S: Final = 60

_FOLDER: Final = Path(__file__).parent / "migrations"
_ADVISORY_KEY: Final = 0x7465_6E73_6F72  # "tensor"
_LOCK_POLL_S: Final = 0.05
_one_at_a_time = threading.Lock()
_T = TypeVar("_T")


def head() -> str:
    """The newest revision that this program knows."""
    return _script().get_current_head() or BASE


async def current(url: str) -> str | None:
    """The revision of the database, None where it has no schema yet. Raises ``StoreError``."""
    return await asyncio.to_thread(_current, database.parse(url))


async def upgrade(url: str) -> None:
    """Bring the database to ``head()``; does nothing if it is there. Makes a SQLite file and its folder.

    Raises ``StoreError``: the database cannot be used, or its revision is newer than this program.
    """
    await asyncio.to_thread(_migrate, database.parse(url), _upgrade)


async def downgrade(url: str, revision: str) -> None:
    """Take the database back to ``revision`` (or ``BASE``). Raises ``StoreError``, also for an unknown revision."""
    if revision != BASE and revision not in _known():
        raise StoreError(f"there is no schema revision {revision!r}: give one of {', '.join([BASE, *_known()])}")

    def act(config: Config, connection: Connection) -> None:
        _refuse_newer(connection)
        command.downgrade(config, revision)

    await asyncio.to_thread(_migrate, database.parse(url), act)


def read_revision(connection: Connection) -> str | None:
    """The revision that the connected database is marked with."""
    heads = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()
    return ", ".join(heads) or None


def _upgrade(config: Config, connection: Connection) -> None:
    if _refuse_newer(connection) != head():
        command.upgrade(config, "head")


def _refuse_newer(connection: Connection) -> str | None:
    found = read_revision(connection)
    if found is not None and found not in _known():
        raise StoreError(
            f"database {database.shown(connection.engine.url)} has schema revision {found!r}, and this program "
            f"({_program()}) knows none after {head()!r}: install the newer tensorgate that wrote it, restore a backup "
            f"from before, or name another database"
        )
    return found


def _current(url: URL) -> str | None:
    path = database.sqlite_path(url)
    if path is not None and not path.exists():
        return None  # connecting would make an empty file
    return asyncio.run(_run(url, read_revision, locked=False))


def _migrate(url: URL, act: Callable[[Config, Connection], None]) -> None:
    database.prepare_file(url)
    path = database.sqlite_path(url)
    with _one_at_a_time, nullcontext() if path is None else _file_lock(path.with_name(path.name + ".lock")):
        asyncio.run(_run(url, lambda connection: act(_config(connection), connection), locked=True))


async def _run(url: URL, act: Callable[[Connection], _T], locked: bool) -> _T:
    # no foreign keys: SQLite changes a table by making a new one and dropping the old
    engine = database.create_engine(url, foreign_keys=False)
    try:
        with told(url):
            async with engine.execution_options(write=locked).begin() as connection:
                if locked and url.get_backend_name() == "postgresql":
                    await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"))
                    await connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})"))
                return await connection.run_sync(act)
    finally:
        await engine.dispose()


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """The file stays: to remove it would let two processes lock two files of the same name."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"the lock file {path} cannot be opened ({error.strerror}): check that it belongs to this user"
        ) from error
    try:
        _lock_within(descriptor, path, time.monotonic() + LOCK_TIMEOUT_S)
        yield
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise StoreError(
                    f"another process has been migrating the database for {LOCK_TIMEOUT_S} s and holds {path}: "
                    f"wait for it, or end it (`fuser {path}` names it)"
                ) from error
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            raise StoreError(
                f"the file system of {path} has no locks ({error.strerror}): keep the database on a local disk"
            ) from error


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    # alembic interpolates %
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _known() -> list[str]:
    """Every revision, oldest first."""
    return [script.revision for script in _script().walk_revisions()][::-1]


def _program() -> str:
    try:
        return f"tensorgate {version('tensorgate')}"
    except PackageNotFoundError:
        return "tensorgate from a folder"
