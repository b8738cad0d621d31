"""The signature that the ONNX backend tells, and how it batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from support import onnx_models
from support.loading import Loading, run, tensor
from support.onnx_models import build, load, save, value

pytest.importorskip("onnxruntime", reason="pip install 'tensorgate[onnx]'")

from backends.errors import InferenceFailed, InvalidInput
from backends.onnx.signature import keeps_rows_apart
from backends.rows import split
from backends.spec import BatchingSpec, TensorSpec

FP32 = np.float32
refusal = Loading("onnx").refusal


def test_a_sequence_is_refused_by_name_and_type(tmp_path: Path) -> None:
    text = refusal(save(onnx_models.gives_sequence(), tmp_path))
    assert "'y'" in text
    assert "seq(tensor(float))" in text


def test_a_float8_tensor_is_refused_by_type(tmp_path: Path) -> None:
    eight = helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, ["batch", "n"])
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    assert "tensor(float8e4m3fn)" in refusal(save(build([cast], [value("x")], [eight]), tmp_path))


def test_strings_in_and_bf16_out_are_refused_together(tmp_path: Path) -> None:
    assert "'OUT_BF16'" in refusal(save(onnx_models.identities(("BYTES", "BF16")), tmp_path))
    only_bytes = (TensorSpec("OUT_BYTES", "BYTES", (-1, -1)),)
    backend, _ = load(onnx_models.identities(("BYTES", "BF16")), tmp_path, outputs=only_bytes)
    answers = run(backend, IN_BYTES=np.array([[b"a"]], object), IN_BF16=np.zeros((1, 1), np.uint16))
    assert answers["OUT_BYTES"].tolist() == [[b"a"]]


def test_declared_tensors_narrow_the_models(tmp_path: Path) -> None:
    outputs = tensor("OUTPUT1", "INT32", -1, -1)
    backend, signature = load(onnx_models.add_sub(), tmp_path, outputs=outputs)
    assert signature.outputs == tensor("OUTPUT1", "INT32", -1, 16)
    ones = np.ones((2, 16), np.int32)
    assert run(backend, INPUT0=ones, INPUT1=ones).keys() == {"OUTPUT1"}
    _, signature = load(onnx_models.add_one(), tmp_path, inputs=tensor("x", "FP32", -1, 8))
    assert signature.inputs == tensor("x", "FP32", -1, 8)


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
    text = refusal(save(onnx_models.add_one(("batch", 16)), tmp_path), **fields)
    assert all(word in text for word in words), text


def test_a_required_input_cannot_be_left_out_of_the_declaration(tmp_path: Path) -> None:
    text = refusal(save(onnx_models.add_sub(), tmp_path), inputs=tensor("INPUT0", "INT32", -1, 16))
    assert "'INPUT1'" in text


def test_an_input_of_unknown_rank_has_to_be_declared(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    model = build([node], [value("x", "FP32", None)], [value("y", "FP32", None)])
    assert "declare" in refusal(save(model, tmp_path))
    backend, signature = load(model, tmp_path, inputs=tensor("x", "FP32", -1, 2, -1))
    assert signature.inputs == tensor("x", "FP32", -1, 2, -1)
    assert signature.max_batch_size == 0
    assert run(backend, x=np.ones((3, 2, 1), FP32))["y"].shape == (3, 2, 1)


def test_a_scalar_is_not_taken_for_unknown_rank(tmp_path: Path) -> None:
    backend, signature = load(onnx_models.scalar(), tmp_path)
    assert signature.inputs == tensor("x", "FP32")
    assert run(backend, x=FP32(1))["y"] == 2


def test_an_initializer_that_is_an_input_may_be_left_out(tmp_path: Path) -> None:
    backend, signature = load(onnx_models.with_default(), tmp_path)
    assert {each.name: each.optional for each in signature.inputs} == {"x": False, "offset": True}
    x = np.zeros(4, FP32)
    np.testing.assert_array_equal(run(backend, x=x)["y"], np.full(4, 1))
    np.testing.assert_array_equal(run(backend, x=x, offset=np.array([7], FP32))["y"], np.full(4, 7))


def test_a_model_that_batches_does_not_offer_optional_inputs(tmp_path: Path) -> None:
    """One value would hold for the rows of every client in the batch."""
    model = onnx_models.with_default(("batch", 4))
    backend, signature = load(model, tmp_path)
    assert signature.max_batch_size > 0
    assert [each.name for each in signature.inputs] == ["x"]
    with pytest.raises(InvalidInput, match="offset"):
        run(backend, x=np.zeros((1, 4), FP32), offset=np.ones(1, FP32))
    declared = (*tensor("x", "FP32", -1, 4), *tensor("offset", "FP32", 1))
    assert load(model, tmp_path, inputs=declared)[1].max_batch_size == 0
    assert "'offset'" in refusal(tmp_path, inputs=declared, max_batch_size=4)


# --- batching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "batches"),
    [("batch", True), ("batch_size", True), ("N", True), ("bs", True), ("b", True), (None, True), ("unk__7", True),
     ("seq", False), ("nodes", False), ("batch*heads", False), (1, False)],
)  # fmt: skip
def test_a_model_batches_by_itself_if_its_first_dimension_looks_like_a_batch(
    tmp_path: Path, first: str | int | None, batches: bool
) -> None:
    _, signature = load(onnx_models.add_one((first, 4)), tmp_path)
    assert (signature.max_batch_size, signature.batching) == ((32, BatchingSpec()) if batches else (0, None))


@pytest.mark.parametrize(
    ("inputs", "outputs", "operators", "apart"),
    [
        (["batch", "batch"], ["batch"], set(), True),
        (["batch", "b"], ["batch"], set(), False),
        (["batch"], ["batch"], {"NonMaxSuppression"}, True),
        (["batch"], ["batch"], {"DynamicQuantizeLinear"}, False),
        (["batch"], ["detections"], set(), False),
        (["batch"], [None], set(), False),
        (["unk__1"], ["unk__2"], {"Add"}, True),
        (["unk__1"], ["unk__2"], {"Add", "NonMaxSuppression"}, False),
        ([None], [None], {"NonZero"}, False),
        ([None, "unk__3"], [None], set(), True),
        ([0], ["batch"], set(), False),
        ([], ["batch"], set(), False),
        (["batch"], [], set(), False),
    ],
)
def test_rows_are_joined_only_where_all_dimensions_agree(
    inputs: list[int | str | None], outputs: list[int | str | None], operators: set[str], apart: bool
) -> None:
    assert keeps_rows_apart(inputs, outputs, operators) is apart


def test_a_vector_of_variable_length_is_no_batch(tmp_path: Path) -> None:
    assert load(onnx_models.add_one(("batch",)), tmp_path)[1].max_batch_size == 0
    assert load(onnx_models.add_one(("batch",)), tmp_path, max_batch_size=4)[1].max_batch_size == 4


def test_what_the_spec_says_about_batching_is_taken_as_it_is(tmp_path: Path) -> None:
    wanted = BatchingSpec((4,), 500)
    assert load(onnx_models.add_one(), tmp_path, batching=wanted)[1].batching == wanted
    assert load(onnx_models.add_one(("seq", 4)), tmp_path, max_batch_size=8)[1].max_batch_size == 8
    assert load(onnx_models.add_one(), tmp_path, max_batch_size=0, batching=wanted)[1].batching is None
    assert "-2" in refusal(tmp_path, max_batch_size=-2)
    assert "'y'" in refusal(tmp_path, max_batch_size=4, outputs=tensor("y", "FP32", 2, -1))


def test_a_model_that_only_claims_to_batch_is_found_out_when_its_rows_are_divided(tmp_path: Path) -> None:
    backend, signature = load(onnx_models.mixes_rows(), tmp_path)
    assert signature.max_batch_size > 0
    answers = run(backend, x=np.ones((3, 2), FP32))
    with pytest.raises(InferenceFailed, match=r"'y'.*max_batch_size to 0"):
        split(answers, [1, 2])
