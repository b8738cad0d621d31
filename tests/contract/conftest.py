"""The databases on which a model store has to keep its contract."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from registry.sql import SqlModelStore
from registry.store import ModelStore
from support import tf_models
from support.postgresql import Cluster, postgresql_programs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    # not pytest's folder: another user could not reach it
    with tempfile.TemporaryDirectory(prefix="registry-pg-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(programs, Path(folder))
        cluster.start()
        yield cluster
        cluster.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data/registry.db"
    cluster: Cluster = request.getfixturevalue("cluster")
    return await cluster.empty_database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[ModelStore]:
    opened = SqlModelStore(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="module", autouse=True)
def _no_builder_stays() -> Iterator[None]:
    yield
    tf_models.stop()


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Root may read every file: be somebody else meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
