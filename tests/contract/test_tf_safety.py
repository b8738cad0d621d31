"""Graphs that reach out of the process, by files or by Python, are refused unless the operator allows it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.loading import Loading, run, tensor
from support.tf_models import build

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)


FP32 = np.float32
_TF = Loading("tf")
load, refusal = _TF.load, _TF.refusal


def texts(*rows: bytes) -> Any:
    return np.array([[row] for row in rows], object)


WRITES = ("WriteFile", "PrintV2", "SaveV2", "CreateSummaryFileWriter")
READS = ("ReadFile", "MatchingFiles", "RestoreV2")
PYTHON = ("EagerPyFunc", "PyFunc")


@pytest.mark.parametrize("how", [*WRITES, *READS, *PYTHON])
def test_an_operator_that_reaches_out_of_the_process_is_found_wherever_it_hides(tmp_path: Path, how: str) -> None:
    target = tmp_path / "target"
    text = refusal(build("reaches_out", tmp_path / "model", how=how, target=str(target)))
    assert f"operator {how}" in text
    assert ("Python" if how in PYTHON else "writes files" if how in WRITES else "reads files") in text
    assert ("allow_code" in text) == (how not in PYTHON)
    assert not list(tmp_path.glob("target*"))


@pytest.mark.parametrize("how", ["WriteFile", "PrintV2"])
def test_what_the_operator_has_allowed_is_run(tmp_path: Path, how: str) -> None:
    """So that the test above fails if the file would not come to be anyway."""
    target = tmp_path / "target"
    folder = build("reaches_out", tmp_path / "model", how=how, target=str(target))
    backend, _ = load(folder, options={"allow_code": "true"})
    assert not target.exists()
    np.testing.assert_array_equal(run(backend, x=np.ones((1, 1), FP32))["y"], [[1]])
    assert target.exists()


@pytest.mark.parametrize("how", PYTHON)
def test_python_is_never_allowed(tmp_path: Path, how: str) -> None:
    target = tmp_path / "target"
    folder = build("reaches_out", tmp_path / "model", how=how, target=str(target))
    assert "calls Python" in refusal(folder, options={"allow_code": "true"})
    assert not target.exists()


def test_a_file_that_would_be_written_while_loading_is_not(tmp_path: Path) -> None:
    target = tmp_path / "target"
    folder = build("writes_while_loading", tmp_path / "model", target=str(target))
    assert "operator WriteFile (node" in refusal(folder)
    assert not target.exists()
    load(folder, options={"allow_code": "true"})
    assert target.read_text() == "written"


def test_an_operator_that_is_reached_through_a_functions_double_is_found(tmp_path: Path) -> None:
    """TensorFlow may run another function in a function's place, if both say that they implement the same."""
    target = tmp_path / "target"
    text = refusal(build("doubles", tmp_path / "model", target=str(target)))
    assert "SaveV2, which writes files, for every request" in text


def test_words_in_a_file_of_the_model_are_read(tmp_path: Path) -> None:
    backend, signature = load(build("vocabulary", tmp_path / "model"))
    (tmp_path / "model-words.txt").unlink()
    assert signature.outputs == tensor("y", "INT64", -1, 1)
    np.testing.assert_array_equal(run(backend, x=texts(b"blue", b"pink", b"red"))["y"], [[2], [-1], [0]])


def test_a_file_of_words_outside_of_the_model_is_refused_and_so_is_a_missing_one(tmp_path: Path) -> None:
    folder = build("vocabulary", tmp_path / "model")
    graph = folder / "saved_model.pb"
    content = graph.read_bytes()
    name, elsewhere = b"model-words.txt", b"../../words.txt"
    assert name in content
    shutil.move(tmp_path / "model-words.txt", tmp_path / "words.txt")
    graph.write_bytes(content.replace(name, elsewhere))
    assert "'../../words.txt' lies outside" in refusal(folder)
    graph.write_bytes(content)
    (folder / "assets" / "model-words.txt").unlink()
    assert "'model-words.txt' does not exist" in refusal(folder)
