"""What every model store keeps to: API keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from registry.audit import Author
from registry.errors import KeyNotFound
from registry.keys import NewKey, Role, digest_of, make
from registry.store import ModelStore

ANNA = Author("anna")


async def test_a_key_is_kept_without_its_secret(store: ModelStore) -> None:
    id, key, digest = make()
    expires = datetime.now(UTC) + timedelta(days=1)
    added = await store.add_key(NewKey(id, digest, Role.OPERATOR, "acme", "for ci", expires), by=ANNA)
    assert (added.id, added.role, added.tenant, added.note) == (id, Role.OPERATOR, "acme", "for ci")
    assert (added.created_by, added.expires_at, added.revoked_at) == ("anna", expires, None)
    assert added.digest == digest_of(key)
    assert key.rpartition("_")[2] not in repr(added)
    assert await store.keys() == [added]
    (entry,) = await store.audit()
    assert (entry.action, entry.subject, entry.actor) == ("key.create", f"key/{id}", "anna")
    assert digest not in repr(entry)


async def test_a_key_is_revoked_once_and_stays_in_the_list(store: ModelStore) -> None:
    added = []
    for _ in range(3):
        id, _, digest = make()
        added.append(await store.add_key(NewKey(id, digest, Role.INFER)))
    revoked = await store.revoke_key(added[1].id, by=ANNA)
    assert revoked.revoked_at is not None
    before = await store.revision()
    assert await store.revoke_key(added[1].id) == revoked
    assert await store.revision() == before
    assert [key.id for key in await store.keys()] == [key.id for key in added]
    assert [key.is_valid(datetime.now(UTC)) for key in await store.keys()] == [True, False, True]
    assert [entry.action for entry in await store.audit(subject=f"key/{added[1].id}")] == ["key.revoke", "key.create"]


async def test_a_key_that_is_not_there_cannot_be_revoked(store: ModelStore) -> None:
    with pytest.raises(KeyNotFound, match="key list"):
        await store.revoke_key("nobody")


async def test_a_key_has_an_end(store: ModelStore) -> None:
    id, _, digest = make()
    now = datetime.now(UTC)
    key = await store.add_key(NewKey(id, digest, Role.INFER, expires_at=now))
    assert not key.is_valid(now)
    assert key.is_valid(now - timedelta(seconds=1))


def test_a_role_may_what_those_before_it_may() -> None:
    assert [[role.may(needed) for needed in Role] for role in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_no_two_keys_are_alike() -> None:
    made = [make() for _ in range(100)]
    assert len({key for _, key, _ in made}) == 100
    assert all(key.startswith(f"tg_{id}_") and digest == digest_of(key) for id, key, digest in made)
