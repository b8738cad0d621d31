"""The model store over SQLAlchemy: SQLite and PostgreSQL.

Every write is one transaction that first locks the change counter, and so waits for the writers before it: what it
reads after that is what it changes. Every read is a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from sqlalchemy import URL, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backends.spec import Signature
from registry import database, rows, schema
from registry.errors import ModelNotFound, StoreError, VersionConflict, VersionNotFound
from registry.mend import told
from registry.names import check_name, check_number, is_number, name_problem
from registry.plan import Change, plain, plan_add, plan_sync
from registry.record import Model, ModelVersion, NewVersion
from registry.store import ModelStore
from registry.tables import MetaRow, ModelRow

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

    async def open(self) -> None:
        """Upgrade the schema and make the engine; does nothing on an open store."""
        if self._engines is not None:
            return
        url = database.parse(self._text)
        await schema.upgrade(self._text)
        engine = database.create_engine(url)
        snapshot = {} if url.get_backend_name() == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        self._engines = (url, engine.execution_options(**snapshot), engine.execution_options(write=True))

    async def close(self) -> None:
        """Wait for what is running, then give the connections back; the store can be opened again."""
        if self._engines is not None:
            _, reader, _ = self._engines  # both share one pool
            self._engines = None
            await asyncio.gather(*self._running, return_exceptions=True)
            await reader.dispose()

    async def revision(self) -> int:
        """The counter's value; a call that changed nothing has not moved it."""
        return await self._read(_revision)

    async def models(self) -> list[Model]:
        """Two queries, whatever the number of models."""
        return await self._read(_models)

    async def model(self, name: str) -> Model:
        """One model with its versions."""
        return await self._read(lambda connection: _model(connection, name))

    async def add_version(self, new: NewVersion) -> ModelVersion:
        """The same content again sets ``desired`` if ``new`` does, and takes over ``new``'s place (artifact, path).

        ``ValueError`` for a config that JSON cannot hold.
        """
        _check(new)
        return await self._write(lambda connection: _add_version(connection, new))

    async def set_desired(self, name: str, number: int, desired: bool) -> ModelVersion:
        """The version as it is afterwards."""
        return await self._write(lambda connection: _set_desired(connection, name, number, desired))

    async def set_signature(self, name: str, number: int, signature: Signature) -> None:
        """Written once; the same again changes nothing."""
        await self._write(lambda connection: _set_signature(connection, name, number, signature))

    async def sync_repository(self, versions: list[NewVersion]) -> None:
        """``desired`` included. ``ValueError`` for a version without a number."""
        for new in versions:
            _check(new)
        await self._write(lambda connection: _sync_repository(connection, versions))

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        url, reader, _ = self._opened()

        async def transaction() -> _T:
            with told(url):
                async with reader.begin() as connection:
                    return await work(connection)

        return await self._to_its_end(transaction())

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
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
                        return await work(connection)
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
            raise StoreError("the registry is not open: call open() first")
        return self._engines


async def _revision(connection: AsyncConnection) -> int:
    return (await connection.execute(select(MetaRow.revision))).scalar_one()


async def _models(connection: AsyncConnection) -> list[Model]:
    born = (await connection.execute(select(ModelRow.name, ModelRow.created_at))).all()
    versions: dict[str, list[ModelVersion]] = {}
    for version in await rows.live_versions(connection):
        versions.setdefault(version.model, []).append(version)
    shown = sorted((row for row in born if row.name in versions), key=lambda row: row.name)
    return [Model(row.name, row.created_at, tuple(versions[row.name])) for row in shown]


async def _model(connection: AsyncConnection, name: str) -> Model:
    if name_problem(name) is not None:
        raise _no_model(name)
    created_at = (await connection.execute(select(ModelRow.created_at).where(ModelRow.name == name))).scalar()
    versions = await rows.live_versions(connection, ModelRow.name == name)
    if created_at is None or not versions:
        raise _no_model(name)
    return Model(name, created_at, tuple(versions))


async def _add_version(connection: AsyncConnection, new: NewVersion) -> ModelVersion:
    known = await rows.read_models(connection, new.model)
    next_number = known.next_number(new.model)
    number = next_number if new.number is None else new.number
    check_number(new.model, number)
    live = await rows.find_version(connection, new.model, number)
    await rows.apply(connection, known, plan_add(live, new, next_number))
    added = await rows.find_version(connection, new.model, number)
    assert added is not None, "written in this transaction"
    return added


async def _set_desired(connection: AsyncConnection, name: str, number: int, desired: bool) -> ModelVersion:
    known, live = await _get(connection, name, number)
    if live.desired != desired:
        await rows.apply(connection, known, Change(desire=(((name, number), desired),)))
    return msgspec.structs.replace(live, desired=desired)


async def _set_signature(connection: AsyncConnection, name: str, number: int, signature: Signature) -> None:
    known, live = await _get(connection, name, number)
    if live.signature is None:
        await rows.apply(connection, known, Change(sign=(((name, number), signature),)))
    elif live.signature != signature:
        raise VersionConflict(
            f"version {number} of model {name!r} has another signature already, and versions never change: "
            f"register the artifact again as a new version"
        )


async def _sync_repository(connection: AsyncConnection, versions: list[NewVersion]) -> None:
    known = await rows.read_models(connection)
    live = await rows.live_versions(connection)
    await rows.apply(connection, known, plan_sync(live, versions, known.next_numbers))


async def _get(connection: AsyncConnection, name: str, number: int) -> tuple[rows.KnownModels, ModelVersion]:
    """Raises ``ModelNotFound`` or ``VersionNotFound``."""
    if name_problem(name) is not None:
        raise _no_model(name)
    live = await rows.find_version(connection, name, number) if is_number(number) else None
    if live is None:
        others = await rows.live_versions(connection, ModelRow.name == name)
        if not others:
            raise _no_model(name)
        has = ", ".join(str(other.number) for other in others)
        raise VersionNotFound(f"model {name!r} has no version {number}; it has {has}")
    return await rows.read_models(connection, name), live


def _check(new: NewVersion) -> None:
    check_name(new.model)
    if new.number is not None:
        check_number(new.model, new.number)
    plain(new.config)  # ValueError before anything is written


def _no_model(name: str) -> ModelNotFound:
    return ModelNotFound(f"there is no model {name!r}: `tensorgate model list` shows those that exist")
