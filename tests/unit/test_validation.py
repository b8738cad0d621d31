"""A request's tensors against a model's signature. A refusal names the tensor, what was found and what is expected."""

from __future__ import annotations

import re
import struct

import pytest

from backends.spec import ITEM_SIZE, Signature, TensorSpec
from backends.tensor import Tensor
from gateway.errors import InvalidRequest
from gateway.inference.validation import Validator

PLAIN = Validator(
    "plain",
    Signature(
        "test",
        inputs=(
            TensorSpec("a", "FP32", (-1, 3)),
            TensorSpec("b", "INT64", (2,)),
            TensorSpec("c", "BYTES", (-1,), True),
        ),
        outputs=(TensorSpec("x", "FP32", (-1,)), TensorSpec("y", "FP32", (-1,))),
    ),
)
BATCHED = Validator(
    "batched",
    Signature(
        "test",
        inputs=(TensorSpec("a", "FP32", (-1, 3)), TensorSpec("b", "UINT8", (-1,), optional=True)),
        outputs=(TensorSpec("x", "FP32", (-1, 3)),),
        max_batch_size=4,
    ),
)
ALL_OPTIONAL = Validator(
    "lenient",
    Signature("test", inputs=(TensorSpec("a", "FP32", (-1, 3), optional=True),), outputs=(), max_batch_size=4),
)


def numbers(name: str, datatype: str, *shape: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return Tensor(name, datatype, shape, bytes(count * ITEM_SIZE[datatype]))


def texts(name: str, shape: tuple[int, ...], *texts: bytes) -> Tensor:
    return Tensor(name, "BYTES", shape, b"".join(struct.pack("<I", len(text)) + text for text in texts))


A, B = numbers("a", "FP32", 2, 3), numbers("b", "INT64", 2)


def refused(validator: Validator, inputs: list[Tensor], outputs: tuple[str, ...] = ()) -> str:
    with pytest.raises(InvalidRequest) as caught:
        validator.check(inputs, outputs)
    return str(caught.value)


# --- what is accepted ---


@pytest.mark.parametrize(
    "inputs",
    [
        [A, B],
        [B, A],
        [numbers("a", "FP32", 0, 3), B],
        [numbers("a", "FP32", 1000, 3), B],
        [A, B, texts("c", (0,))],
        [A, B, texts("c", (2,), b"", b"text")],
    ],
)
def test_what_fits_the_signature_is_accepted(inputs: list[Tensor]) -> None:
    PLAIN.check(inputs, ())


@pytest.mark.parametrize("outputs", [(), ("x",), ("y", "x"), ("x", "x")])
def test_any_of_the_models_outputs_may_be_asked_for(outputs: tuple[str, ...]) -> None:
    PLAIN.check([A, B], outputs)


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_batch_up_to_the_maximum_is_accepted(rows: int) -> None:
    BATCHED.check([numbers("a", "FP32", rows, 3), numbers("b", "UINT8", rows)], ())
    BATCHED.check([numbers("a", "FP32", rows, 3)], ())


def test_without_a_batch_dimension_the_first_dimension_is_like_any_other() -> None:
    PLAIN.check([numbers("a", "FP32", 9, 3), B], ())


# --- names ---


def test_an_unknown_input_is_refused_with_the_names_that_are_known() -> None:
    text = refused(PLAIN, [A, B, numbers("d", "FP32", 1)])
    assert text == "unexpected inference input 'd' for model 'plain'; its inputs are a, b, c"


@pytest.mark.parametrize("name", ["A", "a ", "", "a\0", "x"])
def test_names_are_taken_exactly(name: str) -> None:
    assert f"unexpected inference input '{name}'" in refused(PLAIN, [numbers(name, "FP32", 2, 3), B])


@pytest.mark.parametrize("twice", [[A, A, B], [A, B, A], [A, B, B], [A, B, texts("c", (0,)), texts("c", (0,))]])
def test_an_input_that_is_given_twice_is_refused(twice: list[Tensor]) -> None:
    assert re.fullmatch(r"input '[abc]' is given twice; give each input once", refused(PLAIN, twice))


@pytest.mark.parametrize(("inputs", "missing"), [([], "['a', 'b']"), ([A], "['b']"), ([B, texts("c", (0,))], "['a']")])
def test_missing_inputs_are_named(inputs: list[Tensor], missing: str) -> None:
    text = refused(PLAIN, inputs)
    assert f"expected 3 inputs but got {len(inputs)} inputs for model 'plain'" in text
    assert f"missing required input(s) {missing}" in text


@pytest.mark.parametrize("outputs", [("z",), ("x", "z"), ("",), ("a",)])
def test_an_unknown_output_is_refused_with_the_names_that_are_known(outputs: tuple[str, ...]) -> None:
    text = refused(PLAIN, [A, B], outputs)
    assert text == f"unexpected inference output '{outputs[-1]}' for model 'plain'; its outputs are x, y"


# --- datatypes and shapes ---


@pytest.mark.parametrize("datatype", [name for name in ITEM_SIZE if name not in ("FP32", "BYTES")])
def test_another_datatype_is_refused_even_where_the_bytes_would_fit(datatype: str) -> None:
    text = refused(PLAIN, [numbers("a", datatype, 2, 3), B])
    assert text == f"input 'a' has datatype {datatype}, model 'plain' expects FP32"
    assert "expects FP32" in refused(PLAIN, [Tensor("a", datatype, (2, 3), bytes(24)), B])


@pytest.mark.parametrize(
    "shape", [(), (3,), (6,), (2, 3, 1), (1, 2, 3), (3, 2), (2, 4), (2, 0), (-1, 3), (2, -3), (-2, -3)]
)
def test_a_shape_that_does_not_match_is_refused(shape: tuple[int, ...]) -> None:
    text = refused(PLAIN, [Tensor("a", "FP32", shape, bytes(24)), B])
    assert text.startswith("unexpected shape for input 'a' for model 'plain'. Expected [-1, 3], got ")
    assert str(list(shape)) in text


def test_a_shape_whose_size_overflows_64_bits_is_refused_by_its_true_size() -> None:
    # 2**62 * 3 * 4 bytes is 0 modulo 2**64
    text = refused(PLAIN, [Tensor("a", "FP32", (1 << 62, 3), b""), B])
    assert text.startswith(f"input byte size mismatch for input 'a'. Expected {(1 << 62) * 12} bytes for shape ")


@pytest.mark.parametrize("shape", [(1 << 62, 0), (0, 1 << 62)])
def test_an_empty_tensor_whose_other_sizes_are_impossible_is_refused(shape: tuple[int, ...]) -> None:
    anything = Validator("any", Signature("test", (TensorSpec("a", "FP32", (-1, -1)),), ()))
    text = refused(anything, [Tensor("a", "FP32", shape, b"")])
    assert text == f"input 'a' has shape {list(shape)}, larger than any memory; send less"


# --- bytes ---


@pytest.mark.parametrize("size", [0, 1, 23, 25, 48])
def test_too_few_or_too_many_bytes_are_refused_with_both_numbers(size: int) -> None:
    text = refused(PLAIN, [Tensor("a", "FP32", (2, 3), bytes(size)), B])
    assert text == f"input byte size mismatch for input 'a'. Expected 24 bytes for shape [2, 3] of FP32, got {size}"


@pytest.mark.parametrize(("shape", "count"), [((0,), 1), ((1,), 0), ((1,), 2), ((3,), 1), ((1 << 62,), 1)])
def test_a_wrong_number_of_texts_is_refused_with_both_numbers(shape: tuple[int], count: int) -> None:
    text = refused(PLAIN, [A, B, texts("c", shape, *[b"t"] * count)])
    assert text == (f"expected {shape[0]} string elements for inference input 'c' of shape [{shape[0]}], got {count}")


@pytest.mark.parametrize("data", [b"\x01", b"\x05\0\0\0abcd", b"\xff\xff\xff\xff", b"\x01\0\0\0a\x02\0\0\0b"])
def test_texts_whose_length_lies_are_refused_with_the_place(data: bytes) -> None:
    text = refused(PLAIN, [A, B, Tensor("c", "BYTES", (1,), data)])
    assert text.startswith("input 'c' of BYTES is malformed: element ")
    assert "4-byte little-endian length" in text


# --- batches ---


@pytest.mark.parametrize("rows", [5, 1000])
def test_a_batch_over_the_maximum_is_refused(rows: int) -> None:
    text = refused(BATCHED, [numbers("a", "FP32", rows, 3)])
    assert text.startswith("inference request batch-size must be <= 4 for model 'batched', input 'a' has ")
    assert str(rows) in text


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_inputs_of_different_batch_sizes_are_refused(rows: int) -> None:
    text = refused(BATCHED, [numbers("a", "FP32", 2, 3), numbers("b", "UINT8", rows)])
    assert text.startswith(f"input 'b' has batch size {rows}, input 'a' has 2; ")


def test_a_batch_needs_an_input_to_tell_its_size_even_if_all_are_optional() -> None:
    assert refused(ALL_OPTIONAL, []) == "model 'lenient' takes batches: give at least one of its inputs a"


# --- shapes as clients write them ---


@pytest.mark.parametrize("datatype", ["UINT8", "FP64", "BYTES"])
def test_a_shape_without_elements_that_no_memory_could_address_is_refused(datatype: str) -> None:
    """numpy refuses it in the worker, whose reader would take it for rubbish and leave."""
    signature = Signature("p", (TensorSpec("x", datatype, (-1, -1)),), ())
    with pytest.raises(InvalidRequest, match="larger than any memory"):
        Validator("m", signature).check([Tensor("x", datatype, (0, 2**63 - 1), b"")], ())
    Validator("m", signature).check([Tensor("x", datatype, (0, 2**40), b"")], ())
