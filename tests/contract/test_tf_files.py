"""Which artifact the TensorFlow backend loads, and which it refuses."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from support.loading import Loading, run
from support.tf_models import build

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)

from backends.tf import artifact

FP32 = np.float32
_TF = Loading("tf")
load, refusal = _TF.load, _TF.refusal


def test_the_model_is_a_savedmodel_folder_or_lies_in_one(tmp_path: Path, plain: Path) -> None:
    shutil.copytree(plain, tmp_path / "triton" / "1" / "model.savedmodel")
    shutil.copytree(plain, tmp_path / "other" / "resnet")
    for path in (plain, plain / "saved_model.pb", tmp_path / "triton" / "1", tmp_path / "other"):
        backend, _ = load(path)
        np.testing.assert_array_equal(run(backend, x=np.array([[1, 2]], FP32))["y"], [[2, 3]])


def test_names_that_begin_with_model_win_over_others_and_several_candidates_are_listed(
    tmp_path: Path, plain: Path, packed: Path
) -> None:
    shutil.copytree(plain, tmp_path / "old")
    shutil.copy(packed, tmp_path / "new.keras")
    (tmp_path / "small.tflite").write_bytes(b"")
    assert "new.keras, old, small.tflite" in refusal(tmp_path)
    shutil.copytree(plain, tmp_path / "model.savedmodel")
    assert artifact.locate(tmp_path) == (tmp_path / "model.savedmodel", artifact.SAVED_MODEL)
    (tmp_path / "model.tflite").write_bytes(b"")
    assert "model.savedmodel, model.tflite" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("", "holds no model; put one there"),
        ("model.h5", "Keras' old format"),
        ("frozen.pb", "a graph without signatures"),
        ("model.savedmodel/variables/variables.index", "no saved_model.pb with it"),
        ("variables/variables.index", "no saved_model.pb with it"),
        ("saved_model.pbtxt", "a graph as text"),
    ],
)
def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path, entry: str, words: str) -> None:
    if entry:
        (tmp_path / entry).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / entry).touch()
    assert words in refusal(tmp_path)


def test_a_path_to_something_else_is_refused_with_what_is_served(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    assert ".tflite" in refusal(tmp_path / "model.onnx")
    assert "does not exist" in refusal(tmp_path / "nowhere.keras")
    (tmp_path / "model.h5").touch()
    assert "save it as .keras" in refusal(tmp_path / "model.h5")


@pytest.mark.parametrize("content", [b"", b"hello, this is no model" * 20, bytes(1000), b"PK\x03\x04"])
@pytest.mark.parametrize("name", ["saved_model.pb", "model.keras", "model.tflite"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in refusal(tmp_path)


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("kind", ["plain", "packed", "flat"])
def test_a_model_that_is_cut_short_anywhere_is_refused(
    tmp_path: Path, kind: str, part: int, request: pytest.FixtureRequest
) -> None:
    source: Path = request.getfixturevalue(kind)
    if source.is_dir():
        shutil.copytree(source, tmp_path, dirs_exist_ok=True)
        source /= "saved_model.pb"
    content = source.read_bytes()
    (tmp_path / source.name).write_bytes(content[: len(content) * part // 10 + 7])
    assert source.name in refusal(tmp_path)


@pytest.mark.parametrize("missing", ["variables.index", "variables.data-00000-of-00001", ""])
def test_a_savedmodel_without_its_variables_is_refused(tmp_path: Path, plain: Path, missing: str) -> None:
    shutil.copytree(plain, tmp_path / "model")
    if missing:
        (tmp_path / "model" / "variables" / missing).unlink()
    else:
        shutil.rmtree(tmp_path / "model" / "variables")
    text = refusal(tmp_path / "model")
    assert "variables" in text
    assert "copy the whole folder" in text


def test_variables_that_are_cut_short_are_refused(tmp_path: Path, plain: Path) -> None:
    shutil.copytree(plain, tmp_path / "model")
    data = tmp_path / "model" / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:2])
    assert "the variables of model cannot be read" in refusal(tmp_path)


def test_a_savedmodel_without_variables_needs_no_files_for_them(tmp_path: Path) -> None:
    folder = build("same_names", tmp_path / "model")
    shutil.rmtree(folder / "variables")
    backend, _ = load(folder)
    np.testing.assert_array_equal(run(backend, x=np.zeros((1, 2), FP32))["x"], [[1, 1]])


def test_an_unknown_operator_is_named_with_the_mend(tmp_path: Path, plain: Path) -> None:
    shutil.copytree(plain, tmp_path / "model")
    graph = tmp_path / "model" / "saved_model.pb"
    content = graph.read_bytes()
    assert b"AddV2" in content
    graph.write_bytes(content.replace(b"AddV2", b"AddV9"))
    text = refusal(tmp_path)
    assert "AddV9" in text
    assert "belongs to another package or to a newer TensorFlow" in text


@pytest.mark.parametrize("name", ["saved_model.pb", "model.keras", "model.tflite"])
def test_an_unreadable_file_is_refused(ordinary_user: None, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(b"x")
        (Path(folder) / name).chmod(0)
        assert "cannot be read" in refusal(Path(folder))
