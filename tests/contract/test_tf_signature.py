"""The signature that the TensorFlow backend tells, and how it batches."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.loading import Loading, run, tensor
from support.tf_models import build
from support.tf_saving import TYPE

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)

from backends.errors import InferenceFailed, InvalidInput
from backends.rows import split
from backends.spec import BatchingSpec, TensorSpec
from backends.tf.signature import keeps_rows_apart

FP32 = np.float32
_TF = Loading("tf")
load, refusal = _TF.load, _TF.refusal


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


# --- batching --------------------------------------------------------------------------------------------------------


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
