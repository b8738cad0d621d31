"""What the torch backend does beyond the common contract: kinds of models, signatures, options, state, and errors."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from backends.contract import Arrays
from backends.errors import InferenceFailed, InvalidInput, LoadFailed, OutOfMemory
from backends.rows import split
from backends.spec import BatchingSpec, ModelSpec, Signature, TensorSpec
from backends.tensor import NUMPY_DTYPE
from backends.torch import options
from backends.torch.backend import TorchBackend
from support import torch_models
from support.torch_models import tensors

FP32 = np.float32
ROWS = np.arange(8, dtype=FP32).reshape(2, 4)
LINEAR = np.array([[2.4, 5.8, 9.2], [4.8, 14.6, 24.4]], FP32)
X_TO_Y: dict[str, Any] = {"inputs": tensors(("x", "FP32", -1, 4)), "outputs": tensors(("y", "FP32", -1, 4))}
LINEAR_IO: dict[str, Any] = {"inputs": tensors(("x", "FP32", -1, 4)), "outputs": tensors(("y", "FP32", -1, 3))}
IMAGE_IO: dict[str, Any] = {
    "inputs": tensors(("image", "FP32", -1, 3, -1, -1)),
    "outputs": tensors(("y", "FP32", -1, 4, -1, -1)),
}


def spec(path: Path, **fields: Any) -> ModelSpec:
    return ModelSpec("model", 1, "torch", str(path), **fields)


def load(path: Path, **fields: Any) -> tuple[TorchBackend, Signature]:
    backend = TorchBackend()
    return backend, backend.load(spec(path, **fields))


def refusal(path: Path, **fields: Any) -> str:
    """The text with which loading fails."""
    with pytest.raises(LoadFailed) as failure:
        TorchBackend().load(spec(path, **fields))
    return str(failure.value)


def run(backend: TorchBackend, **inputs: Any) -> Arrays:
    return backend.infer({name: np.asarray(array) for name, array in inputs.items()}, (), {})


def script(module: torch.nn.Module, folder: Path, **fields: Any) -> TorchBackend:
    return load(torch_models.scripted(module, folder), **fields)[0]


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program over rows of 4."""
    return torch_models.rowwise(torch_models.Linear(), 4, folder=tmp_path_factory.mktemp("linear"))


@pytest.fixture(scope="module")
def add_sub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program over two inputs of rows of 4, at most 8 rows."""
    return torch_models.rowwise(torch_models.AddSub(), 4, 4, folder=tmp_path_factory.mktemp("add_sub"), largest=8)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_models.encoder(tmp_path_factory.mktemp("bert"))


# --- TorchScript ---------------------------------------------------------------------------------------------------


def test_a_script_serves_with_names_of_its_arguments_and_with_numbers(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_models.AddSub(), tmp_path)
    left, right = ROWS, np.ones_like(ROWS)
    for names in [("left", "right"), ("INPUT__0", "INPUT__1"), ("a__0", "b__1")]:
        backend, signature = load(
            file,
            inputs=tensors(*((name, "FP32", -1, 4) for name in names)),
            outputs=tensors(("OUTPUT__1", "FP32", -1, 4), ("OUTPUT__0", "FP32", -1, 4)),
        )
        answers = run(backend, **dict(zip(names, (left, right), strict=True)))
        np.testing.assert_array_equal(answers["OUTPUT__0"], left + right)
        np.testing.assert_array_equal(answers["OUTPUT__1"], left - right)
        assert signature.platform == "pytorch_libtorch"
        assert backend.runtime == f"torch {torch.__version__} (cpu)"


def test_outputs_of_a_tuple_are_named_in_the_order_of_their_declaration(tmp_path: Path) -> None:
    both = tensors(("left", "FP32", -1, 4), ("right", "FP32", -1, 4))
    outputs = tensors(("sum", "FP32", -1, 4), ("difference", "FP32", -1, 4))
    backend = script(torch_models.AddSub(), tmp_path, inputs=both, outputs=outputs)
    answers = backend.infer({"right": ROWS, "left": ROWS}, ("difference", "sum"), {})
    np.testing.assert_array_equal(answers["sum"], ROWS * 2)
    np.testing.assert_array_equal(answers["difference"], ROWS * 0)


def test_outputs_of_a_dict_are_found_by_their_keys(tmp_path: Path) -> None:
    outputs = tensors(("sum", "FP32", -1), ("double", "FP32", -1, 4))
    backend = script(torch_models.Named(), tmp_path, inputs=X_TO_Y["inputs"], outputs=outputs)
    answers = run(backend, x=ROWS)
    np.testing.assert_array_equal(answers["sum"], [6, 22])
    np.testing.assert_array_equal(answers["double"], ROWS * 2)
    backend = script(
        torch_models.Named(), tmp_path, inputs=X_TO_Y["inputs"], outputs=tensors(("triple", "FP32", -1, 4))
    )
    with pytest.raises(InferenceFailed, match="'triple'; it gave double, sum"):
        run(backend, x=ROWS)


def test_arguments_may_be_numbers_with_and_without_defaults(tmp_path: Path) -> None:
    inputs = tensors(("x", "FP32", -1, 4), ("times", "INT64", 1))
    backend = script(torch_models.Numbers(), tmp_path, inputs=inputs, outputs=X_TO_Y["outputs"])
    np.testing.assert_array_equal(run(backend, x=ROWS, times=[3])["y"], ROWS * 3 + 0.5)
    inputs = (*inputs, TensorSpec("plus", "FP32", ()))
    backend = script(torch_models.Numbers(), tmp_path, inputs=inputs, outputs=X_TO_Y["outputs"])
    np.testing.assert_array_equal(run(backend, x=ROWS, times=[3], plus=FP32(2))["y"], ROWS * 3 + 2)
    with pytest.raises(InvalidInput, match=r"'times' has shape \[2\].*one number"):
        run(backend, x=ROWS, times=[3, 4], plus=FP32(2))


@pytest.mark.parametrize("module", [torch_models.TakesDict, torch_models.TakesList])
def test_an_argument_may_be_a_dict_or_a_list_of_tensors(tmp_path: Path, module: type[torch.nn.Module]) -> None:
    inputs = tensors(("left", "FP32", -1, 4), ("right", "FP32", -1, 4))
    backend = script(module(), tmp_path, inputs=inputs, outputs=X_TO_Y["outputs"])
    np.testing.assert_array_equal(run(backend, right=ROWS, left=ROWS * 3)["y"], ROWS * 2)


def test_a_script_without_declarations_says_what_to_declare(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_models.Numbers(), tmp_path)
    text = refusal(file)
    assert '{ name: "x"  data_type: TYPE_FP32  dims: [ -1, -1 ] }' in text
    assert '{ name: "times"  data_type: TYPE_INT64  dims: [ 1 ] }' in text
    assert '{ name: "OUTPUT__0"  data_type: TYPE_FP32  dims: [ -1, -1 ] }' in text
    assert "output [" not in refusal(file, outputs=X_TO_Y["outputs"])
    assert "input [" not in refusal(file, inputs=X_TO_Y["inputs"])


WRONG_DECLARATIONS = [
    (("z", "FP32", -1, 4), "'z' is no argument of the model, which has left (INPUT__0), right (INPUT__1)"),
    (("INPUT__2", "FP32", -1, 4), "'INPUT__2' is no argument"),
    (("left__0", "FP32", -1, 4), "needs its argument 'right'"),
    (("left", "BYTES", -1, 4), "'left' is declared as BYTES, which torch does not have"),
]


@pytest.mark.parametrize(("declared", "words"), WRONG_DECLARATIONS)
def test_inputs_that_are_not_the_scripts_are_refused(tmp_path: Path, declared: tuple[Any, ...], words: str) -> None:
    file = torch_models.scripted(torch_models.AddSub(), tmp_path)
    assert words in refusal(file, inputs=tensors(declared), outputs=X_TO_Y["outputs"])


def test_wrong_numbers_and_too_many_outputs_are_refused(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_models.Numbers(), tmp_path)
    inputs = tensors(("x", "FP32", -1, 4), ("times", "FP32", 1))
    assert "'times' is declared as FP32 [1], the model takes one number of type int" in refusal(
        file, inputs=inputs, outputs=X_TO_Y["outputs"]
    )
    inputs = tensors(("x", "FP32", -1, 4), ("times", "INT64", 1))
    both = tensors(("y", "FP32", -1, 4), ("z", "FP32", -1, 4))
    assert "'z' is declared as the model's number 1, it gives 1" in refusal(file, inputs=inputs, outputs=both)


def test_an_output_of_another_type_than_declared_fails_its_request(tmp_path: Path) -> None:
    outputs = tensors(("y", "INT32", -1, 4))
    backend = script(torch_models.AddOne(), tmp_path, inputs=X_TO_Y["inputs"], outputs=outputs)
    with pytest.raises(InferenceFailed, match="'y' as FP32, its signature says INT32"):
        run(backend, x=ROWS)


def test_max_batch_size_of_a_script_is_the_specs(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_models.Linear(), tmp_path)
    assert load(file, **LINEAR_IO)[1].max_batch_size == 0
    assert load(file, max_batch_size=4, **LINEAR_IO)[1].max_batch_size == 4


# --- state ---------------------------------------------------------------------------------------------------------


def test_a_script_that_keeps_state_is_served_only_with_a_word_about_it(tmp_path: Path) -> None:
    text = refusal(torch_models.scripted(torch_models.Counter(), tmp_path / "counter"), **X_TO_Y)
    assert "attribute(s) calls" in text
    assert "reset_calls" in text
    assert "attribute(s) calls" in refusal(
        torch_models.scripted(torch_models.CountsInBuffer(), tmp_path / "buffer"), **X_TO_Y
    )


def test_reset_method_has_every_request_begin_anew(tmp_path: Path) -> None:
    backend = script(torch_models.Counter(), tmp_path, options={"reset_method": "reset_calls"}, **X_TO_Y)
    for _ in range(3):
        np.testing.assert_array_equal(run(backend, x=ROWS)["y"], ROWS + 1)


def test_shared_state_goes_on_from_request_to_request_also_from_several_threads(tmp_path: Path) -> None:
    backend = script(torch_models.Counter(), tmp_path, options={"state": "shared"}, instances=4, **X_TO_Y)
    zeros = np.zeros((1, 4), FP32)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(run, backend, x=zeros) for _ in range(40)]
    assert sorted(int(call.result()["y"][0, 0]) for call in calls) == list(range(1, 41))


def test_another_method_may_be_served_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    backend = script(torch_models.Counter(), tmp_path, options={"method": "twice"}, **X_TO_Y)
    np.testing.assert_array_equal(run(backend, x=ROWS)["y"], ROWS * 2)
    text = refusal(tmp_path, options={"method": "thrice"}, **X_TO_Y)
    assert "no method 'thrice'; it has" in text
    assert "no method 'zero'" in refusal(tmp_path, options={"reset_method": "zero"}, **X_TO_Y)


def test_an_answer_of_shared_state_is_not_changed_by_the_next_request(tmp_path: Path) -> None:
    outputs = tensors(("OUTPUT__0", "FP32", 1))
    batch = torch_models.rowwise(torch_models.GivesBuffer(), 4, folder=tmp_path)
    backend, _ = load(batch, outputs=outputs, options={"state": "shared"})
    first = run(backend, x=ROWS)["OUTPUT__0"]
    assert run(backend, x=ROWS)["OUTPUT__0"] == 2
    assert first == 1


def test_an_exported_program_that_changes_a_buffer_is_served_only_with_a_word_about_it(tmp_path: Path) -> None:
    file = torch_models.rowwise(torch_models.CountsInBuffer(), 4, folder=tmp_path)
    assert "buffer(s) calls" in refusal(file)
    backend, signature = load(file, options={"state": "shared"})
    assert signature.max_batch_size == 0
    assert run(backend, x=ROWS * 0)["OUTPUT__0"][0, 0] == 1
    assert run(backend, x=ROWS * 0)["OUTPUT__0"][0, 0] == 2


# --- torch.export --------------------------------------------------------------------------------------------------


def test_an_exported_program_tells_its_signature_and_batches_by_itself(linear: Path) -> None:
    backend, signature = load(linear)
    assert signature.inputs == tensors(("x", "FP32", -1, 4))
    assert signature.outputs == tensors(("OUTPUT__0", "FP32", -1, 3))
    assert (signature.max_batch_size, signature.batching) == (32, BatchingSpec())
    assert signature.platform == "pytorch_export"
    np.testing.assert_allclose(run(backend, x=ROWS)["OUTPUT__0"], LINEAR, rtol=1e-6)
    for rows in (0, 1, 5):
        assert run(backend, x=np.ones((rows, 4), FP32))["OUTPUT__0"].shape == (rows, 3)


def test_names_of_arguments_and_keys_of_a_dict_become_names(tmp_path: Path) -> None:
    backend, signature = load(torch_models.rowwise(torch_models.Named(), 4, folder=tmp_path))
    assert [each.name for each in signature.outputs] == ["double", "sum"]
    np.testing.assert_array_equal(run(backend, x=ROWS)["sum"], [6, 22])
    _, signature = load(torch_models.identities(("FP32", "BOOL"), (-1, 3), tmp_path / "identities"))
    assert [each.name for each in signature.inputs] == ["IN_FP32", "IN_BOOL"]
    assert [each.name for each in signature.outputs] == ["OUT_FP32", "OUT_BOOL"]


def test_constants_and_nested_arguments_of_an_export_find_their_places(tmp_path: Path) -> None:
    arguments = (torch.ones(2), {"a": torch.ones(2), "b": torch.ones(2)}, None, 3)
    backend, signature = load(torch_models.exported(torch_models.Nested(), arguments, tmp_path))
    assert [each.name for each in signature.inputs] == ["first", "rest_a", "rest_b"]
    assert [each.name for each in signature.outputs] == ["one", "two_0", "two_1"]
    one, two, three = (np.full(2, value, FP32) for value in (1, 2, 3))
    answers = run(backend, first=one, rest_a=two, rest_b=three)
    np.testing.assert_array_equal(answers["one"], one + 3)
    np.testing.assert_array_equal(answers["two_0"], two)
    np.testing.assert_array_equal(answers["two_1"], three)


def test_declarations_narrow_and_rename_an_export(add_sub: Path) -> None:
    backend, signature = load(
        add_sub,
        inputs=tensors(("INPUT__1", "FP32", -1, 4), ("INPUT__0", "FP32", -1, 4)),
        outputs=tensors(("OUTPUT__1", "FP32", -1, -1)),
    )
    assert [each.name for each in signature.inputs] == ["INPUT__1", "INPUT__0"]
    assert signature.outputs == tensors(("OUTPUT__1", "FP32", -1, 4))
    np.testing.assert_array_equal(run(backend, INPUT__0=ROWS * 3, INPUT__1=ROWS)["OUTPUT__1"], ROWS * 2)
    outputs = tensors(("sum", "FP32", -1, 4), ("difference", "FP32", -1, 4))
    backend, _ = load(add_sub, outputs=outputs)
    np.testing.assert_array_equal(run(backend, left=ROWS, right=ROWS)["sum"], ROWS * 2)


CONTRADICTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"inputs": tensors(("z", "FP32", -1, 4))}, ["'z'", "left"]),
    ({"inputs": tensors(("left", "FP32", -1, 4))}, ["'right'", "lack"]),
    ({"inputs": tensors(("left", "INT32", -1, 4), ("right", "FP32", -1, 4))}, ["'left'", "INT32", "FP32"]),
    ({"inputs": tensors(("left", "FP32", -1, 5), ("right", "FP32", -1, 4))}, ["[-1, 5]", "[-1, 4]"]),
    ({"outputs": tensors(("y", "FP32", -1, 4))}, ["'y'", "OUTPUT__0"]),
    ({"max_batch_size": 16}, ["16", "at most 8"]),
]


@pytest.mark.parametrize(("fields", "words"), CONTRADICTIONS)
def test_declarations_that_contradict_the_program_are_refused(
    add_sub: Path, fields: dict[str, Any], words: list[str]
) -> None:
    text = refusal(add_sub, **fields)
    assert all(word in text for word in words), text


def test_the_limits_of_the_export_hold_for_batches_and_requests(add_sub: Path) -> None:
    backend, signature = load(add_sub)
    assert signature.max_batch_size == 8
    nine = np.ones((9, 4), FP32)
    with pytest.raises(InvalidInput, match="'left' has 9 in dimension 0, the model takes 0 to 8"):
        run(backend, left=nine, right=nine)
    with pytest.raises(InvalidInput, match=r"different numbers of rows \(left 2, right 1\)"):
        run(backend, left=ROWS, right=ROWS[:1])
    backend, _ = load(add_sub, max_batch_size=0)
    with pytest.raises(InvalidInput, match="'right' has 1 in dimension 0, and input 'left' has 2 in dimension 0"):
        run(backend, left=ROWS, right=ROWS[:1])


def test_rows_that_depend_on_each_other_are_never_joined_unasked(tmp_path: Path) -> None:
    file = torch_models.rowwise(torch_models.MixesRows(), 4, folder=tmp_path)
    assert load(file)[1].max_batch_size == 0
    assert load(file, max_batch_size=4)[1].max_batch_size == 4


def test_a_vector_of_variable_length_is_no_batch(tmp_path: Path) -> None:
    length = torch.export.Dim("length")
    file = torch_models.exported(torch_models.AddOne(), (torch.ones(3),), tmp_path, dynamic=({0: length},))
    assert load(file)[1].max_batch_size == 0


def test_an_export_with_dimensions_of_any_size_runs_with_one_row(tmp_path: Path) -> None:
    """torch writes a minimum of 2 for them, and means none."""
    auto = torch.export.Dim.AUTO
    file = torch_models.exported(torch_models.Linear(), (torch.ones(3, 4),), tmp_path, dynamic=({0: auto},))
    backend, signature = load(file)
    assert signature.max_batch_size == 32
    assert run(backend, x=ROWS[:1])["OUTPUT__0"].shape == (1, 3)


def test_weights_of_an_export_are_mapped_from_its_file(tmp_path: Path) -> None:
    backend, _ = load(torch_models.rowwise(torch_models.Linear(), 4, folder=tmp_path))
    assert str(tmp_path / "model.pt2") in Path("/proc/self/maps").read_text()
    np.testing.assert_allclose(run(backend, x=ROWS)["OUTPUT__0"], LINEAR, rtol=1e-6)


# --- transformers --------------------------------------------------------------------------------------------------


def test_an_encoder_tells_its_signature_and_keeps_rows_apart(bert: Path) -> None:
    backend, signature = load(bert)
    assert [(each.name, each.datatype, each.shape, each.optional) for each in signature.inputs] == [
        ("input_ids", "INT64", (-1, -1), False),
        ("attention_mask", "INT64", (-1, -1), True),
        ("token_type_ids", "INT64", (-1, -1), True),
    ]
    assert signature.outputs == tensors(("last_hidden_state", "FP32", -1, -1, 8), ("pooler_output", "FP32", -1, 8))
    assert signature.max_batch_size == 32
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    both = run(backend, input_ids=ids)["last_hidden_state"]
    alone = run(backend, input_ids=ids[1:])["last_hidden_state"]
    np.testing.assert_allclose(both[1:], alone, rtol=1e-4, atol=1e-6)
    masked = run(backend, input_ids=ids, attention_mask=np.array([[1, 1, 0], [1, 1, 1]]))["last_hidden_state"]
    assert not np.allclose(masked[0, 0], both[0, 0], rtol=1e-4)
    np.testing.assert_allclose(masked[1], both[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "outputs"),
    [
        ("BertForSequenceClassification", [("logits", (-1, 3))]),
        ("BertForTokenClassification", [("logits", (-1, -1, 3))]),
        ("BertForMaskedLM", [("logits", (-1, -1, 50))]),
        ("BertForQuestionAnswering", [("start_logits", (-1, -1)), ("end_logits", (-1, -1))]),
    ],
)
def test_heads_of_encoders_give_their_logits(
    tmp_path: Path, architecture: str, outputs: list[tuple[str, tuple[int, ...]]]
) -> None:
    labels = 2 if "Question" in architecture else 3
    backend, signature = load(torch_models.encoder(tmp_path, architecture, num_labels=labels))
    assert [(each.name, each.shape) for each in signature.outputs] == outputs
    answers = run(backend, input_ids=np.ones((2, 5), np.int64))
    assert all(answers[name].shape[0] == 2 for name, _ in outputs)


def test_an_encoder_saved_without_its_pooler_does_not_offer_one(tmp_path: Path) -> None:
    _, signature = load(torch_models.encoder(tmp_path, pooler=False))
    assert [each.name for each in signature.outputs] == ["last_hidden_state"]


def test_weights_that_lack_a_part_of_the_architecture_are_refused(bert: Path, tmp_path: Path) -> None:
    """Left to itself the library makes the missing part up, at random."""
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"BertModel"', '"BertForSequenceClassification"'))
    text = refusal(folder)
    assert "classifier.weight" in text
    assert "random" in text


BAD_IDS: list[tuple[dict[str, Any], str]] = [
    ({"input_ids": [[1, 50]]}, "'input_ids' holds 50; the model knows 0 to 49"),
    ({"input_ids": [[-1, 2]]}, "'input_ids' holds -1"),
    ({"input_ids": [[1, 2]], "token_type_ids": [[0, 2]]}, "'token_type_ids' holds 2; the model knows 0 to 1"),
    ({"input_ids": [[1] * 17]}, "17 tokens in a row; the model takes up to 16"),
    ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, r"'attention_mask' has shape \[1, 1\]"),
]


@pytest.mark.parametrize(("inputs", "words"), BAD_IDS)
def test_ids_and_lengths_that_the_model_does_not_know_are_the_requests_fault(
    bert: Path, inputs: dict[str, Any], words: str
) -> None:
    backend, _ = load(bert)
    with pytest.raises(InvalidInput, match=words):
        run(backend, **inputs)


def test_positions_that_begin_after_the_padding_shorten_the_longest_row(tmp_path: Path) -> None:
    folder = torch_models.encoder(tmp_path, "RobertaModel", model_type="roberta", pad_token_id=1)
    backend, _ = load(folder)
    assert run(backend, input_ids=np.full((1, 14), 2))["last_hidden_state"].shape == (1, 14, 8)
    with pytest.raises(InvalidInput, match="up to 14"):
        run(backend, input_ids=np.full((1, 15), 2))


def test_declared_tensors_narrow_an_encoder(bert: Path) -> None:
    inputs, outputs = tensors(("input_ids", "INT64", -1, 5)), tensors(("pooler_output", "FP32", -1, 8))
    _, signature = load(bert, inputs=inputs, outputs=outputs)
    assert (signature.inputs, signature.outputs) == (inputs, outputs)
    assert "'pixels'" in refusal(bert, inputs=tensors(("pixels", "FP32", -1, 3)))
    assert "'input_ids'" in refusal(bert, inputs=tensors(("attention_mask", "INT64", -1, -1)))


# --- a Python class ------------------------------------------------------------------------------------------------

ALLOWED = {"class": "model:Net", "allow_code": "true"}


@pytest.mark.parametrize("weights", ["safetensors", "pt"])
def test_a_class_is_served_where_the_operator_allows_it(tmp_path: Path, weights: str) -> None:
    backend, signature = load(torch_models.python_class(tmp_path, weights=weights), options=ALLOWED, **LINEAR_IO)
    np.testing.assert_allclose(run(backend, x=ROWS)["y"], LINEAR + 100, rtol=1e-6)
    assert signature.max_batch_size == 0


CLASS_FAULTS = [
    ({"class": "model:Net", "allow_code": "false"}, "allow_code = true, which the operator sets"),
    ({"class": "net:Net", "allow_code": "true"}, "has no net.py"),
    ({"class": "model:Nett", "allow_code": "true"}, "model.py has no torch.nn.Module Nett"),
    ({**ALLOWED, "class_arguments": '{"width": 5}'}, "weights.safetensors does not fit Net"),
    ({**ALLOWED, "class_arguments": '{"height": 5}'}, "model:Net cannot be made: TypeError"),
    ({**ALLOWED, "class_arguments": "[]"}, "option class_arguments"),
]


@pytest.mark.parametrize(("given", "words"), CLASS_FAULTS)
def test_what_is_wrong_with_a_class_is_said(tmp_path: Path, given: dict[str, str], words: str) -> None:
    assert words in refusal(torch_models.python_class(tmp_path), options=given, **LINEAR_IO)


def test_memory_that_there_is_not_fails_the_load_with_the_numbers(tmp_path: Path) -> None:
    source = (
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        self.w = torch.empty(1 << 58)\n"
    )
    (tmp_path / "model.py").write_text(source)
    with pytest.raises(OutOfMemory, match=rf"allocate {1 << 60} bytes.* has \d+ of \d+ bytes free"):
        TorchBackend().load(spec(tmp_path, options=ALLOWED, **LINEAR_IO))


def test_a_class_needs_declarations_and_one_file_of_weights(tmp_path: Path) -> None:
    folder = torch_models.python_class(tmp_path)
    assert '{ name: "x"' in refusal(folder, options=ALLOWED)
    shutil.copy(folder / "weights.safetensors", folder / "other.safetensors")
    assert "other.safetensors, weights.safetensors" in refusal(folder, options=ALLOWED, **LINEAR_IO)


# --- compiled programs ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(600)
def test_a_compiled_package_is_served_where_the_operator_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    file = torch_models.compiled(tmp_path / "model")
    assert "allow_code = true, which the operator sets" in refusal(file)
    allowed = {"allow_code": "true"}
    assert '{ name: "INPUT__1"' in refusal(file, options=allowed)
    inputs = tensors(("INPUT__0", "FP32", -1, 4), ("INPUT__1", "FP32", -1, 4))
    outputs = tensors(("sum", "FP32", -1, 4), ("difference", "FP32", -1, 4))
    backend, signature = load(file, options=allowed, inputs=inputs, outputs=outputs, instances=2)
    assert signature.platform == "pytorch_aotinductor"
    for rows in (1, 2):
        answers = run(backend, INPUT__0=ROWS[:rows] * 3, INPUT__1=ROWS[:rows])
        np.testing.assert_array_equal(answers["sum"], ROWS[:rows] * 4)
        np.testing.assert_array_equal(answers["difference"], ROWS[:rows] * 2)
    with pytest.raises(InvalidInput, match=r"'INPUT__1' has shape \[2, 3\], the model takes \[-1, 4\]"):
        run(backend, INPUT__0=ROWS, INPUT__1=ROWS[:, :3])
    with pytest.raises(InvalidInput, match="expected size 1==2"):
        run(backend, INPUT__0=ROWS, INPUT__1=ROWS[:1])
    assert "1 inputs are declared, the model takes 2" in refusal(
        file, options=allowed, inputs=inputs[:1], outputs=outputs
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(600)
def test_a_program_that_is_compiled_while_it_loads_gives_the_same(
    tmp_path: Path, linear: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    backend, signature = load(linear, options={"compile": "default"})
    assert signature.max_batch_size == 32
    np.testing.assert_allclose(run(backend, x=ROWS)["OUTPUT__0"], LINEAR, rtol=1e-5)


# --- options -------------------------------------------------------------------------------------------------------

ACCEPTED = [
    ("intra_op_thread_count", "1"), ("intra_op_thread_count", "0"), ("INTRA_OP_THREAD_COUNT", "1"),
    ("inter_op_thread_count", "0"), ("allow_code", "false"), ("dtype", "fp32"), ("dtype", "bfloat16"),
    ("channels_last", "true"), ("freeze", "true"), ("optimize_for_inference", "1"), ("cuda_graphs", "false"),
    ("graph_optimization_level", "basic"), ("INFERENCE_MODE", "true"), ("TRITON_BATCH_STRATEGY_PATH", "/somewhere"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), ACCEPTED)
def test_documented_options_are_accepted(tmp_path: Path, name: str, text: str) -> None:
    backend = script(torch_models.Linear(), tmp_path, options={name: text}, **LINEAR_IO)
    np.testing.assert_allclose(run(backend, x=ROWS)["y"], LINEAR, rtol=1e-2)
    assert name in str(options.__doc__) or name.startswith(("TRITON_", "INFERENCE_"))


REFUSED = [
    ("intra_op_thread_count", "many"), ("intra_op_thread_count", "-1"), ("intra_op_thread_count", "100000"),
    ("allow_code", "perhaps"), ("dtype", "int8"), ("channels_last", ""), ("compile", "true"), ("method", "a b"),
    ("state", "private"), ("class", "Net"), ("class", "../model:Net"), ("class_arguments", "{"),
    ("intra_op_threads", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_unknown_options_and_bad_values_are_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    answer = refusal(tmp_path, options={name: text})
    assert name in answer
    assert "it takes" in answer


FOREIGN = [("freeze", "true"), ("dtype", "bf16"), ("reset_method", "reset"), ("check_inputs", "1")]


@pytest.mark.parametrize(("name", "text"), FOREIGN)
def test_an_option_of_another_kind_is_refused_with_its_kinds(linear: Path, name: str, text: str) -> None:
    assert f"option {name} is for" in refusal(linear, options={name: text})


def test_the_cores_are_shared_between_the_instances(tmp_path: Path) -> None:
    def threads(instances: int, cores: int, **given: str) -> int:
        return options.parse(spec(Path(), instances=instances, options=given), cores).intra_op_threads

    assert [threads(1, 8), threads(3, 8), threads(16, 8)] == [8, 2, 1]
    assert threads(2, 8, intra_op_thread_count="5") == 5
    script(torch_models.Linear(), tmp_path, options={"intra_op_thread_count": "1"}, **LINEAR_IO)
    assert torch.get_num_threads() == 1
    load(tmp_path, **LINEAR_IO)
    assert torch.get_num_threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", ["channels_last", "freeze", "optimize_for_inference"])
def test_layouts_and_optimisations_keep_the_answer(tmp_path: Path, name: str) -> None:
    image = np.random.default_rng(0).standard_normal((2, 3, 5, 6), FP32)
    file = torch_models.scripted(torch_models.Image(), tmp_path)
    expected = run(load(file, **IMAGE_IO)[0], image=image)["y"]
    answer = run(load(file, options={name: "true"}, **IMAGE_IO)[0], image=image)["y"]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["script", "encoder", "class"])
def test_a_model_computes_in_another_type_behind_the_same_signature(tmp_path: Path, kind: str, bert: Path) -> None:
    if kind == "encoder":
        plain, half = (load(bert, options=given) for given in ({}, {"dtype": "bfloat16"}))
        inputs: dict[str, Any] = {"input_ids": np.array([[1, 2, 3]])}
    else:
        allowed = ALLOWED if kind == "class" else {}
        if kind == "class":
            torch_models.python_class(tmp_path)
        else:
            torch_models.scripted(torch_models.Linear(), tmp_path)
        plain, half = (
            load(tmp_path, options={**allowed, **given}, **LINEAR_IO) for given in ({}, {"dtype": "bfloat16"})
        )
        inputs = {"x": ROWS / 3}
    assert plain[1] == half[1]
    expected, answers = (run(backend, **inputs) for backend, _ in (plain, half))
    for name, answer in answers.items():
        assert answer.dtype == FP32
        assert not np.array_equal(answer, expected[name])
        np.testing.assert_allclose(answer, expected[name], rtol=0.05, atol=0.05)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_with_what_is(linear: Path) -> None:
    text = refusal(linear, device="cuda:1")
    assert "cuda:1" in text
    assert torch.__version__ in text or "0 CUDA device" in text
    assert "it is cpu, cuda, or cuda:N" in refusal(linear, device="tpu:0")
    assert "it is cpu, cuda, or cuda:N" in refusal(linear, device="meta")
    assert "needs a CUDA device" in refusal(linear, options={"cuda_graphs": "true"})


def test_the_number_of_inter_op_threads_holds_for_the_process(linear: Path) -> None:
    torch.ones(2).sum()
    wanted = torch.get_num_interop_threads() + 1
    try:
        backend, _ = load(linear, options={"inter_op_thread_count": str(wanted)})
    except LoadFailed as refused:
        assert "can be set once in a worker" in str(refused)
    else:
        assert torch.get_num_interop_threads() == wanted
        assert run(backend, x=ROWS)["OUTPUT__0"].shape == (2, 3)


# --- inference -----------------------------------------------------------------------------------------------------

SHAPES = [(2, 3), (1, 1), (0, 3), (2, 0), (0, 0)]


def sample(datatype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    dtype = NUMPY_DTYPE[datatype]
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> TorchBackend:
    """Every datatype that torch has, any shape of two dimensions."""
    folder = tmp_path_factory.mktemp("identities")
    return load(torch_models.identities(tuple(torch_models.DTYPE), (-1, -1), folder))[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_datatype_passes_unchanged(identities: TorchBackend, shape: tuple[int, ...]) -> None:
    inputs = {f"IN_{datatype}": sample(datatype, shape) for datatype in torch_models.DTYPE}
    answers = identities.infer(inputs, (), {})
    assert len(answers) == 13
    for datatype in torch_models.DTYPE:
        answer = answers[f"OUT_{datatype}"]
        assert answer.dtype == NUMPY_DTYPE[datatype]
        assert answer.shape == shape
        np.testing.assert_array_equal(answer, inputs[f"IN_{datatype}"])


@pytest.mark.parametrize("datatype", ["FP32", "BF16", "INT64", "BOOL"])
def test_scalars_pass_unchanged(tmp_path: Path, datatype: str) -> None:
    backend, signature = load(torch_models.identities((datatype,), (), tmp_path))
    assert signature.inputs == (TensorSpec(f"IN_{datatype}", datatype, ()),)
    given = sample(datatype, (1,)).reshape(())
    answer = backend.infer({f"IN_{datatype}": given}, (), {})[f"OUT_{datatype}"]
    assert answer.shape == ()
    np.testing.assert_array_equal(answer, given)


def test_an_answer_that_is_the_input_is_in_memory_of_its_own(tmp_path: Path) -> None:
    """The input's memory is used again as soon as the call is over."""
    backend, _ = load(torch_models.identities(("FP32", "BF16"), (-1, -1), tmp_path))
    inputs = {f"IN_{datatype}": sample(datatype, (3, 5)) for datatype in ("FP32", "BF16")}
    kept = {name: array.copy() for name, array in inputs.items()}
    references = [weakref.ref(array) for array in inputs.values()]
    answers = backend.infer(inputs, (), {})
    for array in inputs.values():
        array[...] = 0
    for name, expected in kept.items():
        np.testing.assert_array_equal(answers[name.replace("IN", "OUT")], expected)
    del inputs, array
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("kind", ["script", "export"])
def test_a_model_that_writes_to_its_input_writes_to_a_copy(tmp_path: Path, kind: str) -> None:
    """Inputs may lie in memory that this process must not write to: it would be killed."""
    module = torch_models.WritesInput()
    if kind == "script":
        backend = script(module, tmp_path, **X_TO_Y)
    else:
        backend, _ = load(torch_models.rowwise(module, 4, folder=tmp_path))
    given = np.frombuffer(ROWS.tobytes(), FP32).reshape(2, 4)
    (answer,) = backend.infer({"x": given}, (), {}).values()
    np.testing.assert_array_equal(answer, (ROWS + 1) * 2)
    np.testing.assert_array_equal(given, ROWS)


def test_views_of_any_layout_are_read_right(identities: TorchBackend) -> None:
    """Batches are views of received bytes: not aligned, not writable."""
    data = bytearray(1) + np.arange(6, dtype=FP32).tobytes()
    unaligned = np.frombuffer(memoryview(data).toreadonly()[1:], FP32).reshape(2, 3)
    inputs = {f"IN_{datatype}": sample(datatype, (2, 3)) for datatype in torch_models.DTYPE}
    for view in (unaligned, unaligned[::-1], np.asfortranarray(unaligned), unaligned[:, ::-1]):
        answers = identities.infer({**inputs, "IN_FP32": view}, ("OUT_FP32",), {})
        np.testing.assert_array_equal(answers["OUT_FP32"], view)


def test_exactly_the_requested_outputs_are_answered(add_sub: Path) -> None:
    backend, _ = load(add_sub)
    inputs = {"left": ROWS * 3, "right": ROWS}
    assert backend.infer(inputs, ("OUTPUT__1",), {}).keys() == {"OUTPUT__1"}
    both = backend.infer(inputs, ("OUTPUT__1", "OUTPUT__0"), {})
    np.testing.assert_array_equal(both["OUTPUT__1"], ROWS * 2)
    np.testing.assert_array_equal(both["OUTPUT__0"], ROWS * 4)


def test_wrong_names_and_types_are_the_requests_fault(add_sub: Path) -> None:
    backend, _ = load(add_sub)
    with pytest.raises(InvalidInput, match="missing: right"):
        run(backend, left=ROWS)
    with pytest.raises(InvalidInput, match="no tensor 'up'; it has left, right, OUTPUT__0"):
        run(backend, left=ROWS, right=ROWS, up=ROWS)
    with pytest.raises(InvalidInput, match="no tensor 'NOTHING'"):
        backend.infer({"left": ROWS, "right": ROWS}, ("NOTHING",), {})
    with pytest.raises(InvalidInput, match="'left' is an array of float64, the model takes FP32"):
        run(backend, left=ROWS.astype(np.float64), right=ROWS)


@pytest.mark.parametrize("kind", ["script", "export"])
def test_a_shape_that_does_not_fit_is_the_requests_fault_and_the_next_request_works(
    tmp_path: Path, linear: Path, kind: str
) -> None:
    if kind == "script":
        backend = script(torch_models.Linear(), tmp_path, **LINEAR_IO)
    else:
        backend, _ = load(linear)
    for shape in [(2, 5), (5,), (2, 2, 3)]:
        with pytest.raises(InvalidInput, match="torch"):
            run(backend, x=np.ones(shape, FP32))
    (answer,) = run(backend, x=ROWS).values()
    np.testing.assert_allclose(answer, LINEAR, rtol=1e-6)


def test_bad_values_are_the_requests_fault(tmp_path: Path) -> None:
    inputs, outputs = tensors(("x", "INT64", -1)), tensors(("y", "FP32", -1))
    backend = script(torch_models.Table(), tmp_path / "table", inputs=inputs, outputs=outputs)
    with pytest.raises(InvalidInput, match="out of"):
        run(backend, x=[1, 99])
    np.testing.assert_array_equal(run(backend, x=[1, 3])["y"], [10, 30])
    backend = script(torch_models.Complains(), tmp_path / "complains", **X_TO_Y)
    with pytest.raises(InvalidInput, match=r"refuses its input: negative numbers have no root$"):
        run(backend, x=-ROWS)


def test_another_failure_is_the_models_own_and_told_in_short(tmp_path: Path) -> None:
    backend = script(torch_models.Fails(), tmp_path, **X_TO_Y)
    with pytest.raises(InferenceFailed, match="the model is out of order") as failure:
        run(backend, x=ROWS)
    assert "Traceback" not in str(failure.value)


def test_memory_that_there_is_not_fails_its_request(tmp_path: Path) -> None:
    inputs = tensors(("x", "INT64", 1))
    backend = script(torch_models.Allocates(), tmp_path, inputs=inputs, outputs=tensors(("y", "FP32", -1)))
    with pytest.raises(InferenceFailed, match="out of memory: .*allocate"):
        run(backend, x=[1 << 60])
    np.testing.assert_array_equal(run(backend, x=[3])["y"], [0, 0, 0])


def test_several_threads_get_each_their_own_answers(add_sub: Path) -> None:
    backend, _ = load(add_sub, instances=4)
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait()
        for turn in range(50):
            left, right = (sample("FP32", (1 + turn % 3, 4), thread * 1000 + turn + part * 500) for part in (0, 1))
            answers = backend.infer({"left": left, "right": right}, (), {})
            np.testing.assert_array_equal(answers["OUTPUT__0"], left + right)
            np.testing.assert_array_equal(answers["OUTPUT__1"], left - right)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, thread) for thread in range(4)]:
            done.result()


def test_a_joined_batch_is_answered_row_by_row_and_outlives_the_model(linear: Path) -> None:
    backend, _ = load(linear)
    parts = [sample("FP32", (rows, 4), rows) for rows in (1, 3, 0, 2)]
    answers = backend.infer({"x": np.concatenate(parts)}, (), {})
    alone = [run(backend, x=part)["OUTPUT__0"] for part in parts]
    backend.unload()
    gc.collect()
    for expected, share in zip(alone, split(answers, [len(part) for part in parts]), strict=True):
        np.testing.assert_allclose(share["OUTPUT__0"], expected, rtol=1e-5)


# --- a quiet guest -------------------------------------------------------------------------------------------------

GUEST_CODE = """
import sys
import numpy as np
from backends.errors import InvalidInput, LoadFailed
from backends.spec import ModelSpec, TensorSpec
from backends.torch.backend import TorchBackend
script, program, encoder, rubbish = sys.argv[1:]
assert "torch" not in sys.modules
x = TensorSpec("x", "FP32", (-1, 4))
y = TensorSpec("y", "FP32", (-1, 3))
for path, declared in ((script, ((x,), (y,))), (program, ((), ()))):
    backend = TorchBackend()
    backend.load(ModelSpec("model", 1, "torch", path, inputs=declared[0], outputs=declared[1]))
    array = np.ones((2, 4), np.float32)
    array.flags.writeable = False
    backend.infer({"x": array}, (), {})
    try:
        backend.infer({"x": np.ones((2, 5), np.float32)}, (), {})
    except InvalidInput:
        pass
    else:
        raise SystemExit("the bad request was answered")
    backend.unload()
backend = TorchBackend()
backend.load(ModelSpec("model", 1, "torch", encoder))
backend.infer({"input_ids": np.ones((1, 2), np.int64)}, (), {})
try:
    TorchBackend().load(ModelSpec("model", 1, "torch", rubbish))
except LoadFailed:
    pass
else:
    raise SystemExit("the bad model was loaded")
others = {"onnxruntime", "onnx", "tensorflow", "tensorrt_llm", "keras", "jax"} & set(sys.modules)
assert not others, others
"""


def test_models_load_and_fail_without_a_word_and_without_another_framework(
    tmp_path: Path, linear: Path, bert: Path
) -> None:
    script = torch_models.scripted(torch_models.Linear(), tmp_path)
    rubbish = tmp_path / "rubbish.pt"
    rubbish.write_bytes(b"PK\x03\x04" + bytes(100))
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", GUEST_CODE, str(script), str(linear), str(bert), str(rubbish)],
        env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.iterdir()) == []
