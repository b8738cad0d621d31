"""Rows and records: what one connection reads and writes inside its transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from backends.spec import Signature
from registry.audit import AuditEntry, Author, traces
from registry.keys import ApiKey
from registry.plan import Change, Key, NewAlias, NewTraffic, plain
from registry.record import ModelVersion, NewVersion
from registry.tables import META_ID, AliasRow, AuditRow, KeyRow, MetaRow, ModelRow, TrafficRow, VersionRow
from registry.traffic import Traffic, TrafficRevision
from registry.watch import notify

#: Every version that is not superseded; the columns are ``ModelVersion``'s fields in their order.
_LIVE: Final = (
    select(
        ModelRow.name,
        VersionRow.number,
        VersionRow.framework,
        VersionRow.artifact,
        VersionRow.path,
        VersionRow.digest,
        VersionRow.size_bytes,
        VersionRow.source,
        VersionRow.desired,
        VersionRow.created_at,
        VersionRow.config,
        VersionRow.signature,
    )
    .join(ModelRow, ModelRow.id == VersionRow.model_id)
    .where(VersionRow.superseded_at.is_(None))
    .order_by(VersionRow.model_id, VersionRow.number)
)

#: Every revision; the columns are ``TrafficRevision``'s fields in their order.
_TRAFFIC: Final = select(
    ModelRow.name,
    TrafficRow.revision,
    TrafficRow.document,
    TrafficRow.author,
    TrafficRow.note,
    TrafficRow.created_at,
).join(ModelRow, ModelRow.id == TrafficRow.model_id)

#: The live row that ``_target`` names.
_ONE: Final = (
    VersionRow.model_id == bindparam("of_model"),
    VersionRow.number == bindparam("of_number"),
    VersionRow.superseded_at.is_(None),
)


class KnownModels(msgspec.Struct):
    """Rows of ``model`` by name: their ids and their next free numbers."""

    ids: dict[str, int]
    next_numbers: dict[str, int]

    def next_number(self, name: str) -> int:
        """The number that the model's next version gets."""
        return self.next_numbers.get(name, 1)


async def live_versions(connection: AsyncConnection, *only: ColumnElement[bool]) -> list[ModelVersion]:
    """The versions that are not superseded, by model and number."""
    return [_version(row) for row in await connection.execute(_LIVE.where(*only))]


async def find_version(connection: AsyncConnection, name: str, number: int) -> ModelVersion | None:
    """One version, if it is there and not superseded."""
    found = await live_versions(connection, ModelRow.name == name, VersionRow.number == number)
    return found[0] if found else None


async def read_models(connection: AsyncConnection, name: str | None = None) -> KnownModels:
    """The row of one model (or none, if it is new), or those of all."""
    query = select(ModelRow.name, ModelRow.id, ModelRow.next_version)
    found = (await connection.execute(query if name is None else query.where(ModelRow.name == name))).all()
    return KnownModels({row.name: row.id for row in found}, {row.name: row.next_version for row in found})


async def apply(connection: AsyncConnection, known: KnownModels, change: Change, by: Author) -> None:
    """Write ``change`` with its entries of the audit log, and move the counter; an empty change moves nothing."""
    if not change:
        return
    now = datetime.now(UTC)
    await _retire(connection, known, change.retire, now)
    await _add(connection, known, change.add, now)
    await _set_each(connection, known, VersionRow.desired.key, change.desire)
    signatures = [(key, msgspec.to_builtins(signature)) for key, signature in change.sign]
    await _set_each(connection, known, VersionRow.signature.key, signatures)
    for alias in change.alias:
        await _set_alias(connection, known.ids[alias.model], alias, now)
    routes = [_traffic_row(known.ids[route.model], route, by, now) for route in change.route]
    if routes:
        await connection.execute(insert(TrafficRow), routes)
    await _write_keys(connection, change, by, now)
    entries = [
        {**msgspec.structs.asdict(trace), "at": now, "actor": by.name, "request_id": by.request_id}
        for trace in traces(change)
    ]
    await connection.execute(insert(AuditRow), entries)
    counted = {"revision": MetaRow.revision + 1, "updated_at": now}
    await connection.execute(update(MetaRow).where(MetaRow.id == META_ID).values(counted))
    await notify(connection)


async def _set_alias(connection: AsyncConnection, model_id: int, alias: NewAlias, now: datetime) -> None:
    one = (AliasRow.model_id == model_id, AliasRow.name == alias.name)
    values = {"number": alias.after, "updated_at": now}
    if alias.after is None:
        await connection.execute(delete(AliasRow).where(*one))
    elif alias.before is None:
        await connection.execute(insert(AliasRow).values(model_id=model_id, name=alias.name, **values))
    else:
        await connection.execute(update(AliasRow).where(*one).values(values))


def _traffic_row(model_id: int, route: NewTraffic, by: Author, now: datetime) -> dict[str, Any]:
    return {
        "model_id": model_id,
        "revision": route.revision,
        "document": msgspec.to_builtins(route.traffic),
        "author": by.name,
        "note": route.note,
        "created_at": now,
    }


async def _write_keys(connection: AsyncConnection, change: Change, by: Author, now: datetime) -> None:
    if change.grant:
        added = [{**msgspec.structs.asdict(new), "created_by": by.name, "created_at": now} for new in change.grant]
        await connection.execute(insert(KeyRow), added)
    if change.revoke:
        await connection.execute(update(KeyRow).where(KeyRow.id.in_(change.revoke)).values(revoked_at=now))


async def read_keys(connection: AsyncConnection) -> list[ApiKey]:
    """All of them, the oldest first."""
    query = select(*(getattr(KeyRow, field) for field in ApiKey.__struct_fields__))
    return [ApiKey(*row) for row in await connection.execute(query.order_by(KeyRow.created_at, KeyRow.id))]


async def read_aliases(connection: AsyncConnection, *only: ColumnElement[bool]) -> dict[str, dict[str, int]]:
    """Model -> alias -> number."""
    query = select(ModelRow.name.label("model"), AliasRow.name, AliasRow.number)
    found: dict[str, dict[str, int]] = {}
    joined = query.join(ModelRow, ModelRow.id == AliasRow.model_id).where(*only).order_by(AliasRow.name)
    for row in await connection.execute(joined):
        found.setdefault(row.model, {})[row.name] = row.number
    return found


async def newest_traffic(connection: AsyncConnection, *only: ColumnElement[bool]) -> dict[str, TrafficRevision]:
    """Model -> the revision in force."""
    newest = (
        select(TrafficRow.model_id, func.max(TrafficRow.revision).label("revision"))
        .group_by(TrafficRow.model_id)
        .subquery()
    )
    same = (newest.c.model_id == TrafficRow.model_id) & (newest.c.revision == TrafficRow.revision)
    found = [_revision(row) for row in await connection.execute(_TRAFFIC.join(newest, same).where(*only))]
    return {revision.model: revision for revision in found}


async def find_traffic(connection: AsyncConnection, name: str, revision: int) -> TrafficRevision | None:
    """One revision, if it is there."""
    one = (ModelRow.name == name, TrafficRow.revision == revision)
    row = (await connection.execute(_TRAFFIC.where(*one))).first()
    return None if row is None else _revision(row)


async def read_traffic(connection: AsyncConnection, name: str, limit: int, before: int | None) -> list[TrafficRevision]:
    """Newest first, below ``before``."""
    query = _TRAFFIC.where(ModelRow.name == name).order_by(TrafficRow.revision.desc()).limit(limit)
    if before is not None:
        query = query.where(TrafficRow.revision < before)
    return [_revision(row) for row in await connection.execute(query)]


async def read_audit(connection: AsyncConnection, limit: int, before: int | None, subject: str) -> list[AuditEntry]:
    """Newest first, below the id ``before``; ``subject`` "" is all, otherwise it and what belongs to it."""
    query = select(*(getattr(AuditRow, field) for field in AuditEntry.__struct_fields__))
    query = query.order_by(AuditRow.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditRow.id < before)
    if subject:
        inside = AuditRow.subject.startswith(subject + "/", autoescape=True)
        query = query.where((AuditRow.subject == subject) | inside)
    return [AuditEntry(*row) for row in await connection.execute(query)]


def _revision(row: Row[*tuple[Any, ...]]) -> TrafficRevision:
    fields: list[Any] = list(row)
    if fields[2] is not None:
        fields[2] = msgspec.convert(fields[2], Traffic)
    return TrafficRevision(*fields)


async def _retire(connection: AsyncConnection, known: KnownModels, keys: Iterable[Key], now: datetime) -> None:
    await _set_each(connection, known, VersionRow.superseded_at.key, [(key, now) for key in keys])


async def _add(connection: AsyncConnection, known: KnownModels, new: tuple[NewVersion, ...], now: datetime) -> None:
    if not new:
        return
    unknown = sorted({version.model for version in new} - known.ids.keys())
    for name in unknown:
        born = insert(ModelRow).values(name=name, next_version=1, created_at=now).returning(ModelRow.id)
        known.ids[name] = (await connection.execute(born)).scalar_one()
    after = _next_numbers(known, new)
    moved = update(ModelRow).where(ModelRow.id == bindparam("of_model")).values(next_version=bindparam("number"))
    await connection.execute(moved, [{"of_model": known.ids[name], "number": next} for name, next in after.items()])
    await connection.execute(insert(VersionRow), [_row(known, version, now) for version in new])
    known.next_numbers.update(after)


async def _set_each(
    connection: AsyncConnection, known: KnownModels, column: str, values: Iterable[tuple[Key, object]]
) -> None:
    targets = [{**_target(known, key), "value": value} for key, value in values]
    if targets:
        await connection.execute(update(VersionRow).where(*_ONE).values({column: bindparam("value")}), targets)


def _target(known: KnownModels, key: Key) -> dict[str, int]:
    name, number = key
    return {"of_model": known.ids[name], "of_number": number}


def _next_numbers(known: KnownModels, new: Iterable[NewVersion]) -> dict[str, int]:
    after: dict[str, int] = {}
    for version in new:
        assert version.number is not None, "a plan gives every version its number"
        after[version.model] = max(after.get(version.model, known.next_number(version.model)), version.number + 1)
    return after


def _row(known: KnownModels, new: NewVersion, now: datetime) -> Mapping[str, Any]:
    return {
        "model_id": known.ids[new.model],
        "number": new.number,
        "framework": new.framework,
        "artifact": new.artifact,
        "path": new.path,
        "digest": new.digest,
        "size_bytes": new.size_bytes,
        "source": new.source,
        "desired": new.desired,
        "config": plain(new.config),
        "signature": None if new.signature is None else msgspec.to_builtins(new.signature),
        "created_at": now,
    }


def _version(row: Row[*tuple[Any, ...]]) -> ModelVersion:
    fields: list[Any] = list(row)
    if fields[-1] is not None:
        fields[-1] = msgspec.convert(fields[-1], Signature, str_keys=True)  # JSON has no other keys
    return ModelVersion(*fields)
