"""What each call of the model store does inside its one transaction: read, decide (``plan``, ``split``), write."""

from __future__ import annotations

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from backends.spec import Signature
from registry import rows
from registry.audit import SYSTEM, Author
from registry.errors import KeyNotFound, ModelNotFound, RevisionNotFound, VersionConflict, VersionNotFound
from registry.keys import ApiKey, NewKey
from registry.names import check_name, check_number, is_number, name_problem
from registry.plan import Change, join, plain, plan_add, plan_sync
from registry.record import Model, ModelVersion, NewVersion
from registry.split import plan_alias, plan_delete, plan_desire, plan_rollback, plan_traffic, without
from registry.tables import MetaRow, ModelRow
from registry.traffic import Traffic, TrafficRevision


def check(new: NewVersion) -> None:
    """Before anything is written. Raises ``InvalidName``; ``ValueError`` for a config that JSON cannot hold."""
    check_name(new.model)
    if new.number is not None:
        check_number(new.model, new.number)
    plain(new.config)


async def revision(connection: AsyncConnection) -> int:
    """The change counter."""
    return (await connection.execute(select(MetaRow.revision))).scalar_one()


async def models(connection: AsyncConnection) -> list[Model]:
    """All models that have versions, by name."""
    born = (await connection.execute(select(ModelRow.name, ModelRow.created_at))).all()
    versions: dict[str, list[ModelVersion]] = {}
    for version in await rows.live_versions(connection):
        versions.setdefault(version.model, []).append(version)
    aliases, traffic = await rows.read_aliases(connection), await rows.newest_traffic(connection)
    return [
        Model(row.name, row.created_at, tuple(versions[row.name]), aliases.get(row.name, {}), traffic.get(row.name))
        for row in sorted((row for row in born if row.name in versions), key=lambda row: row.name)
    ]


async def model(connection: AsyncConnection, name: str) -> Model:
    """Raises ``ModelNotFound``."""
    if name_problem(name) is not None:
        raise _no_model(name)
    created_at = (await connection.execute(select(ModelRow.created_at).where(ModelRow.name == name))).scalar()
    versions = await rows.live_versions(connection, ModelRow.name == name)
    if created_at is None or not versions:
        raise _no_model(name)
    only = ModelRow.name == name
    aliases, traffic = await rows.read_aliases(connection, only), await rows.newest_traffic(connection, only)
    return Model(name, created_at, tuple(versions), aliases.get(name, {}), traffic.get(name))


async def add_version(connection: AsyncConnection, new: NewVersion, by: Author) -> ModelVersion:
    """The version that is registered, or was."""
    known = await rows.read_models(connection, new.model)
    next_number = known.next_number(new.model)
    number = next_number if new.number is None else new.number
    check_number(new.model, number)
    live = await rows.find_version(connection, new.model, number)
    await rows.apply(connection, known, plan_add(live, new, next_number), by)
    added = await rows.find_version(connection, new.model, number)
    assert added is not None, "written in this transaction"
    return added


async def set_desired(connection: AsyncConnection, name: str, number: int, desired: bool, by: Author) -> ModelVersion:
    """The version as it is afterwards."""
    found, version = await _get(connection, name, number)
    await _apply(connection, name, plan_desire(found, version, desired), by)
    return msgspec.structs.replace(version, desired=desired)


async def set_signature(connection: AsyncConnection, name: str, number: int, signature: Signature) -> None:
    """Once."""
    _, version = await _get(connection, name, number)
    if version.signature is None:
        await _apply(connection, name, Change(sign=(((name, number), signature),)), SYSTEM)
    elif version.signature != signature:
        raise VersionConflict(
            f"version {number} of model {name!r} has another signature already, and versions never change: "
            f"register the artifact again as a new version"
        )


async def sync_repository(connection: AsyncConnection, versions: list[NewVersion]) -> None:
    """Aliases of versions that vanish, and their places in splits, vanish with them."""
    known = await rows.read_models(connection)
    before = {found.name: found for found in await models(connection)}
    live = [version for found in before.values() for version in found.versions]
    change = plan_sync(live, versions, known.next_numbers)
    kept = {(new.model, new.number) for new in change.add}
    change = join([change, without(before, [key for key in change.retire if key not in kept])])
    await rows.apply(connection, known, change, SYSTEM)


async def delete_version(connection: AsyncConnection, name: str, number: int, by: Author) -> None:
    """Raises ``InUse``."""
    await _apply(connection, name, plan_delete(*await _get(connection, name, number)), by)


async def set_alias(connection: AsyncConnection, name: str, alias: str, number: int | None, by: Author) -> Model:
    """The model as it is afterwards."""
    found = await model(connection, name) if number is None else (await _get(connection, name, number))[0]
    await _apply(connection, name, plan_alias(found, alias, number), by)
    return await model(connection, name)


async def set_traffic(
    connection: AsyncConnection, name: str, traffic: Traffic | None, expected: int | None, by: Author, note: str
) -> Model:
    """The model as it is afterwards."""
    found = await model(connection, name)
    await _apply(connection, name, plan_traffic(found, traffic, expected, note), by)
    return await model(connection, name)


async def roll_back(connection: AsyncConnection, name: str, to: int | None, expected: int | None, by: Author) -> Model:
    """The model as it is afterwards."""
    found = await model(connection, name)
    target = await _target(connection, found, to)
    await _apply(connection, name, plan_rollback(found, target, expected), by)
    return await model(connection, name)


async def rollback_target(connection: AsyncConnection, name: str, to: int | None) -> Traffic | None:
    """Where ``roll_back`` would lead."""
    found = await model(connection, name)
    return plan_rollback(found, await _target(connection, found, to), None).route[0].traffic


async def traffic_history(
    connection: AsyncConnection, name: str, limit: int, before: int | None
) -> list[TrafficRevision]:
    """Newest first."""
    await model(connection, name)
    return await rows.read_traffic(connection, name, limit, before)


async def add_key(connection: AsyncConnection, new: NewKey, by: Author) -> ApiKey:
    """As it is kept."""
    await rows.apply(connection, rows.KnownModels({}, {}), Change(grant=(new,)), by)
    return await _key(connection, new.id)


async def revoke_key(connection: AsyncConnection, id: str, by: Author) -> ApiKey:
    """As it is afterwards."""
    if (await _key(connection, id)).revoked_at is None:
        await rows.apply(connection, rows.KnownModels({}, {}), Change(revoke=(id,)), by)
    return await _key(connection, id)


async def _key(connection: AsyncConnection, id: str) -> ApiKey:
    found = next((key for key in await rows.read_keys(connection) if key.id == id), None)
    if found is None:
        raise KeyNotFound(f"there is no key {id[:64]!r}: `tensorgate key list` shows those that exist")
    return found


async def _target(connection: AsyncConnection, found: Model, to: int | None) -> TrafficRevision | None:
    """The revision to go back to; None where there has been none at all."""
    newest = found.traffic
    if newest is None and to is None:
        return None
    number = newest.revision - 1 if to is None and newest is not None else to
    if number == 0 and newest is not None:  # before the first: no split
        return msgspec.structs.replace(newest, revision=0, traffic=None)
    target = await rows.find_traffic(connection, found.name, number or 0)
    if target is None:
        raise RevisionNotFound(
            f"the traffic of model {found.name!r} has no revision {number}: `tensorgate traffic history {found.name}` "
            "shows those that it has"
        )
    return target


async def _apply(connection: AsyncConnection, name: str, change: Change, by: Author) -> None:
    if change:
        await rows.apply(connection, await rows.read_models(connection, name), change, by)


async def _get(connection: AsyncConnection, name: str, number: int) -> tuple[Model, ModelVersion]:
    """Raises ``ModelNotFound`` or ``VersionNotFound``."""
    found = await model(connection, name)
    version = next((version for version in found.versions if version.number == number), None)
    if version is None or not is_number(number):
        has = ", ".join(str(other.number) for other in found.versions)
        raise VersionNotFound(f"model {name!r} has no version {number}; it has {has}")
    return found, version


def _no_model(name: str) -> ModelNotFound:
    return ModelNotFound(f"there is no model {name!r}: `tensorgate model list` shows those that exist")
