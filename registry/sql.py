"""The model store over SQLAlchemy: SQLite and PostgreSQL.

Every write is one transaction that first locks the change counter, and so waits for the writers before it: what it
reads after that is what it changes. Every read is a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy import URL, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backends.spec import Signature
from registry import database, rows, schema, work
from registry.audit import SYSTEM, AuditEntry, Author
from registry.errors import StoreError
from registry.keys import ApiKey, NewKey
from registry.mend import told
from registry.record import Model, ModelVersion, NewVersion
from registry.store import ModelStore
from registry.tables import MetaRow
from registry.traffic import Traffic, TrafficRevision
from registry.watch import Watch

_T = TypeVar("_T")


class SqlModelStore(ModelStore):
    """``url`` as a user writes it: ``sqlite:///path/to/file.db`` or ``postgresql://user:password@host/database``.

    To be used from one event loop. A caller that is cancelled leaves; what it began in the database is still brought
    to its end, because a driver that is stopped halfway may keep its locks. A model whose versions are all gone is not
    shown; its numbers stay used.
    """

    def __init__(self, url: str) -> None:
        self._text = url
        self._engines: tuple[URL, AsyncEngine, AsyncEngine] | None = None
        # writers of this process queue here in order: SQLite's own waiting is a lottery with a time limit
        self._writing = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._watch: Watch | None = None

    async def open(self) -> None:
        """Upgrade the schema and make the engine; does nothing on an open store."""
        if self._engines is not None:
            return
        url = database.parse(self._text)
        await schema.upgrade(self._text)
        engine = database.create_engine(url)
        snapshot = {} if url.get_backend_name() == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        self._engines = (url, engine.execution_options(**snapshot), engine.execution_options(write=True))
        self._watch = Watch(self.revision, engine if url.get_backend_name() == "postgresql" else None)

    async def close(self) -> None:
        """Wait for what is running, then give the connections back; the store can be opened again."""
        if self._engines is not None:
            _, reader, _ = self._engines  # both share one pool
            if self._watch is not None:
                await self._watch.close()
                self._watch = None
            self._engines = None
            await asyncio.gather(*self._running, return_exceptions=True)
            await reader.dispose()

    async def revision(self) -> int:
        """The counter's value; a call that changed nothing has not moved it."""
        return await self._read(work.revision)

    async def next_revision(self, known: int, timeout_s: float) -> int:
        """Told by PostgreSQL; elsewhere it is looked at twice a second."""
        if self._watch is None:
            raise _not_open()
        return await self._watch.wait(known, timeout_s)

    async def models(self) -> list[Model]:
        """Two queries, whatever the number of models."""
        return await self._read(work.models)

    async def model(self, name: str) -> Model:
        """One model with its versions."""
        return await self._read(lambda connection: work.model(connection, name))

    async def add_version(self, new: NewVersion, by: Author = SYSTEM) -> ModelVersion:
        """The same content again sets ``desired`` if ``new`` does, and takes over ``new``'s place (artifact, path).

        ``ValueError`` for a config that JSON cannot hold.
        """
        work.check(new)
        return await self._write(lambda connection: work.add_version(connection, new, by))

    async def set_desired(self, name: str, number: int, desired: bool, by: Author = SYSTEM) -> ModelVersion:
        """The version as it is afterwards."""
        return await self._write(lambda connection: work.set_desired(connection, name, number, desired, by))

    async def set_signature(self, name: str, number: int, signature: Signature) -> None:
        """Written once; the same again changes nothing."""
        await self._write(lambda connection: work.set_signature(connection, name, number, signature))

    async def sync_repository(self, versions: list[NewVersion]) -> None:
        """``desired`` included. ``ValueError`` for a version without a number."""
        for new in versions:
            work.check(new)
        await self._write(lambda connection: work.sync_repository(connection, versions))

    async def delete_version(self, name: str, number: int, by: Author = SYSTEM) -> None:
        """Its row stays as history."""
        await self._write(lambda connection: work.delete_version(connection, name, number, by))

    async def set_alias(self, name: str, alias: str, number: int | None, by: Author = SYSTEM) -> Model:
        """The model as it is afterwards."""
        return await self._write(lambda connection: work.set_alias(connection, name, alias, number, by))

    async def set_traffic(
        self, name: str, traffic: Traffic | None, expected: int | None = None, by: Author = SYSTEM, note: str = ""
    ) -> Model:
        """The model as it is afterwards."""
        return await self._write(lambda connection: work.set_traffic(connection, name, traffic, expected, by, note))

    async def roll_back(
        self, name: str, to: int | None = None, expected: int | None = None, by: Author = SYSTEM
    ) -> Model:
        """The model as it is afterwards."""
        return await self._write(lambda connection: work.roll_back(connection, name, to, expected, by))

    async def rollback_target(self, name: str, to: int | None = None) -> Traffic | None:
        """Changes nothing."""
        return await self._read(lambda connection: work.rollback_target(connection, name, to))

    async def traffic_history(self, name: str, limit: int = 50, before: int | None = None) -> list[TrafficRevision]:
        """One query."""
        return await self._read(lambda connection: work.traffic_history(connection, name, limit, before))

    async def add_key(self, new: NewKey, by: Author = SYSTEM) -> ApiKey:
        """The key as it is kept."""
        return await self._write(lambda connection: work.add_key(connection, new, by))

    async def keys(self) -> list[ApiKey]:
        """One query."""
        return await self._read(rows.read_keys)

    async def revoke_key(self, id: str, by: Author = SYSTEM) -> ApiKey:
        """The key as it is afterwards."""
        return await self._write(lambda connection: work.revoke_key(connection, id, by))

    async def audit(self, limit: int = 50, before: int | None = None, subject: str = "") -> list[AuditEntry]:
        """One query."""
        return await self._read(lambda connection: rows.read_audit(connection, limit, before, subject))

    async def _read(self, act: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        url, reader, _ = self._opened()

        async def transaction() -> _T:
            with told(url):
                async with reader.begin() as connection:
                    return await act(connection)

        return await self._to_its_end(transaction())

    async def _write(self, act: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        await self._writing.acquire()  # whoever is cancelled here has begun nothing
        try:
            url, _, writer = self._opened()
        except StoreError:
            self._writing.release()
            raise

        async def transaction() -> _T:
            try:
                with told(url):
                    async with writer.begin() as connection:
                        (await connection.execute(select(MetaRow.revision).with_for_update())).scalar_one()
                        return await act(connection)
            finally:
                self._writing.release()

        return await self._to_its_end(transaction())

    async def _to_its_end(self, transaction: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.create_task(transaction)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    def _opened(self) -> tuple[URL, AsyncEngine, AsyncEngine]:
        if self._engines is None:
            raise _not_open()
        return self._engines


def _not_open() -> StoreError:
    return StoreError("the registry is not open: call open() first")
