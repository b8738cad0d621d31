"""What the TensorFlow backend does beyond the common contract: kinds of models, code in them, options, its errors."""

from __future__ import annotations

import gc
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tf_models import TYPE, build

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)

from backends.contract import Arrays
from backends.errors import BackendError, InferenceFailed, InvalidInput, LoadFailed, OutOfMemory
from backends.rows import split
from backends.spec import BatchingSpec, ModelSpec, Signature, TensorSpec
from backends.tensor import NUMPY_DTYPE
from backends.tf import archive, artifact, options
from backends.tf.backend import TfBackend
from backends.tf.library import failure, load_failure, text_of
from backends.tf.saved_model import session_config
from backends.tf.signature import keeps_rows_apart

FP32 = np.float32


def spec(path: Path, **fields: Any) -> ModelSpec:
    return ModelSpec("model", 1, "tf", str(path), **fields)


def load(path: Path, **fields: Any) -> tuple[TfBackend, Signature]:
    backend = TfBackend()
    return backend, backend.load(spec(path, **fields))


def refusal(path: Path, **fields: Any) -> str:
    """The text with which loading fails."""
    with pytest.raises(LoadFailed) as failure:
        TfBackend().load(spec(path, **fields))
    return str(failure.value)


def run(backend: TfBackend, **inputs: Any) -> Arrays:
    return backend.infer({name: np.asarray(array) for name, array in inputs.items()}, (), {})


def tensor(name: str, datatype: str, *shape: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec(name, datatype, shape),)


def texts(*rows: bytes) -> Any:
    return np.array([[row] for row in rows], object)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel that adds one. Not to be changed."""
    return build("add_one", tmp_path_factory.mktemp("tf") / "plain")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.keras`` file. Not to be changed."""
    return build("keras_dense", tmp_path_factory.mktemp("tf") / "keras") / "model.keras"


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.tflite`` file. Not to be changed."""
    return build("lite", tmp_path_factory.mktemp("tf") / "lite", model="add_sub") / "model.tflite"


# --- files ---------------------------------------------------------------------------------------------------------


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


# --- graphs that reach out -----------------------------------------------------------------------------------------

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


# --- .keras --------------------------------------------------------------------------------------------------------


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


def rewrite(file: Path, target: Path, **members: bytes) -> Path:
    """A copy of an archive with members replaced or added; ``__`` in a name stands for a dot."""
    replaced = {name.replace("__", "."): content for name, content in members.items()}
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for name in source.namelist():
            if name not in replaced:
                copy.writestr(name, source.read(name))
        for name, content in replaced.items():
            copy.writestr(name, content)
    return target


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
    text = refusal(rewrite(packed, tmp_path / "model.keras", config__json=json.dumps(config).encode()))
    assert "is not run here" in text


def test_what_training_needs_is_not_looked_at(tmp_path: Path, packed: Path) -> None:
    config = json.loads(zipfile.ZipFile(packed).read("config.json"))
    config["compile_config"] = {"loss": {"module": "mine", "class_name": "Own", "config": {}}}
    backend, _ = load(rewrite(packed, tmp_path / "model.keras", config__json=json.dumps(config).encode()))
    np.testing.assert_allclose(run(backend, x=np.ones((1, 3), FP32))["scores"], [[2, 2, 2]], rtol=1e-2)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, packed: Path) -> None:
    bomb = rewrite(packed, tmp_path / "model.keras", assets__bin=bytes(100 << 20))
    assert bomb.stat().st_size < 1 << 20
    text = refusal(bomb)
    assert "would unpack to" in text
    rewrite(packed, bomb, model__weights__h5=bytes(100 << 20))
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
    file = rewrite(packed, tmp_path / "model.keras", **members)
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
    file = rewrite(
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


# --- .tflite -------------------------------------------------------------------------------------------------------


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


# --- options -------------------------------------------------------------------------------------------------------

ACCEPTED = [
    ("signature", "serving_default"), ("tags", "serve"), ("intra_op_thread_count", "2"),
    ("intra_op_thread_count", "0"), ("inter_op_thread_count", "2"), ("xla", "true"), ("memory_growth", "0"),
    ("memory_limit_mb", "100"), ("allow_code", "false"), ("TF_SIGNATURE_DEF", "serving_default"),
    ("TF_GRAPH_TAG", "serve"), ("TF_NUM_INTRA_THREADS", "1"), ("TF_NUM_INTER_THREADS", "1"),
    ("TF_USE_PER_SESSION_THREADS", "1"), ("MAX_SESSION_SHARE_COUNT", "2"), ("TRITON_ANYTHING", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), ACCEPTED)
def test_documented_options_are_accepted(plain: Path, name: str, text: str) -> None:
    backend, _ = load(plain, options={name: text})
    np.testing.assert_array_equal(run(backend, x=np.array([[1, 2]], FP32))["y"], [[2, 3]])
    assert name in str(options.__doc__) or name.startswith("TRITON_")


REFUSED = [
    ("signature", ""), ("tags", "serve,,gpu"), ("intra_op_thread_count", "many"), ("intra_op_thread_count", "-1"),
    ("inter_op_thread_count", "100000"), ("xla", "maybe"), ("memory_growth", ""), ("memory_limit_mb", "2GB"),
    ("memory_limit_mb", "0"), ("allow_code", "yes"), ("TF_NUM_INTRA_THREADS", "x"), ("intra_op_num_threads", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_unknown_options_and_bad_values_are_refused_by_name(plain: Path, name: str, text: str) -> None:
    answer = refusal(plain, options={name: text})
    assert name in answer
    assert "it takes" in answer


def test_options_of_another_kind_of_model_are_refused_by_name(packed: Path, flat: Path) -> None:
    assert "option tags is for SavedModel" in refusal(packed, options={"tags": "serve"})
    assert "option xla is for SavedModel and .keras" in refusal(flat, options={"xla": "true"})
    assert "option TF_SIGNATURE_DEF is for" in refusal(packed, options={"TF_SIGNATURE_DEF": "serve"})


def test_the_cores_are_shared_between_the_instances() -> None:
    def threads(instances: int, cores: int, **given: str) -> tuple[int, int]:
        parsed = options.parse(spec(Path(), instances=instances, options=given), cores)
        return parsed.intra_op_threads, parsed.inter_op_threads

    assert threads(1, 8) == (8, 0)
    assert threads(3, 8) == (2, 0)
    assert threads(16, 8) == (1, 0)
    assert threads(2, 8, intra_op_thread_count="5", inter_op_thread_count="3") == (5, 3)


def test_a_gpu_that_is_not_there_is_refused_with_the_mend(plain: Path, flat: Path) -> None:
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    assert "nvidia-smi" in refusal(plain, device="cuda:0")
    assert "run on the CPU" in refusal(flat, device="cuda")
    assert "device is 'tpu'" in refusal(plain, device="tpu")


def test_the_memory_of_a_gpu_is_taken_as_the_options_say() -> None:
    import tensorflow as tf

    def config(device: str, **given: str) -> Any:
        return session_config(tf, options.parse(spec(Path(), device=device, options=given), 1))

    assert config("cpu").device_count == {"GPU": 0}
    assert config("cuda:3").gpu_options.allow_growth
    assert not config("cuda", memory_growth="false").gpu_options.allow_growth
    limited = config("cuda:0", memory_limit_mb="512").gpu_options
    assert [list(each.memory_limit_mb) for each in limited.experimental.virtual_devices] == [[512]]


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_model_compiled_with_xla_answers_the_same_for_every_shape(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    (compiled, _), (usual, _) = load(path, options={"xla": "true"}), load(path)
    for rows in (1, 4, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(FP32)
        for output, expected in run(usual, x=x).items():
            np.testing.assert_allclose(run(compiled, x=x)[output], expected, rtol=1e-5)


def test_a_model_that_xla_cannot_compile_is_refused(tmp_path: Path) -> None:
    assert "XLA takes no BYTES, as tensor" in refusal(build("join_strings", tmp_path / "a"), options={"xla": "true"})
    assert "calls no function" in refusal(build("first_versions", tmp_path / "c"), options={"xla": "true"})
    assert "cannot be compiled" in refusal(build("spells", tmp_path / "b"), options={"xla": "true"})


def test_the_runtime_tells_the_version(plain: Path, packed: Path, flat: Path) -> None:
    import tensorflow as tf

    assert load(plain)[0].runtime == f"tensorflow {tf.__version__}"
    assert f"(tensorflow {tf.__version__})" in load(packed)[0].runtime
    assert "lite" in load(flat)[0].runtime


# --- signature -----------------------------------------------------------------------------------------------------


def test_the_signature_to_serve_is_chosen_by_option(tmp_path: Path) -> None:
    folder = build("signatures", tmp_path / "model", names=["first", "second"])
    text = refusal(folder)
    assert "no signature 'serving_default'" in text
    assert "first (first_in -> first_out); second (second_in -> second_out)" in text
    assert "'third'" in refusal(folder, options={"signature": "third"})
    for number, name in enumerate(("first", "second"), 1):
        backend, signature = load(folder, options={"signature": name})
        assert signature.inputs == tensor(f"{name}_in", "FP32", -1, -1)
        np.testing.assert_array_equal(run(backend, **{f"{name}_in": np.zeros((1, 1), FP32)})[f"{name}_out"], [[number]])


def test_the_only_signature_needs_no_option(tmp_path: Path) -> None:
    assert load(build("signatures", tmp_path / "model", names=["only"]))[1].inputs[0].name == "only_in"


def test_a_savedmodel_without_signatures_is_refused_with_the_mend(tmp_path: Path) -> None:
    assert "signatures=..." in refusal(build("signatures", tmp_path / "model", names=[]))


def test_a_model_of_tensorflow_1_is_served(tmp_path: Path) -> None:
    backend, signature = load(build("first_versions", tmp_path / "model"))
    assert signature.inputs == tensor("x", "FP32", -1, 4)
    np.testing.assert_array_equal(run(backend, x=np.ones((1, 4), FP32))["y"], [[1, 2, 3, 4]])


def test_the_graph_to_serve_is_chosen_by_its_tags(tmp_path: Path) -> None:
    folder = build("first_versions", tmp_path / "model", tags=["serve", "gpu"])
    load(folder)
    load(folder, options={"tags": "gpu, serve"})
    assert "it has: gpu,serve" in refusal(folder, options={"tags": "tpu"})


def test_inputs_and_outputs_keep_their_order_and_may_share_a_name(tmp_path: Path) -> None:
    folder = build("identities", tmp_path / "all", datatypes=list(TYPE))
    orders = {tuple(each.name for each in load(folder)[1].inputs) for _ in range(3)}
    assert len(orders) == 1
    backend, signature = load(build("same_names", tmp_path / "same"))
    assert (signature.inputs, signature.outputs) == (tensor("x", "FP32", -1, -1), tensor("x", "FP32", -1, -1))
    np.testing.assert_array_equal(run(backend, x=np.ones((1, 1), FP32))["x"], [[2]])


@pytest.mark.parametrize("where", ["output", "sparse"])
def test_ragged_and_sparse_outputs_are_refused_by_name(tmp_path: Path, where: str) -> None:
    text = refusal(build("ragged", tmp_path / "model", where=where))
    assert "output 'y' is a sparse or ragged tensor" in text
    assert "to_dense" in text


def test_a_ragged_input_comes_as_its_parts_which_do_not_batch(tmp_path: Path) -> None:
    """TensorFlow exports it so: the values, and where the rows begin and end."""
    backend, signature = load(build("ragged", tmp_path / "model", where="input"))
    assert signature.inputs == (TensorSpec("x", "INT32", (-1,)), TensorSpec("x_1", "INT64", (-1,)))
    assert signature.max_batch_size == 0
    answer = run(backend, x=np.array([1, 2, 3], np.int32), x_1=np.array([0, 1, 3]))["y"]
    np.testing.assert_array_equal(answer, [[1, 0], [2, 3]])


def test_a_type_that_the_protocol_lacks_is_refused(tmp_path: Path) -> None:
    assert "output 'y' is of type complex64" in refusal(build("complex_numbers", tmp_path / "model"))


def test_declared_tensors_narrow_the_models(tmp_path: Path, plain: Path) -> None:
    folder = build("add_sub", tmp_path / "model")
    backend, signature = load(folder, outputs=tensor("OUTPUT1", "INT32", -1, -1))
    assert signature.outputs == tensor("OUTPUT1", "INT32", -1, 16)
    ones = np.ones((2, 16), np.int32)
    assert run(backend, INPUT0=ones, INPUT1=ones).keys() == {"OUTPUT1"}
    backend, signature = load(plain, inputs=tensor("x", "FP32", -1, 8))
    assert signature.inputs == tensor("x", "FP32", -1, 8)
    with pytest.raises(InvalidInput, match=r"\[1, 9\]"):
        run(backend, x=np.zeros((1, 9), FP32))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": tensor("z", "FP32", -1, -1)}, ["input 'z'", "'x'"]),
        ({"outputs": tensor("z", "FP32", -1, -1)}, ["output 'z'", "'y'"]),
        ({"inputs": tensor("x", "INT32", -1, -1)}, ["'x'", "INT32", "FP32"]),
        ({"inputs": tensor("x", "FP32", -1)}, ["'x'", "[-1]", "[-1, 16]"]),
        ({"outputs": tensor("y", "FP32", -1, 15)}, ["'y'", "[-1, 15]", "[-1, 16]"]),
    ],
)
def test_declarations_that_contradict_the_model_are_refused(
    tmp_path: Path, fields: dict[str, Any], words: list[str]
) -> None:
    text = refusal(build("add_one", tmp_path / "model", shape=[None, 16]), **fields)
    assert all(word in text for word in words), text


def test_an_input_cannot_be_left_out_of_the_declaration(tmp_path: Path) -> None:
    folder = build("add_sub", tmp_path / "model")
    assert "'INPUT1'" in refusal(folder, inputs=tensor("INPUT0", "INT32", -1, 16))


def test_an_input_of_unknown_rank_has_to_be_declared(tmp_path: Path) -> None:
    folder = build("add_one", tmp_path / "model", shape=None)
    assert "declare" in refusal(folder)
    backend, signature = load(folder, inputs=tensor("x", "FP32", -1, 2, -1))
    assert signature.inputs == tensor("x", "FP32", -1, 2, -1)
    assert signature.max_batch_size == 0
    assert run(backend, x=np.ones((3, 2, 1), FP32))["y"].shape == (3, 2, 1)


# --- batching ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "outputs", "operators", "apart"),
    [
        ([(-1, 4)], [(-1, 2), (-1,)], {"MatMul", "While"}, True),
        ([(-1, -1), (-1, 3)], [(-1, -1)], set(), True),
        ([(-1,)], [(-1, 4)], set(), False),
        ([(-1, 4), (-1,)], [(-1, 4)], set(), False),
        ([(1, 4)], [(-1, 4)], set(), False),
        ([(-1, 4)], [(1, 4)], set(), False),
        ([(-1, 4)], [()], set(), False),
        ([(-1, 4)], [(-1, 4)], {"Where"}, False),
        ([(-1, 4)], [(-1, 4)], {"NonMaxSuppressionV3"}, False),
        ([], [(-1, 4)], set(), False),
    ],
)
def test_rows_are_joined_only_where_shapes_and_operators_allow_it(
    inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], operators: set[str], apart: bool
) -> None:
    assert keeps_rows_apart(inputs, outputs, operators) is apart


def test_what_the_spec_says_about_batching_is_taken_as_it_is(tmp_path: Path, plain: Path) -> None:
    assert (load(plain)[1].max_batch_size, load(plain)[1].batching) == (32, BatchingSpec())
    wanted = BatchingSpec((4,), 500)
    assert load(plain, batching=wanted)[1].batching == wanted
    assert load(plain, max_batch_size=0, batching=wanted)[1].batching is None
    distinct = build("distinct", tmp_path / "model")
    assert load(distinct)[1].max_batch_size == 0
    assert load(distinct, max_batch_size=8)[1].max_batch_size == 8
    assert "'x'" in refusal(build("add_one", tmp_path / "fixed", shape=[2, 3]), max_batch_size=4)


def test_a_model_that_only_claims_to_batch_is_found_out_when_its_rows_are_divided(tmp_path: Path) -> None:
    backend, signature = load(build("mixes_rows", tmp_path / "model"))
    assert signature.max_batch_size > 0
    answers = run(backend, x=np.ones((3, 2), FP32))
    with pytest.raises(InferenceFailed, match=r"'y'.*max_batch_size to 0"):
        split(answers, [1, 2])


# --- inference -----------------------------------------------------------------------------------------------------


def sample(datatype: str, shape: tuple[int, ...], seed: int) -> Any:
    random = np.random.default_rng(seed)
    if datatype == "BYTES":
        elements = np.empty(int(np.prod(shape, dtype=int)), object)
        elements[:] = [random.bytes(index % 5) + b"\0" for index in range(len(elements))]
        return elements.reshape(shape)
    return random.integers(0, 2, shape).astype(NUMPY_DTYPE[datatype])


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)], ids=str)
def test_every_datatype_passes_through_one_call(tmp_path: Path, shape: tuple[int, ...]) -> None:
    backend, _ = load(build("identities", tmp_path / "model", datatypes=list(TYPE)))
    given = {f"IN_{datatype}": sample(datatype, shape, seed) for seed, datatype in enumerate(TYPE)}
    answers = backend.infer(given, (), {})
    for datatype in TYPE:
        answer = answers[f"OUT_{datatype}"]
        assert answer.dtype == NUMPY_DTYPE[datatype]
        np.testing.assert_array_equal(answer, given[f"IN_{datatype}"])


def aligned(*shape: int) -> Any:
    """An array where TensorFlow wants it, which it then does not copy."""
    memory = np.zeros(4 * int(np.prod(shape)) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 4 * int(np.prod(shape))].view(FP32).reshape(shape)


@pytest.mark.parametrize("model", ["identities", "add_one"])
def test_arrays_that_are_not_copied_are_let_go_and_not_handed_on(tmp_path: Path, model: str) -> None:
    arguments = {"datatypes": ["FP32"]} if model == "identities" else {}
    backend, signature = load(build(model, tmp_path / "model", **arguments))
    given = aligned(4, 64)
    given[...] = 7
    reference = weakref.ref(given.base)
    answer = run(backend, **{signature.inputs[0].name: given})[signature.outputs[0].name]
    assert not np.shares_memory(given, answer)
    given[...] = 0
    expected = 7 if model == "identities" else 8
    del given
    gc.collect()
    assert reference() is None
    backend.unload()
    del backend
    gc.collect()
    assert (answer == expected).all()


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros(4, FP32), r"input 'x' has shape \[4\]; the model takes \[-1, 4\]"),
        (np.zeros((1, 5), FP32), r"input 'x' has shape \[1, 5\]"),
        (np.zeros((1, 4), np.int32), "input 'x' is an array of int32; the model takes FP32"),
        (np.zeros((1, 4), object), "input 'x' is an array of object"),
    ],
)
@pytest.mark.parametrize("kind", ["saved", "keras", "lite"])
def test_an_input_that_does_not_fit_is_the_requests_fault(tmp_path: Path, kind: str, x: Any, words: str) -> None:
    if kind == "saved":
        backend, _ = load(build("add_one", tmp_path / "model", shape=[None, 4]))
    elif kind == "keras":
        backend, _ = load(build("keras_pass", tmp_path))
    else:
        backend, signature = load(build("lite", tmp_path, model="no_signature"))
        assert signature.inputs[0].name == "x"
    with pytest.raises(InvalidInput, match=words):
        run(backend, x=x)
    assert next(iter(run(backend, x=np.zeros((1, 4), FP32)).values())).shape == (1, 4)


def test_missing_and_unknown_names_are_the_requests_fault(plain: Path) -> None:
    backend, _ = load(plain)
    x = np.zeros((1, 1), FP32)
    for inputs, outputs, word in [({}, (), "missing: x"), ({"x": x, "z": x}, (), "'z'"), ({"x": x}, ("w",), "'w'")]:
        with pytest.raises(InvalidInput, match=word):
            backend.infer(inputs, outputs, {})


def test_bad_values_are_the_requests_fault_and_the_next_request_works(tmp_path: Path) -> None:
    backend, _ = load(build("picks_from_table", tmp_path / "model"))
    with pytest.raises(InvalidInput, match=r"99 is not in \[0, 4\)") as failure:
        run(backend, x=[[1], [99]])
    assert "\n" not in str(failure.value)
    assert "node" not in str(failure.value)
    np.testing.assert_array_equal(run(backend, x=[[1], [3]])["y"], [[10], [30]])


def test_a_failure_inside_of_the_model_is_its_own(tmp_path: Path) -> None:
    backend, _ = load(build("fails", tmp_path / "model"))
    with pytest.raises(InferenceFailed, match="Table not initialized"):
        run(backend, x=np.zeros((1, 1), FP32))


def test_what_an_error_of_tensorflow_is_called_for_the_client() -> None:
    import tensorflow as tf

    def told(error: type[Exception], text: str) -> BackendError:
        return failure(tf, error(None, None, text))

    assert isinstance(told(tf.errors.InvalidArgumentError, "indices"), InvalidInput)
    assert isinstance(told(tf.errors.InvalidArgumentError, "unsupported operation on XLA_CPU_JIT"), InferenceFailed)
    assert isinstance(told(tf.errors.UnimplementedError, "no such kernel"), InferenceFailed)
    assert str(told(tf.errors.ResourceExhaustedError, "tensor with shape[9]")).startswith("out of memory: tensorflow: ")
    assert isinstance(
        load_failure(tf, tf.errors.ResourceExhaustedError(None, None, "x"), "it cannot load"), OutOfMemory
    )
    unknown = load_failure(tf, tf.errors.NotFoundError(None, None, "Op type not registered 'Foo'"), "it cannot load")
    assert "'Foo'; the operator belongs to another package" in str(unknown)


def test_long_errors_are_cut_and_lose_the_history_of_the_graph() -> None:
    history = "Detected at node 'a' defined at (most recent call last):\n  File 'x.py'"
    assert text_of(ValueError(f"Graph execution error:\n\nno  {{{{node a/b}}}} such\nthing {history}")) == (
        "tensorflow: no such thing"
    )
    assert len(text_of(ValueError("x" * 10_000))) < 600
    assert text_of(ValueError()) == "tensorflow: ValueError"


def test_strings_are_any_bytes(tmp_path: Path) -> None:
    backend, _ = load(build("join_strings", tmp_path / "model"))
    answers = run(backend, x=texts(b"\xff\0", "grün".encode()), suffix=texts(b"\0", b"!"))
    assert answers["y"].tolist() == [[b"\xff\0\0"], ["grün!".encode()]]


@pytest.mark.parametrize("kind", ["saved", "lite"])
def test_views_of_any_layout_are_read_right(tmp_path: Path, kind: str) -> None:
    """Batches are views of received bytes: not aligned, not writable."""
    folder = tmp_path / "model"
    backend, _ = load(
        build("add_one", folder, shape=[None, 4]) if kind == "saved" else build("lite", folder, model="no_signature")
    )
    data = bytearray(1) + np.arange(8, dtype=FP32).tobytes()
    unaligned = np.frombuffer(memoryview(data).toreadonly()[1:], FP32).reshape(2, 4)
    turned = np.arange(8, dtype=FP32).reshape(4, 2).T
    for x in (unaligned, turned, unaligned[::-1]):
        (answer,) = run(backend, x=x).values()
        np.testing.assert_array_equal(answer, x + 1)


def test_several_inputs_and_outputs_do_not_get_mixed_up(tmp_path: Path) -> None:
    backend, _ = load(build("add_sub", tmp_path / "model"))
    a, b = np.full((1, 16), 5, np.int32), np.full((1, 16), 3, np.int32)
    answers = backend.infer({"INPUT1": b, "INPUT0": a}, ("OUTPUT1", "OUTPUT0"), {})
    assert list(answers) == ["OUTPUT1", "OUTPUT0"]
    assert (answers["OUTPUT0"] == 8).all()
    assert (answers["OUTPUT1"] == 2).all()


@pytest.mark.parametrize("kind", ["plain", "packed", "flat"])
def test_several_threads_get_each_their_own_answers(kind: str, request: pytest.FixtureRequest) -> None:
    # in a process that has run a Keras model already the number of threads cannot change
    cores = str(options.usable_cores())
    backend, signature = load(request.getfixturevalue(kind), instances=4, options={"intra_op_thread_count": cores})
    width = {"plain": 7, "packed": 3, "flat": 4}[kind]
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait()
        for turn in range(50):
            x = np.full((1 + turn % 3, width), thread * 100 + turn, FP32)
            answers = run(backend, **{each.name: x for each in signature.inputs})
            expected = {"plain": x + 1, "packed": 2 * x, "flat": 2 * x}[kind]
            name = {"plain": "y", "packed": "scores", "flat": "sum"}[kind]
            np.testing.assert_allclose(answers[name], expected, rtol=1e-2 if kind == "packed" else 0)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, thread) for thread in range(4)]:
            done.result()


def test_other_threads_go_on_while_the_model_computes(tmp_path: Path) -> None:
    """A request of some seconds; meanwhile, this thread counts."""
    backend, _ = load(build("slow", tmp_path / "model", rounds=300, size=300))
    counted = 0
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run, backend, x=np.ones((2, 3), FP32))
        while not done.done():
            counted += 1
        np.testing.assert_array_equal(done.result()["y"], np.ones((2, 3)))
    assert counted > 100


# --- a quiet guest -------------------------------------------------------------------------------------------------

QUIET_CODE = """
import sys
import numpy as np
from backends.errors import BackendError
from backends.spec import ModelSpec
from backends.tf.backend import TfBackend
others = {"torch", "onnxruntime", "tensorrt_llm", "jax"}
assert not {"tensorflow", *others} & set(sys.modules), "construction imports a framework"
*good, bad = (ModelSpec("model", 1, "tf", path) for path in sys.argv[1:])
for spec in good:
    backend = TfBackend()
    names = [tensor.name for tensor in backend.load(spec).inputs]
    backend.infer({name: np.zeros((2, 4), np.float32) for name in names}, (), {})
    for shape in [(1, 5), (3, 4)]:
        try:
            backend.infer({name: np.zeros(shape, np.float32) for name in names}, (), {})
        except BackendError:
            pass
    backend.unload()
try:
    TfBackend().load(bad)
except BackendError:
    pass
else:
    raise SystemExit("the bad model was loaded")
assert not others & set(sys.modules), others & set(sys.modules)
"""


def test_nothing_is_printed_or_written_at_home_and_no_other_framework_is_imported(tmp_path: Path, flat: Path) -> None:
    """Left to itself, TensorFlow logs its build's features, Keras writes its settings, LiteRT warns of its end."""
    home = tmp_path / "home"
    home.mkdir()
    good = [build("add_one", tmp_path / "good", shape=[None, 4]), build("keras_pass", tmp_path / "keras"), flat]
    bad = shutil.copytree(good[0], tmp_path / "bad")
    shutil.rmtree(bad / "variables")
    (bad / "variables").mkdir()
    (bad / "variables" / "variables.index").write_bytes(b"rubbish")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("TF_", "KERAS_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", QUIET_CODE, *map(str, good), str(bad)],
        env={**kept, "HOME": str(home), "KERAS_BACKEND": "torch"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.iterdir()) == []


# --- a real model --------------------------------------------------------------------------------------------------


def test_a_real_savedmodel_answers_as_its_tflite_twin() -> None:
    """basic-pitch, saved by an old Keras with its optimiser, which ``tf.saved_model.load`` cannot load any more.

    Both sum in the order that suits the processor, and the logarithm of an almost silent bin makes much of the last
    bits of float32: up to 2e-3 of a probability in one place of ten thousand. Hence a bound, and a finer mean.
    """
    package = importlib.util.find_spec("basic_pitch")
    if package is None or package.origin is None:
        pytest.skip("basic_pitch is not installed: pip install --no-deps basic-pitch==0.4.0")
    models = Path(package.origin).parent / "saved_models" / "icassp_2022"
    assert "nmp, nmp.tflite" in refusal(models)
    saved, signature = load(models / "nmp")
    assert signature.inputs == tensor("input_2", "FP32", -1, 43844, 1)
    assert {each.name: each.shape for each in signature.outputs} == {
        "contour": (-1, 172, 264), "note": (-1, 172, 88), "onset": (-1, 172, 88),
    }  # fmt: skip
    assert signature.max_batch_size == 32
    lite, twin = load(models / "nmp.tflite")
    assert twin.inputs == signature.inputs
    seconds = np.arange(43844) / 22050
    audio = np.stack([np.sin(2 * np.pi * pitch * seconds) * np.exp(-seconds) for pitch in (220.0, 440.0, 987.77)])
    answers = run(saved, input_2=audio.astype(FP32)[..., None])
    others = run(lite, input_2=audio.astype(FP32)[..., None])
    for name, answer in answers.items():
        np.testing.assert_allclose(answer, others[name], atol=1e-2)
        assert np.abs(answer - others[name]).mean() < 1e-4
    assert answers["note"].max() > 0.5, "it hears notes"
