"""A model repository on disk: what is offered, and what is said of what cannot be served."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lifecycle.repository import framework_of_artifact, scan, version_number
from gateway.settings.errors import ConfigurationError
from registry.artifacts import resolve
from registry.record import NewVersion, Source
from support import onnx_models
from support.repository import add_echo, add_onnx


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def put(path: Path, content: str = "") -> Path:
    """A file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def the_problem(repository: Path) -> str:
    """The only problem, when nothing can be served."""
    result = scan(repository)
    assert result.versions == []
    (problem,) = result.problems
    return f"{problem.label}: {problem.reason}"


def numbers(repository: Path) -> list[tuple[str, int | None]]:
    """What is offered."""
    result = scan(repository)
    assert result.problems == []
    return [(version.model, version.number) for version in result.versions]


def test_a_model_file_in_a_version_folder_is_all_that_a_model_needs(repository: Path) -> None:
    folder = add_onnx(repository, "adder", onnx_models.add_one())
    artifact = resolve(str(folder))
    assert scan(repository).versions == [
        NewVersion(
            model="adder",
            framework="onnx",
            artifact=str(folder),
            path=str(folder / "model.onnx"),
            digest=artifact.digest,
            size_bytes=artifact.size_bytes,
            number=1,
            source=Source.REPOSITORY,
        )
    ]


def test_files_beside_the_model_are_part_of_the_content(repository: Path) -> None:
    folder = add_onnx(repository, "adder", onnx_models.add_one())
    before = scan(repository).versions[0].digest
    put(folder / "weights.bin", "1")
    assert scan(repository).versions[0].digest != before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.pbtxt", 'name: "adder" max_batch_size: 8'),
        ("config.json", '{"name": "adder", "max_batch_size": 8}'),
        ("config.toml", 'name = "adder"\nmax_batch_size = 8'),
    ],
)
def test_a_configuration_is_read_in_each_of_its_forms(repository: Path, name: str, text: str) -> None:
    add_onnx(repository, "adder", onnx_models.add_one())
    put(repository / "adder" / name, text)
    assert scan(repository).versions[0].config == {"name": "adder", "max_batch_size": 8}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [10]),
        ("version_policy { latest { num_versions: 2 } }", [2, 10]),
        ("version_policy { all {} }", [1, 2, 10]),
        ("version_policy { specific { versions: [ 1, 10, 77 ] } }", [1, 10]),
    ],
)
def test_the_version_policy_chooses_by_number_and_not_by_name(
    repository: Path, policy: str, expected: list[int]
) -> None:
    for number in (1, 2, 10):
        add_onnx(repository, "adder", onnx_models.add_one(), config=policy, version=number)
    assert numbers(repository) == [("adder", number) for number in expected]


def test_a_configured_file_name_is_taken(repository: Path) -> None:
    put(repository / "m" / "config.pbtxt", 'default_model_filename: "net.onnx"')
    put(repository / "m" / "1" / "net.onnx", "x")
    assert scan(repository).versions[0].path == str(repository / "m" / "1" / "net.onnx")


def test_the_framework_comes_from_the_configuration_if_that_names_one(repository: Path) -> None:
    add_echo(repository, "parrot")
    (version,) = scan(repository).versions
    assert (version.framework, version.path) == ("echo", str(repository / "parrot" / "1"))


@pytest.mark.parametrize("name", ["01", "0", "-1", "+1", "1.0", "v1", "१", "1 ", str(2**63)])
def test_folders_that_are_no_positive_integer_are_ignored_with_a_log_line(
    repository: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    add_onnx(repository, "adder", onnx_models.add_one(), version=3)
    put(repository / "adder" / name / "model.onnx", "x")
    with caplog.at_level(logging.INFO):
        assert numbers(repository) == [("adder", 3)]
    assert name in caplog.text


def test_files_and_hidden_folders_of_the_repository_are_no_models(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(repository / "README.md", "# models")
    put(repository / ".git" / "1" / "model.onnx", "x")
    put(repository / "adder" / "1" / "model.onnx", "x")
    put(repository / "adder" / ".cache", "x")
    with caplog.at_level(logging.INFO):
        assert numbers(repository) == [("adder", 1)]
    assert "README.md is no folder" in caplog.text


MODEL = "m/1/model.onnx"
PBTXT = "m/config.pbtxt"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({PBTXT: ""}, "m: it has no version: put the model into"),
        ({"m/01/model.onnx": "x"}, "m: it has no version (01 is no folder called 1, 2, 3, ...): put"),
        ({"m/1": "x"}, "m: it has no version (1 is no folder"),
        ({"m/1/Model.onnx": "x"}, "m:1: {root}/m/1/model.onnx is missing (it holds Model.onnx): copy the model there"),
        ({MODEL: ""}, "m:1: {root}/m/1/model.onnx is empty: the copy has not ended"),
        ({"m/1/model.onnx/": ""}, "m:1: folder {root}/m/1 has no files"),
        ({MODEL: "x", PBTXT: "nam: 1"}, "config.pbtxt:1:1: "),
        ({MODEL: "x", "m/config.json": "{"}, "config.json: not valid JSON"),
        ({MODEL: "x", "m/config.toml": "="}, "config.toml: not valid TOML"),
        ({MODEL: "x", "m/config.json": "{}", PBTXT: ""}, "config.pbtxt and config.json: keep one"),
        ({MODEL: "x", PBTXT: 'name: "n"'}, "says name 'n', the folder is called 'm'"),
        ({MODEL: "x", PBTXT: 'backend: "nix"'}, "backend 'nix' is not known; use one of"),
        ({"m/1/model.pt": "x", PBTXT: 'backend: "tensorrtllm"'}, "'trtllm' is not offered by this release"),
        ({"m/1/x.onnx": "x", PBTXT: 'backend: "onnxruntime"'}, "model.onnx is missing (it holds x.onnx)"),
        ({"m/1/x.onnx": "x", PBTXT: 'default_model_filename: "y.onnx"'}, "y.onnx is missing (it holds x.onnx)"),
        ({"m/1/x": "x", "n.onnx": "x", PBTXT: 'default_model_filename: "../../n.onnx"'}, "has to be a plain name"),
        ({MODEL: "x", PBTXT: "max_batch_size: -3"}, "max_batch_size is -3"),
        ({MODEL: "x", PBTXT: "sequence_batching {}"}, "sequence_batching is not supported yet"),
        ({" m/1/model.onnx": "x"}, "the folder's name begins or ends with white space"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_a_problem_with_its_mend(repository: Path, files: dict[str, str], said: str) -> None:
    for name, content in files.items():
        if name.endswith("/"):
            (repository / name).mkdir(parents=True)
        else:
            put(repository / name, content)
    assert said.replace("{root}", str(repository)) in the_problem(repository)


def test_a_bad_model_or_version_stops_no_other(repository: Path) -> None:
    add_onnx(repository, "a", onnx_models.add_one(), config="version_policy { all {} }")
    put(repository / "a" / "2" / "model.onnx", "")
    (repository / "b").mkdir()
    put(repository / "c" / "config.pbtxt", "}")
    add_onnx(repository, "d", onnx_models.add_one())
    result = scan(repository)
    assert [(version.model, version.number) for version in result.versions] == [("a", 1), ("d", 1)]
    assert [problem.label for problem in result.problems] == ["a:2", "b", "c"]


def test_a_link_that_leaves_the_version_folder_is_a_problem(repository: Path, tmp_path: Path) -> None:
    folder = add_onnx(repository, "m", onnx_models.add_one())
    (folder / "weights.bin").symlink_to(put(tmp_path / "elsewhere.bin", "x"))
    assert "leaves the artifact's folder" in the_problem(repository)


def test_a_model_folder_may_be_a_link(repository: Path, tmp_path: Path) -> None:
    add_onnx(tmp_path / "store", "m", onnx_models.add_one())
    (repository / "alias").symlink_to(tmp_path / "store" / "m")
    assert numbers(repository) == [("alias", 1)]


def test_an_empty_repository_offers_nothing(repository: Path) -> None:
    assert numbers(repository) == []


def test_a_repository_that_is_no_folder_is_an_error_with_its_mend(repository: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist: make it, or name another with --model-repository"):
        scan(repository / "none")
    with pytest.raises(ConfigurationError, match="is a file, and has to be a folder"):
        scan(put(repository / "file", "x"))


@given(st.integers(1, 2**63 - 2))
def test_every_positive_integer_is_a_version(number: int) -> None:
    assert version_number(str(number)) == number
    assert version_number(f"0{number}") is None


@given(st.text())
def test_a_version_number_reads_back_as_the_name_it_came_from(name: str) -> None:
    number = version_number(name)
    assert number is None or str(number) == name


def test_an_artifact_tells_its_framework_by_suffix_or_by_the_file_in_it(tmp_path: Path) -> None:
    assert framework_of_artifact(put(tmp_path / "a.onnx", "x")) == "onnx"
    assert framework_of_artifact(put(tmp_path / "A.ONNX", "x")) == "onnx"
    assert framework_of_artifact(put(tmp_path / "a.txt", "x")) is None
    assert framework_of_artifact(put(tmp_path / "e" / "a.txt", "x").parent) is None
    assert framework_of_artifact(put(tmp_path / "f" / "model.onnx", "x").parent) == "onnx"
    assert framework_of_artifact(put(tmp_path / "g" / "other.pt2", "x").parent) == "torch"
    assert framework_of_artifact(put(tmp_path / "h" / "model.safetensors", "x").parent) == "torch"
    assert framework_of_artifact(put(tmp_path / "i" / "saved_model.pb", "x").parent) == "tf"
    assert framework_of_artifact(put(tmp_path / "j" / "model.savedmodel" / "saved_model.pb", "x").parent.parent) == "tf"


def test_a_folder_with_models_of_two_frameworks_does_not_tell(tmp_path: Path) -> None:
    put(tmp_path / "a.onnx", "x")
    put(tmp_path / "b.keras", "x")
    assert framework_of_artifact(tmp_path) is None


def test_formats_without_a_name_of_triton_are_found_by_their_backend(repository: Path) -> None:
    put(repository / "m" / "1" / "net.keras", "x")
    (version,) = scan(repository).versions
    assert (version.framework, version.path) == ("tf", str(repository / "m" / "1"))
