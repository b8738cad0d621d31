"""Any interleaving of changes keeps what has to hold of splits, aliases, their history, and the audit log."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis.stateful import invariant, rule

from registry.audit import AuditEntry, Author
from registry.cohorts import SPACE
from registry.errors import RegistryError
from registry.record import Model
from registry.traffic import Arm, Rule, Shadow, Traffic, TrafficRevision
from support.machines import OnStore, run_machine
from support.versions import folder, new

models = st.sampled_from(["a", "b"])
numbers = st.sampled_from([1, 1, 2, 2, 3, 4])
aliases = st.sampled_from(["stable", "canary"])
authors = st.sampled_from([Author("anna"), Author("ben", "r-1")])
arms = st.dictionaries(numbers, st.sampled_from([0.0, 1.0, 10.0, 90.0]), min_size=1, max_size=3).map(
    lambda split: tuple(Arm(number, weight) for number, weight in split.items())
)
splits = st.builds(
    Traffic,
    arms,
    rules=st.lists(st.builds(Rule, st.just("x-beta"), st.just("yes"), numbers), max_size=1).map(tuple),
    shadows=st.lists(st.builds(Shadow, numbers, st.just(10.0)), max_size=1).map(tuple),
)


class TrafficMachine(OnStore):
    """Each rule may be refused; what matters is what holds after it, whether or not."""

    def __init__(self) -> None:
        super().__init__()
        self.histories: dict[str, list[TrafficRevision]] = {}
        self.log: list[AuditEntry] = []
        self.revision = 0

    def fill(self) -> None:
        for _ in range(3):
            self.run(self.store.add_version(new("a")))
        self.run(self.store.sync_repository([folder("b", number, "r") for number in (1, 2, 3)]))

    def attempt(self, work: Awaitable[object]) -> bool:
        """Whether it was done; what is refused changes nothing at all."""
        before = self.run(self.store.models())
        try:
            self.run(work)
        except RegistryError:
            assert self.run(self.store.models()) == before
            assert self.run(self.store.revision()) == self.revision
            return False
        return True

    @rule(model=models, desired=st.booleans(), by=authors)
    def register(self, model: str, desired: bool, by: Author) -> None:
        self.attempt(self.store.add_version(new(model, desired=desired), by))

    @rule(present=st.sets(numbers))
    def sync(self, present: set[int]) -> None:
        """Whatever uses what is gone loses it as well."""
        self.attempt(self.store.sync_repository([folder("b", number, "r") for number in sorted(present)]))

    @rule(model=models, number=numbers, desired=st.booleans(), by=authors)
    def deploy(self, model: str, number: int, desired: bool, by: Author) -> None:
        self.attempt(self.store.set_desired(model, number, desired, by))

    @rule(model=models, number=numbers, by=authors)
    def delete(self, model: str, number: int, by: Author) -> None:
        self.attempt(self.store.delete_version(model, number, by))

    @rule(model=models, alias=aliases, number=st.none() | numbers, by=authors)
    def name(self, model: str, alias: str, number: int | None, by: Author) -> None:
        self.attempt(self.store.set_alias(model, alias, number, by))

    @rule(model=models, traffic=st.none() | splits, expected=st.sampled_from([None, None, None, 0, 1, 2]), by=authors)
    def split(self, model: str, traffic: Traffic | None, expected: int | None, by: Author) -> None:
        before = self.histories.get(model, [])
        if self.attempt(self.store.set_traffic(model, traffic, expected, by)):
            assert expected in (None, len(before)), "it was made for another revision"

    @rule(model=models, to=st.none() | st.integers(0, 6), by=authors)
    def roll_back(self, model: str, to: int | None, by: Author) -> None:
        before = self.histories.get(model, [])
        if self.attempt(self.store.roll_back(model, to, by=by)) and before:
            target = len(before) - 1 if to is None else to
            newest = self.run(self.store.traffic_history(model, 1))[0]
            assert newest.traffic == (before[target - 1].traffic if target else None)

    @invariant()
    def what_is_shared_exists_and_ought_to_run(self) -> None:
        for model in self.run(self.store.models()):
            existing = {version.number for version in model.versions}
            assert set(model.aliases.values()) <= existing
            traffic = model.traffic.traffic if model.traffic else None
            if traffic is not None:
                assert traffic.versions() <= existing
                assert traffic.versions() <= {version.number for version in model.versions if version.desired} | (
                    folder_numbers(model)
                ), "a repository decides by itself what it has to run"
                assert traffic.cohorts[-1].until == SPACE
                assert {cohort.version for cohort in traffic.cohorts} == {a.version for a in traffic.arms if a.weight}

    @invariant()
    def history_only_grows(self) -> None:
        for model in self.run(self.store.models()):
            history = self.run(self.store.traffic_history(model.name, 1000))[::-1]
            known = self.histories.get(model.name, [])
            assert history[: len(known)] == known
            assert [revision.revision for revision in history] == list(range(1, len(history) + 1))
            assert model.traffic == (history[-1] if history else None)
            self.histories[model.name] = history

    @invariant()
    def every_change_is_in_the_log(self) -> None:
        log = self.run(self.store.audit(10_000))[::-1]
        assert log[: len(self.log)] == self.log
        revision = self.run(self.store.revision())
        assert (len(log) > len(self.log)) == (revision > self.revision)
        routes = [entry for entry in log if entry.action == "traffic.set"]
        assert len(routes) >= sum(len(history) for history in self.histories.values())
        self.log, self.revision = log, revision


def folder_numbers(model: Model) -> set[int]:
    return {version.number for version in model.versions if version.source == "repository"}


def test_any_sequence_of_changes_keeps_what_has_to_hold(tmp_path: Path) -> None:
    run_machine(TrafficMachine, tmp_path, max_examples=20, stateful_step_count=25, deadline=None)
