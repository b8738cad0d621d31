"""``.tflite`` files in the TensorFlow backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from support.loading import Loading, run
from support.tf_models import build

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)

from backends.errors import InferenceFailed

FP32 = np.float32
_TF = Loading("tf")
load, refusal = _TF.load, _TF.refusal


def test_a_tflite_model_takes_any_number_of_rows(flat: Path) -> None:
    backend, signature = load(flat)
    assert {each.name: each.shape for each in signature.inputs} == {"x": (-1, 4), "z": (-1, 4)}
    assert signature.platform == "tensorflow_lite"
    for rows in (1, 5, 0, 2):
        answers = run(backend, z=np.full((rows, 4), 3, FP32), x=np.full((rows, 4), 5, FP32))
        np.testing.assert_array_equal(answers["sum"], np.full((rows, 4), 8))
        np.testing.assert_array_equal(answers["difference"], np.full((rows, 4), 2))


def test_a_tflite_model_without_signatures_has_the_names_of_its_tensors(tmp_path: Path) -> None:
    folder = build("lite", tmp_path, model="no_signature")
    backend, signature = load(folder)
    (given,), (answer,) = signature.inputs, signature.outputs
    for rows in (3, 1):
        x = np.arange(4 * rows, dtype=FP32).reshape(rows, 4)
        np.testing.assert_array_equal(run(backend, **{given.name: x})[answer.name], x + 1)
    assert "it has: none" in refusal(folder, options={"signature": "other"})


def test_a_tflite_model_takes_and_gives_strings(tmp_path: Path) -> None:
    backend, _ = load(build("lite", tmp_path, model="strings"))
    answer = run(backend, x=np.array([b"a\0b\0", "grün".encode(), b"\xff"], object))["y"]
    assert answer.tolist() == ["grün".encode(), b"a\0b\0"]


def test_a_tflite_signature_that_is_not_there_is_refused_with_those_that_are(flat: Path) -> None:
    assert "serving_default (x, z -> " in refusal(flat, options={"signature": "other"})
    load(flat, options={"signature": "serving_default"})


def test_operators_of_tensorflow_in_a_tflite_model_are_refused_with_the_mend(tmp_path: Path) -> None:
    text = refusal(build("lite", tmp_path, model="flex"))
    assert "FlexStringLower" in text
    assert "serve it as a SavedModel" in text


def test_a_failure_inside_of_a_tflite_model_does_not_spoil_the_next_request(tmp_path: Path) -> None:
    backend, _ = load(build("lite", tmp_path, model="picks"))
    for _ in range(2):
        with pytest.raises(InferenceFailed, match="litert"):
            run(backend, x=np.full((2, 4), 99, np.int32))
        np.testing.assert_array_equal(run(backend, x=np.full((1, 4), 1, np.int32))["y"], np.full((1, 4), 10))
