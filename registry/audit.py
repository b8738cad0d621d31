"""Who changed what: entries that are written in the transaction of the change, and never again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from registry.plan import Change


class Author(msgspec.Struct, frozen=True):
    """On whose behalf a change is made, and with which request."""

    name: str
    request_id: str = ""


#: Changes that nobody asked for, such as what follows from a model repository.
SYSTEM = Author("system")


class AuditEntry(msgspec.Struct, frozen=True):
    """One change of one thing. ``subject`` is ``model/NAME``, ``model/NAME/version/NUMBER``, ...; None is nothing."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    before: Any
    after: Any
    request_id: str


class Trace(msgspec.Struct, frozen=True):
    """What an entry says of a change, before it has a time and an author."""

    action: str
    subject: str
    before: Any
    after: Any


def traces(change: Change) -> Iterator[Trace]:
    """One for each thing that ``change`` changes."""
    for model, number in change.retire:
        yield Trace("version.remove", _version(model, number), {"number": number}, None)
    for new in change.add:
        after = {"digest": new.digest, "artifact": new.artifact, "framework": new.framework, "desired": new.desired}
        yield Trace("version.add", _version(new.model, new.number), None, after)
    for (model, number), desired in change.desire:
        yield Trace("version.desire", _version(model, number), {"desired": not desired}, {"desired": desired})
    for (model, number), signature in change.sign:
        yield Trace("version.sign", _version(model, number), None, msgspec.to_builtins(signature))
    for alias in change.alias:
        yield Trace("alias.set", f"model/{alias.model}/alias/{alias.name}", alias.before, alias.after)
    for route in change.route:
        before, after = msgspec.to_builtins(route.before), msgspec.to_builtins(route.traffic)
        yield Trace("traffic.set", f"model/{route.model}/traffic/{route.revision}", before, after)
    for key in change.grant:
        after = {"role": key.role, "tenant": key.tenant, "note": key.note, "expires_at": _moment(key.expires_at)}
        yield Trace("key.create", f"key/{key.id}", None, after)
    for id in change.revoke:
        yield Trace("key.revoke", f"key/{id}", {"revoked": False}, {"revoked": True})


def _moment(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def _version(model: str, number: int | None) -> str:
    return f"model/{model}/version/{number}"
