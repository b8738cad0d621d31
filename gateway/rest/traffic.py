"""The administration API's routes for traffic: splits, aliases, rollbacks, removal, and the audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Request, delete, get, post, put
from litestar.params import Parameter

from gateway.errors import InvalidRequest
from gateway.rest.versions import MAX_WAIT_S, version_number
from gateway.serving.trafficplane import ShadowInfo, TrafficInfo, TrafficPlane
from registry.audit import AuditEntry, Author
from registry.traffic import Arm, Rule, Shadow, Traffic

DEFAULT_PAGE = 50
MAX_PAGE = 1000

Limit = Annotated[int, Parameter(ge=1, le=MAX_PAGE, description="how many at most, the newest first")]
Before = Annotated[int | None, Parameter(description="only what is older than this revision, or id")]
WaitReady = Annotated[
    float, Parameter(ge=0, le=MAX_WAIT_S, description="seconds to wait until the versions that get requests are ready")
]


class TrafficBody(msgspec.Struct, forbid_unknown_fields=True):
    """A split: versions and their weights, such as ``{"1": 90, "2": 10}``; null goes back to the greatest version.

    ``expected_revision`` is the revision that the change was made for. ``force`` does not wait for versions.
    """

    weights: dict[int, float] | None
    sticky: str = ""
    rules: tuple[Rule, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    expected_revision: int | None = None
    note: str = ""
    force: bool = False


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """``to`` is a revision of the history; null is the one before the newest."""

    to: int | None = None
    expected_revision: int | None = None
    force: bool = False


class AliasBody(msgspec.Struct, forbid_unknown_fields=True):
    """The version that the alias names from now on."""

    version: int


class TrafficHistory(msgspec.Struct):
    """Revisions, newest first; the next page is ``before`` the last one."""

    revisions: list[TrafficInfo]


class ShadowList(msgspec.Struct):
    """The shadows of a model."""

    shadows: list[ShadowInfo]


class Aliases(msgspec.Struct):
    """All aliases of a model."""

    aliases: dict[str, int]


class Audit(msgspec.Struct):
    """Changes, newest first; the next page is ``before`` the last id."""

    entries: list[AuditEntry]


@get("/models/{model:str}/traffic", summary="How requests are shared")
async def show_traffic(trafficplane: TrafficPlane, model: str) -> TrafficInfo:
    """The split in force; revision 0 if there was never one."""
    return await trafficplane.show(model)


@put("/models/{model:str}/traffic", summary="Share requests anew")
async def set_traffic(
    trafficplane: TrafficPlane, author: Author, model: str, data: TrafficBody, wait: WaitReady = 60.0
) -> TrafficInfo:
    """Effective for the next request. 409 if a version is not ready in time, 412 if the revision is another one."""
    traffic = None
    if data.weights is not None:
        arms = tuple(Arm(version, weight) for version, weight in data.weights.items())
        traffic = Traffic(arms, data.sticky, data.rules, data.shadows)
    elif data.sticky or data.rules or data.shadows:
        raise InvalidRequest("weights is null, which shares nothing: leave out sticky, rules and shadows, or give some")
    return await trafficplane.set(
        model,
        traffic,
        author,
        expected=data.expected_revision,
        note=data.note,
        force=data.force,
        wait_s=wait,
    )


@get("/models/{model:str}/traffic/history", summary="Earlier splits")
async def traffic_history(
    trafficplane: TrafficPlane, model: str, limit: Limit = DEFAULT_PAGE, before: Before = None
) -> TrafficHistory:
    """Every revision there ever was, the newest first."""
    return TrafficHistory(await trafficplane.history(model, limit, before))


@get("/models/{model:str}/traffic/shadows", summary="What came of the copies")
async def list_shadows(trafficplane: TrafficPlane, model: str) -> ShadowList:
    """How the answers of shadows compare with those that clients got, in this gateway."""
    return ShadowList(await trafficplane.shadows(model))


@post("/models/{model:str}/rollback", summary="Go back to an earlier split", status_code=200)
async def roll_back(
    trafficplane: TrafficPlane,
    author: Author,
    model: str,
    data: RollbackBody | None = None,
    wait: WaitReady = 60.0,
) -> TrafficInfo:
    """A new revision that says what the earlier one said; effective for the next request."""
    asked = data or RollbackBody()
    return await trafficplane.roll_back(
        model, asked.to, author, expected=asked.expected_revision, force=asked.force, wait_s=wait
    )


@put("/models/{model:str}/aliases/{alias:str}", summary="Name a version")
async def set_alias(trafficplane: TrafficPlane, author: Author, model: str, alias: str, data: AliasBody) -> Aliases:
    """Requests for the alias, in place of a version, go to that version from now on."""
    return Aliases(await trafficplane.set_alias(model, alias, data.version, author))


@delete("/models/{model:str}/aliases/{alias:str}", summary="Remove an alias", status_code=200)
async def remove_alias(trafficplane: TrafficPlane, author: Author, model: str, alias: str) -> Aliases:
    """All that are left."""
    return Aliases(await trafficplane.set_alias(model, alias, None, author))


@delete("/models/{model:str}/versions/{version:str}", summary="Delete a version", status_code=204)
async def delete_version(trafficplane: TrafficPlane, author: Author, model: str, version: str) -> None:
    """409 for one that is in service, takes traffic or has an alias. Its number is not given again."""
    await trafficplane.delete(model, version_number(version), author)


@get("/audit", summary="Who changed what")
async def audit(
    trafficplane: TrafficPlane, limit: Limit = DEFAULT_PAGE, before: Before = None, subject: str = ""
) -> Audit:
    """All changes, or those of one subject (such as ``model/resnet``) and what belongs to it."""
    return Audit(await trafficplane.audit(limit, before, subject))


def author_of(request: Request) -> Author:  # type: ignore[type-arg]
    """On whose behalf a call is made."""
    return Author("admin", request.headers.get("x-request-id", "")[:128])


ROUTES = (
    show_traffic, set_traffic, traffic_history, list_shadows, roll_back, set_alias, remove_alias, delete_version, audit,
)  # fmt: skip
