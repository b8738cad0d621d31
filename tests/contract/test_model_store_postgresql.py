"""What only a database server can do to a store: refuse it, or end its connections."""

from __future__ import annotations

import pytest

from registry.errors import StoreError
from registry.sql import SqlModelStore
from support.postgresql import Cluster
from support.versions import new, numbers


@pytest.mark.parametrize(
    ("user", "name", "told"),
    [
        ("nobody-known", "postgres", "the user or the password is refused"),
        ("gate", "nowhere", "no such database: make it with `createdb`"),
        ("reader", "postgres", "lacks a privilege there: GRANT it"),
        ("stranger", "postgres", "has no schema to make tables in: GRANT it USAGE"),
    ],
)
async def test_a_refusal_of_the_server_comes_with_its_mend(cluster: Cluster, user: str, name: str, told: str) -> None:
    await cluster.empty_database()
    for role in ("reader", "stranger"):
        await cluster.execute(f'DROP ROLE IF EXISTS "{role}"; CREATE ROLE "{role}" LOGIN')
    await cluster.execute("GRANT USAGE ON SCHEMA public TO reader")
    store = SqlModelStore(cluster.url(user, name))
    with pytest.raises(StoreError, match=told):
        await store.open()


async def test_a_store_outlives_its_connections(cluster: Cluster) -> None:
    store = SqlModelStore(await cluster.empty_database())
    await store.open()
    await store.add_version(new())
    await cluster.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await store.add_version(new())
    assert await numbers(store) == {"resnet": [1, 2]}
    await store.close()
