"""The control plane over a real registry; the manager loads nothing, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.errors import LoadFailed
from backends.spec import ModelSpec, Signature, TensorSpec
from gateway import errors
from gateway.lifecycle.catalog import Catalog
from gateway.lifecycle.manager import Manager
from gateway.lifecycle.state import VersionState, VersionStatus
from gateway.serving.controlplane import ECHO, LOADED, UNLOADED, ControlPlane
from gateway.settings.errors import ConfigurationError
from gateway.workers.replica import WorkerLimits
from registry.record import Source
from registry.sql import SqlModelStore
from support.repository import add_echo

SIGNATURE = Signature("echo", (TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))


class QuietManager(Manager):
    """Every version is in the state that the test has set; a probe succeeds unless the test says why not."""

    def __init__(self, store: SqlModelStore) -> None:
        super().__init__(store, Catalog(), WorkerLimits(), {}, max_waiting=1)
        self.pokes = 0
        self.probed: list[ModelSpec] = []
        self.retried: list[tuple[str, int]] = []
        self.refuses = ""
        self.states: list[VersionState] = []  # what `wait_settled` says, one after the other

    async def probe(self, spec: ModelSpec) -> Signature:
        self.probed.append(spec)
        if self.refuses:
            raise LoadFailed(self.refuses)
        return SIGNATURE

    def poke(self) -> None:
        self.pokes += 1

    def retry(self, model: str, number: int) -> None:
        self.retried.append((model, number))
        self.poke()

    def status(self, model: str, number: int) -> VersionStatus:
        return VersionStatus(model, number, VersionState.LOADING, "on its way")

    async def wait_settled(self, model: str, number: int, timeout_s: float) -> VersionStatus:
        return VersionStatus(model, number, self.states.pop(0), "")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlModelStore]:
    opened = SqlModelStore(f"sqlite:///{tmp_path}/registry.db")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def manager(store: SqlModelStore) -> QuietManager:
    return QuietManager(store)


@pytest.fixture
def plane(store: SqlModelStore, manager: QuietManager) -> ControlPlane:
    return ControlPlane(store, manager)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"weights")
    return path


async def test_registering_probes_stores_and_pokes(
    plane: ControlPlane, manager: QuietManager, model_file: Path
) -> None:
    added = await plane.register("m", str(model_file), config={"max_batch_size": 4})
    assert (added.model, added.number, added.framework, added.desired) == ("m", 1, "onnx", True)
    assert (added.source, added.signature, added.config) == (Source.REGISTERED, SIGNATURE, {"max_batch_size": 4})
    (spec,) = manager.probed
    assert (spec.name, spec.version, spec.path, spec.max_batch_size) == ("m", 1, str(model_file), 4)
    assert manager.pokes == 1
    info = await plane.version("m", 1)
    assert (info.digest, info.state, info.reason) == (added.digest, VersionState.LOADING, "on its way")
    assert [model.name for model in await plane.list_models()] == ["m"]
    assert (await plane.show("m")).versions == (info,)


async def test_without_a_number_the_next_one_is_taken_and_probed(plane: ControlPlane, manager: QuietManager) -> None:
    for number in (5, None):
        await plane.register("m", ECHO, number=number)
    assert [spec.version for spec in manager.probed] == [5, 6]
    assert [version.number for version in (await plane.show("m")).versions] == [5, 6]


async def test_a_version_that_is_not_deployed_is_only_kept(plane: ControlPlane) -> None:
    assert not (await plane.register("m", ECHO, deploy=False)).desired


async def test_the_same_content_under_the_same_number_is_answered_without_a_probe(
    plane: ControlPlane, manager: QuietManager, model_file: Path
) -> None:
    first = await plane.register("m", str(model_file), number=3)
    assert await plane.register("m", str(model_file), number=3) == first
    assert len(manager.probed) == 1


async def test_other_content_under_a_number_that_is_taken_is_a_conflict(
    plane: ControlPlane, manager: QuietManager, model_file: Path
) -> None:
    await plane.register("m", ECHO, number=3)
    with pytest.raises(errors.Conflict, match="version 3 of model 'm' exists and differs: the artifact is echo:"):
        await plane.register("m", str(model_file), number=3)
    with pytest.raises(errors.Conflict, match=r"differs: config\.max_batch_size is unset there and 2 here\. "):
        await plane.register("m", ECHO, number=3, config={"max_batch_size": 2})
    assert len(manager.probed) == 1


async def test_an_artifact_that_cannot_be_loaded_is_refused_and_nothing_is_kept(
    plane: ControlPlane, manager: QuietManager, model_file: Path
) -> None:
    manager.refuses = "it is no ONNX model"
    with pytest.raises(errors.InvalidRequest, match="cannot be served: it is no ONNX model"):
        await plane.register("m", str(model_file))
    assert await plane.list_models() == []
    assert manager.pokes == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "a/b"}, "separates the parts of a path"),
        ({"name": ""}, "is empty"),
        ({"number": 0}, "numbers go from 1"),
        ({"artifact": "/nowhere/model.onnx"}, "/nowhere/model.onnx does not exist"),
        ({"artifact": "pkg://no_such_package/x"}, "no package 'no_such_package' is installed"),
        ({"artifact": "s3://bucket/x"}, "scheme 's3' is not supported"),
        (
            {"artifact": __file__},
            "its framework cannot be told from its name; give framework, one of onnx, torch, tf",
        ),
        (
            {"artifact": __file__, "framework": "tensorflow"},
            "framework 'tensorflow' is not known; one of echo, onnx, torch, tf is",
        ),
        ({"artifact": ECHO, "framework": "onnx"}, "the artifact 'echo:' is for the framework echo only"),
        ({"artifact": ECHO, "config": {"backend": "pytorch"}}, "the artifact 'echo:' is for the framework echo only"),
        ({"artifact": __file__, "framework": "echo"}, "the framework echo runs no artifact and would ignore it; give"),
        ({"artifact": __file__, "config": {"backend": "echo"}}, "the framework that runs this one, one of onnx, torch"),
        ({"artifact": "/nowhere", "framework": "echo"}, "artifact '/nowhere': the framework echo runs no artifact"),
        ({"config": {"max_batch": 1}}, "max_batch"),
        ({"config": {"max_batch_size": -1}}, "max_batch_size is -1"),
        ({"config": {"name": "other"}}, "name is 'other', the model is called 'm'"),
        ({"config": {"backend": "onnxruntime"}, "framework": "echo"}, "make them equal or leave it out"),
    ],
)
async def test_a_bad_registration_is_the_clients_fault_and_the_text_says_what(
    plane: ControlPlane, manager: QuietManager, arguments: dict[str, object], said: str
) -> None:
    given: dict[str, object] = {"name": "m", "artifact": ECHO} | arguments
    with pytest.raises(errors.InvalidRequest) as caught:
        await plane.register(**given)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert manager.probed == []
    assert await plane.list_models() == []


async def test_the_configuration_may_name_the_framework(plane: ControlPlane) -> None:
    added = await plane.register("m", __file__, config={"backend": "onnxruntime"})
    assert added.framework == "onnx"


async def test_loading_and_unloading_change_what_is_wanted(plane: ControlPlane, manager: QuietManager) -> None:
    await plane.register("m", ECHO)
    assert not (await plane.unload("m", 1)).desired
    assert (await plane.load("m", 1)).desired
    assert manager.retried == [("m", 1)]
    assert manager.pokes == 3


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ([VersionState.READY], LOADED),
        ([VersionState.UNLOADED, VersionState.FAILED], LOADED),
        ([VersionState.READY, VersionState.READY, VersionState.UNLOADED], UNLOADED),
    ],
)
async def test_waiting_ends_with_the_state_that_was_asked_for_and_with_no_other(
    plane: ControlPlane, manager: QuietManager, states: list[VersionState], wanted: frozenset[VersionState]
) -> None:
    await plane.register("m", ECHO)
    manager.states = list(states)
    await plane.wait("m", 1, wanted, 60.0)
    assert manager.states == []


async def test_what_does_not_exist_is_not_found(plane: ControlPlane) -> None:
    await plane.register("m", ECHO)
    for call in (
        plane.show("x"),
        plane.version("x", 1),
        plane.version("m", 2),
        plane.load("m", 2),
        plane.unload("x", 1),
    ):
        with pytest.raises(errors.NotFound):
            await call
    with pytest.raises(errors.NotFound, match="no worker 'w'"):
        await plane.restart_worker("w")
    assert plane.workers() == []


async def test_a_registry_that_cannot_be_used_is_unavailable(plane: ControlPlane, store: SqlModelStore) -> None:
    await store.close()
    with pytest.raises(errors.Unavailable):
        await plane.list_models()


async def test_repositories_come_and_go_with_their_folders(
    plane: ControlPlane, manager: QuietManager, tmp_path: Path
) -> None:
    add_echo(tmp_path / "one", "a")
    add_echo(tmp_path / "two", "b")
    (tmp_path / "two" / "c").mkdir()
    problems = await plane.sync_repositories([tmp_path / "one", tmp_path / "two"])
    assert [model.name for model in await plane.list_models()] == ["a", "b"]
    assert [problem.name for problem in problems] == ["c"]
    assert plane.problems == problems
    await plane.sync_repositories([])
    assert await plane.list_models() == []
    assert plane.problems == ()
    assert manager.pokes == 2


async def test_a_version_that_exists_already_stays_and_the_rest_is_served(plane: ControlPlane, tmp_path: Path) -> None:
    await plane.register("taken", ECHO)
    for repository in ("one", "two"):
        add_echo(tmp_path / repository, "twice")
    for model in ("taken", "free"):
        add_echo(tmp_path / "one", model)
    problems = await plane.sync_repositories([tmp_path / "one", tmp_path / "two"])
    found = {model.name: model.versions[0] for model in await plane.list_models()}
    assert sorted(found) == ["free", "taken", "twice"]
    assert found["taken"].artifact == ECHO
    assert found["twice"].artifact == str(tmp_path / "one" / "twice" / "1")
    reasons = {problem.name: problem.reason for problem in problems}
    taken = reasons.pop("taken")
    assert taken.startswith(
        f"{tmp_path}/one/taken/1 differs from the version registered under this number (the artifact"
    )
    assert 'config.backend is unset there and "echo" here' in taken
    assert taken.endswith("): rename its folder to a free number")
    assert reasons == {
        "twice": f"{tmp_path}/one/twice/1 has this version already: "
        f"rename the model or the version's folder in {tmp_path}/two/twice/1",
    }


async def test_a_repository_that_is_missing_is_an_error_and_changes_nothing(
    plane: ControlPlane, tmp_path: Path
) -> None:
    add_echo(tmp_path / "one", "a")
    await plane.sync_repositories([tmp_path / "one"])
    with pytest.raises(ConfigurationError):
        await plane.sync_repositories([tmp_path / "none"])
    assert [model.name for model in await plane.list_models()] == ["a"]
