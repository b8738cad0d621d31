"""TorchScript in the torch backend: its arguments, outputs and declarations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from backends.errors import InferenceFailed, InvalidInput
from backends.spec import TensorSpec
from support import torch_models, torch_modules
from support.loading import Loading, run, tensors
from support.torch_models import LINEAR_IO, ROWS, X_TO_Y, script

FP32 = np.float32
_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


def test_a_script_serves_with_names_of_its_arguments_and_with_numbers(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_modules.AddSub(), tmp_path)
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
    backend = script(torch_modules.AddSub(), tmp_path, inputs=both, outputs=outputs)
    answers = backend.infer({"right": ROWS, "left": ROWS}, ("difference", "sum"), {})
    np.testing.assert_array_equal(answers["sum"], ROWS * 2)
    np.testing.assert_array_equal(answers["difference"], ROWS * 0)


def test_outputs_of_a_dict_are_found_by_their_keys(tmp_path: Path) -> None:
    outputs = tensors(("sum", "FP32", -1), ("double", "FP32", -1, 4))
    backend = script(torch_modules.Named(), tmp_path, inputs=X_TO_Y["inputs"], outputs=outputs)
    answers = run(backend, x=ROWS)
    np.testing.assert_array_equal(answers["sum"], [6, 22])
    np.testing.assert_array_equal(answers["double"], ROWS * 2)
    backend = script(
        torch_modules.Named(), tmp_path, inputs=X_TO_Y["inputs"], outputs=tensors(("triple", "FP32", -1, 4))
    )
    with pytest.raises(InferenceFailed, match="'triple'; it gave double, sum"):
        run(backend, x=ROWS)


def test_arguments_may_be_numbers_with_and_without_defaults(tmp_path: Path) -> None:
    inputs = tensors(("x", "FP32", -1, 4), ("times", "INT64", 1))
    backend = script(torch_modules.Numbers(), tmp_path, inputs=inputs, outputs=X_TO_Y["outputs"])
    np.testing.assert_array_equal(run(backend, x=ROWS, times=[3])["y"], ROWS * 3 + 0.5)
    inputs = (*inputs, TensorSpec("plus", "FP32", ()))
    backend = script(torch_modules.Numbers(), tmp_path, inputs=inputs, outputs=X_TO_Y["outputs"])
    np.testing.assert_array_equal(run(backend, x=ROWS, times=[3], plus=FP32(2))["y"], ROWS * 3 + 2)
    with pytest.raises(InvalidInput, match=r"'times' has shape \[2\].*one number"):
        run(backend, x=ROWS, times=[3, 4], plus=FP32(2))


@pytest.mark.parametrize("module", [torch_modules.TakesDict, torch_modules.TakesList])
def test_an_argument_may_be_a_dict_or_a_list_of_tensors(tmp_path: Path, module: type[torch.nn.Module]) -> None:
    inputs = tensors(("left", "FP32", -1, 4), ("right", "FP32", -1, 4))
    backend = script(module(), tmp_path, inputs=inputs, outputs=X_TO_Y["outputs"])
    np.testing.assert_array_equal(run(backend, right=ROWS, left=ROWS * 3)["y"], ROWS * 2)


def test_a_script_without_declarations_says_what_to_declare(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_modules.Numbers(), tmp_path)
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
    file = torch_models.scripted(torch_modules.AddSub(), tmp_path)
    assert words in refusal(file, inputs=tensors(declared), outputs=X_TO_Y["outputs"])


def test_wrong_numbers_and_too_many_outputs_are_refused(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_modules.Numbers(), tmp_path)
    inputs = tensors(("x", "FP32", -1, 4), ("times", "FP32", 1))
    assert "'times' is declared as FP32 [1], the model takes one number of type int" in refusal(
        file, inputs=inputs, outputs=X_TO_Y["outputs"]
    )
    inputs = tensors(("x", "FP32", -1, 4), ("times", "INT64", 1))
    both = tensors(("y", "FP32", -1, 4), ("z", "FP32", -1, 4))
    assert "'z' is declared as the model's number 1, it gives 1" in refusal(file, inputs=inputs, outputs=both)


def test_an_output_of_another_type_than_declared_fails_its_request(tmp_path: Path) -> None:
    outputs = tensors(("y", "INT32", -1, 4))
    backend = script(torch_modules.AddOne(), tmp_path, inputs=X_TO_Y["inputs"], outputs=outputs)
    with pytest.raises(InferenceFailed, match="'y' as FP32, its signature says INT32"):
        run(backend, x=ROWS)


def test_max_batch_size_of_a_script_is_the_specs(tmp_path: Path) -> None:
    file = torch_models.scripted(torch_modules.Linear(), tmp_path)
    assert load(file, **LINEAR_IO)[1].max_batch_size == 0
    assert load(file, max_batch_size=4, **LINEAR_IO)[1].max_batch_size == 4
