"""A database's failure as a text for a person: what happened, to which database, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, NoResultFound, SQLAlchemyError

from registry import database
from registry.errors import StoreError

_MIGRATE: Final = "its tables are not those this program made: run `tensorgate migrate`, or restore a backup"
_NAME_TAKEN: Final = "it holds a table of that name from another program: give the registry a database of its own"

#: SQLite's primary error codes by name.
_SQLITE: Final = {
    "SQLITE_NOTADB": "the file is no SQLite database: move it away, or name another file",
    "SQLITE_CORRUPT": "the file is damaged: restore a backup, or salvage it with `sqlite3 FILE .recover`",
    "SQLITE_CANTOPEN": "the file cannot be opened: check that it and its folder exist and belong to this user",
    "SQLITE_READONLY": "the file or its folder is read-only for this user: change owner or mode, or name another file",
    "SQLITE_PERM": "this user may not open the file: change its owner or mode, or name another file",
    "SQLITE_BUSY": f"another process has held it for {database.BUSY_TIMEOUT_S} s: wait for that process, or stop it",
    "SQLITE_FULL": "the disk is full: make room",
    "SQLITE_IOERR": "reading or writing the file failed: check the disk, and that it is no network folder",
}

#: PostgreSQL's SQLSTATE, whole or by its class of two characters.
_POSTGRESQL: Final = {
    "28": "the user or the password is refused: check both in the URL, and the server's pg_hba.conf",
    "3D": "the server has no such database: make it with `createdb`",
    "3F": "the user has no schema to make tables in: GRANT it USAGE and CREATE on one that its search_path names",
    "42501": "the user lacks a privilege there: GRANT it, CREATE on the schema included",
    "42P01": _MIGRATE,
    "42703": _MIGRATE,
    "42P07": _NAME_TAKEN,
    "53": "the server is short of connections, memory or disk: see its log",
    "55P03": "another session holds a lock for too long: see pg_stat_activity",
    "57": "the server is starting, stopping or has ended the session: try again",
}


@contextmanager
def told(url: URL) -> Iterator[None]:
    """Turns whatever the driver or SQLAlchemy raises inside into ``StoreError``; other exceptions pass."""
    try:
        yield
    except Exception as error:
        text = explain(error)
        if text is None:
            raise
        raise StoreError(f"database {database.shown(url)}: {text}") from error


def explain(error: Exception) -> str | None:
    """What happened and the mend; None where ``error`` does not come from a database."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    reason = " ".join(str(cause).split()) or type(cause).__name__
    known = _sqlite_mend(cause, reason) or _POSTGRESQL.get(_state(cause)) or _POSTGRESQL.get(_state(cause)[:2])
    if isinstance(error, NoResultFound):
        known = _MIGRATE  # the counter's row is always there
    if known is not None:
        return f"{known} ({reason})"
    if isinstance(error, OSError):
        return f"it cannot be reached ({reason}): check host and port in the URL, and that the server runs"
    if isinstance(error, SQLAlchemyError) or type(error).__module__.startswith("asyncpg"):
        return f"the operation failed ({reason})"
    return None


def _state(cause: BaseException) -> str:
    return getattr(cause, "sqlstate", None) or ""


def _sqlite_mend(cause: BaseException, reason: str) -> str | None:
    code = getattr(cause, "sqlite_errorname", None) or ""
    if code == "SQLITE_ERROR" and "already exists" in reason:
        return _NAME_TAKEN
    if code == "SQLITE_ERROR" and ("no such table" in reason or "no such column" in reason):
        return _MIGRATE
    return next((mend for name, mend in _SQLITE.items() if code.startswith(name)), None)
