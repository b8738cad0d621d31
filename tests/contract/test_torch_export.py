"""Programs of ``torch.export`` in the torch backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from backends.errors import InvalidInput
from backends.spec import BatchingSpec
from support import torch_models, torch_modules
from support.loading import Loading, run, tensors
from support.torch_models import LINEAR, ROWS

FP32 = np.float32
_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


def test_an_exported_program_tells_its_signature_and_batches_by_itself(program: Path) -> None:
    backend, signature = load(program)
    assert signature.inputs == tensors(("x", "FP32", -1, 4))
    assert signature.outputs == tensors(("OUTPUT__0", "FP32", -1, 3))
    assert (signature.max_batch_size, signature.batching) == (32, BatchingSpec())
    assert signature.platform == "pytorch_export"
    np.testing.assert_allclose(run(backend, x=ROWS)["OUTPUT__0"], LINEAR, rtol=1e-6)
    for rows in (0, 1, 5):
        assert run(backend, x=np.ones((rows, 4), FP32))["OUTPUT__0"].shape == (rows, 3)


def test_names_of_arguments_and_keys_of_a_dict_become_names(tmp_path: Path) -> None:
    backend, signature = load(torch_models.rowwise(torch_modules.Named(), 4, folder=tmp_path))
    assert [each.name for each in signature.outputs] == ["double", "sum"]
    np.testing.assert_array_equal(run(backend, x=ROWS)["sum"], [6, 22])
    _, signature = load(torch_models.identities(("FP32", "BOOL"), (-1, 3), tmp_path / "identities"))
    assert [each.name for each in signature.inputs] == ["IN_FP32", "IN_BOOL"]
    assert [each.name for each in signature.outputs] == ["OUT_FP32", "OUT_BOOL"]


def test_constants_and_nested_arguments_of_an_export_find_their_places(tmp_path: Path) -> None:
    arguments = (torch.ones(2), {"a": torch.ones(2), "b": torch.ones(2)}, None, 3)
    backend, signature = load(torch_models.exported(torch_modules.Nested(), arguments, tmp_path))
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
    file = torch_models.rowwise(torch_modules.MixesRows(), 4, folder=tmp_path)
    assert load(file)[1].max_batch_size == 0
    assert load(file, max_batch_size=4)[1].max_batch_size == 4


def test_a_vector_of_variable_length_is_no_batch(tmp_path: Path) -> None:
    length = torch.export.Dim("length")
    file = torch_models.exported(torch_modules.AddOne(), (torch.ones(3),), tmp_path, dynamic=({0: length},))
    assert load(file)[1].max_batch_size == 0


def test_an_export_with_dimensions_of_any_size_runs_with_one_row(tmp_path: Path) -> None:
    """torch writes a minimum of 2 for them, and means none."""
    auto = torch.export.Dim.AUTO
    file = torch_models.exported(torch_modules.Linear(), (torch.ones(3, 4),), tmp_path, dynamic=({0: auto},))
    backend, signature = load(file)
    assert signature.max_batch_size == 32
    assert run(backend, x=ROWS[:1])["OUTPUT__0"].shape == (1, 3)


def test_weights_of_an_export_are_mapped_from_its_file(tmp_path: Path) -> None:
    backend, _ = load(torch_models.rowwise(torch_modules.Linear(), 4, folder=tmp_path))
    assert str(tmp_path / "model.pt2") in Path("/proc/self/maps").read_text()
    np.testing.assert_allclose(run(backend, x=ROWS)["OUTPUT__0"], LINEAR, rtol=1e-6)
