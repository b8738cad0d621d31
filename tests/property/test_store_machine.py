"""Any sequence of changes leaves the store with what a plain dictionary would hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
)

from registry.errors import ModelNotFound, VersionConflict, VersionNotFound
from registry.record import ModelVersion, NewVersion, Source
from support.machines import OnStore, run_machine
from support.versions import SIGNATURE, new

Key = tuple[str, int]

models = st.sampled_from(["a", "b", "c"])
numbers = st.integers(1, 4)
contents = st.sampled_from("xyz")
keys = st.tuples(models, numbers)
folders = st.dictionaries(keys, st.tuples(contents, st.booleans()), max_size=4)
signatures = st.sampled_from([SIGNATURE, msgspec.structs.replace(SIGNATURE, max_batch_size=1)])


class StoreMachine(OnStore):
    """``live`` is what the store should show, ``next`` the number that a model's next version should get."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[Key, ModelVersion] = {}
        self.next: dict[str, int] = {}
        self.revision = 0

    def refused(self, error: type[Exception], work: Awaitable[object]) -> None:
        try:
            self.run(work)
        except error:
            return
        raise AssertionError(f"{error.__name__} was not raised")

    def expect_target(self, key: Key, work: Callable[[], Awaitable[object]]) -> ModelVersion | None:
        """The version under ``key``; where there is none, ``work`` is refused as it should be."""
        if key not in self.live:
            others = [number for model, number in self.live if model == key[0]]
            self.refused(VersionNotFound if others else ModelNotFound, work())
        return self.live.get(key)

    def put(self, version: NewVersion, number: int, created: ModelVersion) -> None:
        fields = {**msgspec.structs.asdict(version), "number": number, "created_at": created.created_at}
        self.live[version.model, number] = ModelVersion(**fields)
        self.next[version.model] = max(self.next.get(version.model, 1), number + 1)

    @rule(model=models, content=contents, desired=st.booleans())
    def register_the_next(self, model: str, content: str, desired: bool) -> None:
        version = new(model, None, content, desired=desired)
        added = self.run(self.store.add_version(version))
        self.put(version, self.next.get(model, 1), added)
        self.revision += 1

    @rule(key=keys, content=contents, desired=st.booleans())
    def register_a_number(self, key: Key, content: str, desired: bool) -> None:
        version, old = new(*key, content, desired=desired), self.live.get(key)
        if old is not None and old.digest != version.digest:
            self.refused(VersionConflict, self.store.add_version(version))
            return
        added = self.run(self.store.add_version(version))
        if old is None or old.source is Source.REPOSITORY:
            wish = desired or (old is not None and old.desired)
            signature = None if old is None else old.signature
            self.put(msgspec.structs.replace(version, desired=wish, signature=signature), key[1], added)
            self.revision += 1
        elif desired and not old.desired:
            self.live[key] = msgspec.structs.replace(old, desired=True)
            self.revision += 1

    @rule(key=keys, desired=st.booleans())
    def wish(self, key: Key, desired: bool) -> None:
        old = self.expect_target(key, lambda: self.store.set_desired(*key, desired))
        if old is not None:
            self.live[key] = msgspec.structs.replace(old, desired=desired)
            assert self.run(self.store.set_desired(*key, desired)) == self.live[key]
            self.revision += old.desired != desired

    @rule(key=keys, signature=signatures)
    def sign(self, key: Key, signature: Any) -> None:
        old = self.expect_target(key, lambda: self.store.set_signature(*key, signature))
        if old is None:
            return
        if old.signature not in (None, signature):
            self.refused(VersionConflict, self.store.set_signature(*key, signature))
            return
        self.run(self.store.set_signature(*key, signature))
        self.live[key] = msgspec.structs.replace(old, signature=signature)
        self.revision += old.signature is None

    @rule(wanted=folders)
    def mirror_a_repository(self, wanted: dict[Key, tuple[str, bool]]) -> None:
        versions = {
            key: new(*key, content, desired=desired, source=Source.REPOSITORY)
            for key, (content, desired) in wanted.items()
        }
        registered = {key: old for key, old in self.live.items() if old.source is Source.REGISTERED}
        if any(key in registered and registered[key].digest != version.digest for key, version in versions.items()):
            self.refused(VersionConflict, self.store.sync_repository(list(versions.values())))
            return
        before = dict(self.live)
        self.run(self.store.sync_repository(list(versions.values())))
        shown = {(m.name, v.number): v for m in self.run(self.store.models()) for v in m.versions}
        self.live = registered
        for key, version in versions.items():
            old = before.get(key)
            if key not in registered and old is not None and old.digest == version.digest:
                self.live[key] = msgspec.structs.replace(old, desired=version.desired)
            elif key not in registered:
                self.put(version, key[1], shown[key])
        self.revision += self.live != before

    @rule()
    def reopen(self) -> None:
        self.run(self.store.close())
        self.run(self.store.open())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def look_at_one_model(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({model for model, _ in self.live})))
        found = self.run(self.store.model(name))
        assert list(found.versions) == [self.live[key] for key in sorted(self.live) if key[0] == name]

    @invariant()
    def the_store_shows_what_it_should(self) -> None:
        shown = {
            (model.name, version.number): version
            for model in self.run(self.store.models())
            for version in model.versions
        }
        assert shown == self.live
        assert list(shown) == sorted(shown)
        assert self.run(self.store.revision()) == self.revision


def test_any_sequence_of_changes(tmp_path: Path) -> None:
    run_machine(StoreMachine, tmp_path, max_examples=15, stateful_step_count=20)
