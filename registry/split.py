"""What a change of aliases, of a split, or a removal does: decided from the model as it is, without a database."""

from __future__ import annotations

import msgspec

from registry.errors import InUse, RevisionConflict
from registry.plan import Change, Key, NewAlias, NewTraffic
from registry.record import Model, ModelVersion, Source
from registry.traffic import Arm, Traffic, TrafficRevision, check_alias, check_traffic, settled


def plan_traffic(model: Model, traffic: Traffic | None, expected: int | None, note: str = "") -> Change:
    """The next revision. The versions that it needs ought to run from now on.

    Raises ``InvalidTraffic``, ``RevisionConflict``.
    """
    _expect(model, expected)
    if traffic is not None:
        check_traffic(model.name, traffic, {version.number for version in model.versions})
        traffic = settled(traffic, model.traffic.traffic if model.traffic else None)
    return _revise(model, traffic, note)


def plan_rollback(model: Model, target: TrafficRevision | None, expected: int | None) -> Change:
    """A new revision that says what ``target`` said; without one, all to the version before the greatest.

    That is for a model whose requests went to the greatest version, and which has no history. Raises ``InUse`` where
    a version of ``target`` is gone, or there is no version to go back to.
    """
    _expect(model, expected)
    if target is not None:
        needs = target.traffic.versions() if target.traffic else frozenset()
        gone = sorted(needs - {version.number for version in model.versions})
        if gone:
            raise InUse(
                f"revision {target.revision} of model {model.name!r} needs version {gone[0]}, which was deleted: name "
                "another with --to, or set the traffic"
            )
        return _revise(model, target.traffic, f"rollback to revision {target.revision}")
    running = [version.number for version in model.versions if version.desired]
    if len(running) < 2:
        raise InUse(
            f"model {model.name!r} has no earlier revision, and no second version that runs: set the traffic "
            f"(`tensorgate traffic set {model.name} VERSION=100`)"
        )
    return _revise(model, settled(Traffic((Arm(running[-2], 100),)), None), f"rollback from version {running[-1]}")


def plan_alias(model: Model, alias: str, number: int | None) -> Change:
    """Set an alias, or with None remove it. ``number`` exists. Raises ``InvalidTraffic``."""
    check_alias(alias)
    before = model.aliases.get(alias)
    if before == number:
        return Change()
    return Change(alias=(NewAlias(model.name, alias, before, number),))


def plan_delete(model: Model, version: ModelVersion) -> Change:
    """Remove a version for good. Raises ``InUse`` with what needs it, and the mend."""
    label = f"version {version.number} of model {model.name!r}"
    if version.source is Source.REPOSITORY:
        raise InUse(f"{label} comes from a model repository: remove its folder {version.path}, and restart the server")
    if model.traffic and model.traffic.traffic and version.number in _named(model.traffic.traffic):
        raise InUse(
            f"{label} is in the traffic's revision {model.traffic.revision}: set the traffic without it first "
            f"(`tensorgate traffic set {model.name} ...`)"
        )
    aliases = sorted(alias for alias, number in model.aliases.items() if number == version.number)
    if aliases:
        raise InUse(f"{label} has the alias {aliases[0]!r}: move it to another version, or remove it, first")
    if version.desired:
        raise InUse(f"{label} is in service: unload it first (`tensorgate model unload {model.name} {version.number}`)")
    return Change(retire=((version.model, version.number),))


def plan_desire(model: Model, version: ModelVersion, desired: bool) -> Change:
    """Say whether a version ought to run. Raises ``InUse`` for one that takes traffic."""
    if version.desired == desired:
        return Change()
    if not desired and model.traffic and model.traffic.traffic and version.number in model.traffic.traffic.versions():
        raise InUse(
            f"version {version.number} of model {model.name!r} takes traffic (revision {model.traffic.revision}): move "
            f"that to another version first (`tensorgate traffic set {model.name} ...`)"
        )
    return Change(desire=(((version.model, version.number), desired),))


def without(models: dict[str, Model], gone: list[Key]) -> Change:
    """What has to follow when versions vanish whoever needs them: aliases and entries of splits go with them."""
    lost: dict[str, set[int]] = {}
    for name, number in gone:
        lost.setdefault(name, set()).add(number)
    parts = [_lose(models[name], numbers) for name, numbers in lost.items() if name in models]
    return Change(
        alias=tuple(alias for part in parts for alias in part.alias),
        route=tuple(route for part in parts for route in part.route),
    )


def _lose(model: Model, gone: set[int]) -> Change:
    aliases = tuple(
        NewAlias(model.name, alias, number, None) for alias, number in sorted(model.aliases.items()) if number in gone
    )
    before = model.traffic.traffic if model.traffic else None
    if before is None or not _named(before) & gone:
        return Change(alias=aliases)
    arms = tuple(arm for arm in before.arms if arm.version not in gone)
    after = msgspec.structs.replace(
        before,
        arms=arms,
        rules=tuple(rule for rule in before.rules if rule.version not in gone),
        shadows=tuple(shadow for shadow in before.shadows if shadow.version not in gone),
    )
    note = f"version {', '.join(map(str, sorted(gone)))} left the model repository"
    traffic = settled(after, before) if any(arm.weight > 0 for arm in arms) else None
    return Change(alias=aliases, route=(NewTraffic(model.name, model.traffic_revision + 1, traffic, before, note),))


def _revise(model: Model, traffic: Traffic | None, note: str) -> Change:
    before = model.traffic.traffic if model.traffic else None
    needs = traffic.versions() if traffic else frozenset()
    return Change(
        desire=tuple(
            ((version.model, version.number), True)
            for version in model.versions
            if version.number in needs and not version.desired
        ),
        route=(NewTraffic(model.name, model.traffic_revision + 1, traffic, before, note),),
    )


def _expect(model: Model, expected: int | None) -> None:
    if expected is not None and expected != model.traffic_revision:
        raise RevisionConflict(
            f"the traffic of model {model.name!r} has revision {model.traffic_revision}, and the change was made for "
            f"revision {expected}: read it again (`tensorgate traffic show {model.name}`), then decide"
        )


def _named(traffic: Traffic) -> set[int]:
    return {entry.version for part in (traffic.arms, traffic.rules, traffic.shadows) for entry in part}
