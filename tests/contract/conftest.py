"""The databases on which a model store has to keep its contract, and the models that several files of tests load."""

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


# --- models, not to be changed --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel that adds one."""
    return tf_models.build("add_one", tmp_path_factory.mktemp("tf") / "plain")


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.keras`` file."""
    return tf_models.build("keras_dense", tmp_path_factory.mktemp("tf") / "keras") / "model.keras"


@pytest.fixture(scope="session")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.tflite`` file."""
    return tf_models.build("lite", tmp_path_factory.mktemp("tf") / "lite", model="add_sub") / "model.tflite"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program of torch over rows of 4: ``Linear``."""
    from support import torch_models, torch_modules

    return torch_models.rowwise(torch_modules.Linear(), 4, folder=tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="session")
def add_sub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program of torch over two inputs of rows of 4, at most 8 rows."""
    from support import torch_models, torch_modules

    folder = tmp_path_factory.mktemp("add_sub")
    return torch_models.rowwise(torch_modules.AddSub(), 4, 4, folder=folder, largest=8)


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TorchScript file: ``Linear``."""
    from support import torch_models, torch_modules

    return torch_models.scripted(torch_modules.Linear(), tmp_path_factory.mktemp("script"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of transformers, of random weights."""
    from support import torch_models

    return torch_models.encoder(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """The file that payloads make."""
    return tmp_path / "planted"


# --- users ----------------------------------------------------------------------------------------------------------


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
