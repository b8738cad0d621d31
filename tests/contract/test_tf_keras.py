"""``.keras`` files in the TensorFlow backend, and the code that may hide in them."""

from __future__ import annotations

import gc
import importlib.util
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import tf_models
from support.loading import Loading, run, tensor
from support.tf_models import build

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)

from backends.tf import archive

FP32 = np.float32
_TF = Loading("tf")
load, refusal = _TF.load, _TF.refusal


def texts(*rows: bytes) -> Any:
    return np.array([[row] for row in rows], object)


def test_a_lambda_layer_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    target = tmp_path / "target"
    text = refusal(build("keras_lambda", tmp_path / "model", target=str(target)))
    assert "Lambda layer (named 'evil')" in text
    assert "model.export" in text
    assert not target.exists()


def test_a_layer_of_somebodys_own_is_refused_by_name(tmp_path: Path) -> None:
    text = refusal(build("keras_custom", tmp_path))
    assert "'Own' (named 'special') of 'mine>Own'" in text
    assert "model.export" in text


EVIL = {
    "lambda": {"class_name": "__lambda__", "config": {"value": ["4wAA", None, None]}},
    "lambda layer": {"module": "keras.layers", "class_name": "Lambda", "config": {"function": "x"}},
    "module": {"module": "os", "class_name": "system", "config": {}, "registered_name": None},
    "function": {"module": "subprocess", "class_name": "function", "config": "run", "registered_name": "function"},
    "module of no text": {"module": ["os"], "class_name": "system", "config": {}},
    "SavedModel": {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "/elsewhere"}},
    "torch": {"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {}},
}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL.keys())
def test_code_is_found_wherever_it_hides_in_the_configuration(tmp_path: Path, packed: Path, evil: Any) -> None:
    config = json.loads(zipfile.ZipFile(packed).read("config.json"))
    config["config"]["layers"][1]["config"]["kernel_constraint"] = {"class_name": "X", "config": [{"deep": evil}]}
    config["config"]["layers"][1]["config"]["kernel_constraint"].pop("class_name")
    text = refusal(tf_models.rewritten(packed, tmp_path / "model.keras", config__json=json.dumps(config).encode()))
    assert "is not run here" in text


def test_what_training_needs_is_not_looked_at(tmp_path: Path, packed: Path) -> None:
    config = json.loads(zipfile.ZipFile(packed).read("config.json"))
    config["compile_config"] = {"loss": {"module": "mine", "class_name": "Own", "config": {}}}
    backend, _ = load(tf_models.rewritten(packed, tmp_path / "model.keras", config__json=json.dumps(config).encode()))
    np.testing.assert_allclose(run(backend, x=np.ones((1, 3), FP32))["scores"], [[2, 2, 2]], rtol=1e-2)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, packed: Path) -> None:
    bomb = tf_models.rewritten(packed, tmp_path / "model.keras", assets__bin=bytes(100 << 20))
    assert bomb.stat().st_size < 1 << 20
    text = refusal(bomb)
    assert "would unpack to" in text
    tf_models.rewritten(packed, bomb, model__weights__h5=bytes(100 << 20))
    assert "would unpack to" in refusal(bomb)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"config__json": b"{"}, "no Keras 3 model"),
        ({"config__json": b"[" * 100_000}, "no Keras 3 model"),
        ({"config__json": b"[]"}, "cannot be loaded"),
        ({"config__json": b"\xff"}, "no Keras 3 model"),
        ({"model__weights__h5": b"no weights"}, "cannot be loaded"),
        ({"model__weights__h5": b""}, "cannot be loaded"),
        ({"../evil": b""}, "leads out of it"),
        ({"metadata__json": b"7"}, ""),
    ],
)
def test_an_archive_with_rubbish_in_it_is_refused(
    tmp_path: Path, packed: Path, members: dict[str, bytes], words: str
) -> None:
    file = tf_models.rewritten(packed, tmp_path / "model.keras", **members)
    if words:
        assert words in refusal(file)
    else:
        load(file)


def test_an_archive_without_a_configuration_or_weights_is_refused(tmp_path: Path, packed: Path) -> None:
    for left_out in ("config.json", "model.weights.h5"):
        content = io.BytesIO()
        with zipfile.ZipFile(packed) as source, zipfile.ZipFile(content, "w") as copy:
            for name in source.namelist():
                if name != left_out:
                    copy.writestr(name, source.read(name))
        (tmp_path / "model.keras").write_bytes(content.getvalue())
        assert left_out in refusal(tmp_path)


def test_a_failure_of_keras_names_both_versions(tmp_path: Path, packed: Path) -> None:
    assert archive.check(packed)
    config = json.loads(zipfile.ZipFile(packed).read("config.json"))
    config["config"]["layers"][1]["class_name"] = "LayerOfTheFuture"
    config["config"]["layers"][1]["registered_name"] = None
    file = tf_models.rewritten(
        packed, tmp_path / "model.keras",
        config__json=json.dumps(config).encode(), metadata__json=b'{"keras_version": "99.1"}',
    )  # fmt: skip
    text = refusal(file)
    assert "saved with Keras 99.1, this is" in text
    assert "LayerOfTheFuture" in text


def test_a_keras_model_answers_as_in_inference_and_not_as_in_training(packed: Path) -> None:
    backend, signature = load(packed)
    assert signature.inputs == tensor("x", "FP32", -1, 3)
    assert signature.outputs == tensor("scores", "FP32", -1, 3)
    assert signature.platform == "tensorflow_keras"
    alone = run(backend, x=np.array([[1, 2, 3]], FP32))["scores"]
    np.testing.assert_allclose(alone, [[2, 4, 6]], rtol=1e-2)
    together = run(backend, x=np.array([[9, 9, 9], [1, 2, 3]], FP32))["scores"]
    np.testing.assert_allclose(together[1:], alone, rtol=1e-6)


@pytest.mark.parametrize("outputs", ["dictionary", "list"])
def test_a_keras_model_of_several_inputs_and_outputs_does_not_mix_them_up(tmp_path: Path, outputs: str) -> None:
    backend, signature = load(build("keras_nested", tmp_path, outputs=outputs))
    assert {each.name for each in signature.inputs} == {"left", "right"}
    names = {"dictionary": ("sum", "difference"), "list": ("plus", "minus")}[outputs]
    answers = run(backend, right=np.full((2, 3), 3, FP32), left=np.full((2, 3), 5, FP32))
    assert (answers[names[0]] == 8).all()
    assert (answers[names[1]] == 2).all()
    declared = tensor(names[1], "FP32", -1, -1)
    backend, _ = load(tmp_path, outputs=declared)
    answers = run(backend, right=np.full((2, 3), 3, FP32), left=np.full((2, 3), 5, FP32))
    assert answers.keys() == {names[1]}
    assert (answers[names[1]] == 2).all()


def test_outputs_of_one_layer_get_names_of_their_own(tmp_path: Path) -> None:
    _, signature = load(build("keras_states", tmp_path))
    assert [each.name for each in signature.outputs] == ["lstm", "lstm_1", "lstm_2"]


def test_a_keras_model_takes_strings(tmp_path: Path) -> None:
    backend, signature = load(build("keras_words", tmp_path))
    assert signature.inputs == tensor("words", "BYTES", -1, 1)
    np.testing.assert_array_equal(run(backend, words=texts(b"green", b"\xff\0", b"red"))["places"], [[2], [0], [1]])


def test_a_keras_model_gives_strings(tmp_path: Path) -> None:
    backend, _ = load(build("keras_spoken", tmp_path))
    answer = run(backend, places=np.array([[2], [0], [1]]))["words"]
    assert answer.tolist() == [[b"green"], [b"[UNK]"], [b"red"]]


def test_a_keras_model_keeps_its_variables(packed: Path) -> None:
    backend, _ = load(packed)
    gc.collect()
    np.testing.assert_allclose(run(backend, x=np.array([[1, 2, 3]], FP32))["scores"], [[2, 4, 6]], rtol=1e-2)


def test_keras_models_with_sparse_or_unknown_inputs_are_refused(tmp_path: Path) -> None:
    assert "input 'x' is a sparse or ragged" in refusal(build("keras_sparse", tmp_path / "sparse"))
    assert "does not say what its inputs are" in refusal(build("keras_unbuilt", tmp_path / "unbuilt"))


def test_the_export_of_a_keras_model_is_served_too(tmp_path: Path) -> None:
    backend, signature = load(build("keras_exported", tmp_path / "model"))
    assert signature.inputs == tensor("x", "FP32", -1, 3)
    np.testing.assert_array_equal(run(backend, x=np.ones((1, 3), FP32))["output_0"], [[2, 2, 2]])
    assert load(tmp_path / "model", options={"signature": "serve"})[1].inputs == signature.inputs
