"""Padding: who shares a batch, what is joined, what each gets back, and what cannot be padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.batching import Pending
from backends.errors import InferenceFailed, InvalidInput, LoadFailed
from backends.padding import Padding, element, offered
from backends.spec import BatchingSpec, ModelSpec, PaddingSpec, Signature, TensorSpec
from backends.tensor import Tensor, from_numpy

IDS = TensorSpec("ids", "INT64", (-1, -1))
MASK = TensorSpec("mask", "INT32", (-1, -1))
IMAGE = TensorSpec("image", "UINT8", (-1, 3, -1, -1))
HIDDEN = TensorSpec("hidden", "FP32", (-1, -1, 4))
SPEC = PaddingSpec({"ids": 7}, {"mask": "ids"}, {"hidden": "ids"})


def padding(
    spec: PaddingSpec = SPEC, inputs: tuple[TensorSpec, ...] = (IDS, MASK), outputs: tuple[TensorSpec, ...] = (HIDDEN,)
) -> Padding:
    return Padding(spec, Signature("test", inputs, outputs, 8, BatchingSpec(padding=spec)))


def tensors(**arrays: npt.NDArray[Any]) -> list[Tensor]:
    return [from_numpy(name, array) for name, array in arrays.items()]


def ids(rows: int, length: int) -> npt.NDArray[np.int64]:
    return np.arange(1, rows * length + 1).reshape(rows, length)


def request(**arrays: npt.NDArray[Any]) -> Pending:
    rows = len(next(iter(arrays.values())))
    return Pending(
        id=1, tensors=tensors(**arrays), outputs=(), parameters={}, priority=0, arrived_ns=0, deadline_ns=0, rows=rows,
        key=None,
    )  # fmt: skip


def share(one: dict[str, npt.NDArray[Any]], other: dict[str, npt.NDArray[Any]], rules: Padding | None = None) -> bool:
    rules = rules or padding()
    return rules.key(tensors(**one), None) == rules.key(tensors(**other), None)


# --- who shares a batch ---


def test_other_lengths_and_numbers_of_rows_share_a_batch() -> None:
    assert share({"ids": ids(1, 5)}, {"ids": ids(3, 500)})


def test_a_mask_that_is_sent_and_one_that_is_left_out_share_a_batch() -> None:
    mask = np.ones((1, 5), np.int32)
    assert share({"ids": ids(1, 5)}, {"ids": ids(1, 5), "mask": mask})
    assert share({"ids": ids(1, 9)}, {"mask": mask, "ids": ids(1, 5)})


def test_an_input_that_is_not_padded_has_to_have_one_shape() -> None:
    rules = padding(inputs=(IDS, MASK, TensorSpec("free", "FP32", (-1, -1))))
    one, other = np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)
    assert share({"ids": ids(1, 5), "free": one}, {"ids": ids(1, 6), "free": one}, rules)
    assert not share({"ids": ids(1, 5), "free": one}, {"ids": ids(1, 5), "free": other}, rules)


@pytest.mark.parametrize(
    "other",
    [
        {"ids": ids(1, 5).astype(np.int32)},
        {"ids": ids(1, 5).reshape(1, 5, 1)},
        {"ids": ids(1, 5)[0]},
        {"mask": np.ones((1, 5), np.int32)},
        {},
    ],
)
def test_another_datatype_rank_or_set_of_names_shares_no_batch(other: dict[str, npt.NDArray[Any]]) -> None:
    assert not share({"ids": ids(1, 5)}, other)


def test_other_sizes_of_a_fixed_axis_share_no_batch() -> None:
    rules = padding(PaddingSpec({"image": 0}), (IMAGE,), ())
    wide, high, deep = (np.zeros(shape, np.uint8) for shape in [(1, 3, 8, 9), (1, 3, 5, 6), (1, 4, 5, 6)])
    assert share({"image": wide}, {"image": high}, rules)
    assert not share({"image": high}, {"image": deep}, rules)


def test_parameters_have_to_be_equal() -> None:
    rules, given = padding(), tensors(ids=ids(1, 5))
    assert rules.key(given, {"a": 1}) == rules.key(tensors(ids=ids(1, 6)), {"a": 1})
    assert rules.key(given, {"a": 1}) != rules.key(given, {"a": True})


def test_a_request_that_contradicts_itself_does_not_join_those_whose_padding_would_hide_it() -> None:
    def asks(length: int, masked: int) -> dict[str, npt.NDArray[Any]]:
        return {"ids": ids(1, length), "mask": np.ones((1, masked), np.int32)}

    assert share(asks(3, 3), asks(4, 4))
    assert not share(asks(3, 4), asks(4, 4)), "padded to 4 and 4 it would pass"
    assert not share(asks(3, 4), asks(4, 3)), "padded to 4 and 4 both would pass"
    assert share(asks(3, 4), asks(4, 6)), "they fail together, and then alone"


@pytest.mark.parametrize(
    ("one", "other", "joined"), [(100, 199, True), (100, 100, True), (8, 511, False), (5, 500, False), (0, 1, False)]
)
def test_lengths_that_are_too_far_apart_share_no_batch(one: int, other: int, joined: bool) -> None:
    rules = padding(PaddingSpec({"ids": 0}, crops={"hidden": "ids"}, max_ratio=2.5))
    assert share({"ids": ids(1, one)}, {"ids": ids(1, other)}, rules) is joined


@pytest.mark.parametrize("ratio", [1.1, 2.0, 10.0])
def test_those_that_join_are_at_most_as_much_longer_as_allowed(ratio: float) -> None:
    rules = padding(PaddingSpec({"ids": 0}, crops={"hidden": "ids"}, max_ratio=ratio))
    classes: dict[Any, list[int]] = {}
    for length in range(1, 1200):
        classes.setdefault(rules.key([Tensor("ids", "INT64", (1, length), b"")], None), []).append(length)
    assert all(max(lengths) <= ratio * min(lengths) for lengths in classes.values())
    assert max(map(len, classes.values())) > 50, "and near lengths do join"


# --- what is joined ---


def test_rows_are_padded_to_the_longest_and_masks_with_zeros() -> None:
    sent = np.array([[1, 0]], np.int32)
    joined = padding().join([request(ids=ids(2, 3)), request(mask=sent, ids=ids(1, 2)), request(ids=ids(1, 4))])
    assert joined["ids"].tolist() == [[1, 2, 3, 7], [4, 5, 6, 7], [1, 2, 7, 7], [1, 2, 3, 4]]
    assert joined["mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert [joined[name].dtype.name for name in ("ids", "mask")] == ["int64", "int32"]


def test_a_batch_of_one_is_passed_as_it_is_with_its_mask() -> None:
    asked = request(ids=ids(2, 3))
    joined = padding().join([asked])
    assert joined["ids"].tolist() == ids(2, 3).tolist()
    assert np.shares_memory(joined["ids"], np.frombuffer(asked.tensors[0].data, np.uint8))
    assert joined["mask"].tolist() == [[1, 1, 1]] * 2
    assert joined["mask"].flags.c_contiguous


@pytest.mark.parametrize("rows", [(0, 2), (1, 0), (0, 0)])
def test_a_request_of_no_rows_may_be_the_longest(rows: tuple[int, int]) -> None:
    joined = padding().join([request(ids=ids(rows[0], 5)), request(ids=ids(rows[1], 3))])
    assert joined["ids"].shape == joined["mask"].shape == (sum(rows), 5)


def test_every_variable_axis_is_padded() -> None:
    rules = padding(PaddingSpec({"image": 255}), (IMAGE,), ())
    high, wide = np.zeros((1, 3, 2, 1), np.uint8), np.ones((1, 3, 1, 2), np.uint8)
    joined = rules.join([request(image=high), request(image=wide)])["image"]
    assert joined[:, 0].tolist() == [[[0, 255], [0, 255]], [[1, 1], [255, 255]]]


def test_a_mask_may_have_other_axes_than_its_input() -> None:
    frames, mask = TensorSpec("frames", "FP32", (-1, -1, 80)), TensorSpec("mask", "BOOL", (-1, 1, -1))
    rules = padding(PaddingSpec({"frames": 0.5}, {"mask": "frames"}), (frames, mask), ())
    shapes = [(1, 2, 80), (1, 3, 80)]
    joined = rules.join([request(frames=np.zeros(shape, np.float32)) for shape in shapes])
    assert joined["mask"].tolist() == [[[True, True, False]], [[True, True, True]]]
    assert joined["frames"][0, 2].tolist() == [0.5] * 80


def test_bytes_that_do_not_fit_are_named() -> None:
    asked = request(ids=ids(1, 3))
    asked.tensors[0].shape = (1, 4)
    with pytest.raises(InvalidInput, match="input 'ids': 24 bytes"):
        padding().join([asked])


# --- what each gets back ---


def test_each_gets_its_rows_as_long_as_they_were() -> None:
    rules, batch = padding(), [request(ids=ids(2, 3)), request(ids=ids(1, 5))]
    inputs = rules.join(batch)
    hidden = np.random.default_rng(0).random((3, 5, 4), np.float32)
    shares = rules.split(batch, inputs, {"hidden": hidden})
    assert np.array_equal(shares[0]["hidden"], hidden[:2, :3])
    assert np.array_equal(shares[1]["hidden"], hidden[2:])
    assert all(np.shares_memory(share["hidden"], hidden) for share in shares)


def test_the_only_variable_axis_of_an_input_gives_its_length_to_all_of_an_output() -> None:
    attention = TensorSpec("attention", "FP32", (-1, 2, -1, -1))
    rules = padding(PaddingSpec({"ids": 0}, crops={"attention": "ids"}), (IDS,), (attention,))
    batch = [request(ids=ids(1, 2)), request(ids=ids(1, 3))]
    shares = rules.split(batch, rules.join(batch), {"attention": np.zeros((2, 2, 3, 3), np.float32)})
    assert [share["attention"].shape for share in shares] == [(1, 2, 2, 2), (1, 2, 3, 3)]


def test_several_variable_axes_are_matched_in_their_order() -> None:
    segments = TensorSpec("segments", "UINT8", (-1, -1, -1))
    rules = padding(PaddingSpec({"image": 0}, crops={"segments": "image"}), (IMAGE,), (segments,))
    batch = [request(image=np.zeros((1, 3, *sizes), np.uint8)) for sizes in [(2, 5), (4, 6)]]
    shares = rules.split(batch, rules.join(batch), {"segments": np.zeros((2, 4, 6), np.uint8)})
    assert [share["segments"].shape for share in shares] == [(1, 2, 5), (1, 4, 6)]


def test_an_output_of_fixed_shape_is_only_split() -> None:
    rules = padding(PaddingSpec({"ids": 0}), (IDS,), (TensorSpec("vector", "FP32", (-1, 4)),))
    batch = [request(ids=ids(1, 2)), request(ids=ids(1, 3))]
    shares = rules.split(batch, rules.join(batch), {"vector": np.arange(8, dtype=np.float32).reshape(2, 4)})
    assert [share["vector"].tolist() for share in shares] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]


@pytest.mark.parametrize("lengths", [(5,), (5, 3)])
def test_an_output_with_other_lengths_than_its_input_is_refused_in_any_batch(lengths: tuple[int, ...]) -> None:
    rules, batch = padding(), [request(ids=ids(1, length)) for length in lengths]
    complaint = r"'hidden' has shape \[., 2, 4\] for input 'ids' .*padding\.crop\.hidden"
    with pytest.raises(InferenceFailed, match=complaint):
        rules.split(batch, rules.join(batch), {"hidden": np.zeros((len(batch), 2, 4), np.float32)})


def test_an_output_whose_rank_is_not_the_declared_one_is_refused() -> None:
    rules = padding(PaddingSpec({"ids": 0}), outputs=(TensorSpec("open", "FP32", (-1,)),))
    batch = [request(ids=ids(1, 3))]
    with pytest.raises(InferenceFailed, match=r"'open' has shape \[1, 3\], the signature says \[-1\]"):
        rules.split(batch, rules.join(batch), {"open": np.zeros((1, 3), np.float32)})


# --- what does not suit a model ---


@pytest.mark.parametrize(
    ("value", "datatype", "found"),
    [
        (1, "BOOL", np.bool_(1)), (255, "UINT8", np.uint8(255)), (2**64 - 1, "UINT64", np.uint64(2**64 - 1)),
        (-128.0, "INT8", np.int8(-128)), (-65504, "FP16", np.float16(-65504)), (0.1, "FP32", np.float32(0.1)),
        (1, "BF16", np.uint16(0x3F80)), (-2.5, "BF16", np.uint16(0xC020)), (1e308, "FP64", np.float64(1e308)),
    ],
)  # fmt: skip
def test_a_number_becomes_an_element_of_the_datatype(value: float, datatype: str, found: Any) -> None:
    assert element(value, datatype) == found
    assert element(value, datatype).dtype == found.dtype


@pytest.mark.parametrize(
    ("value", "datatype", "limit"),
    [
        (2, "BOOL", "from 0 to 1"), (256, "UINT8", "from 0 to 255"), (-1, "UINT64", "from 0 to 18446744073709551615"),
        (0.5, "INT8", "a whole number"), (1e5, "FP16", "65504"), (1e39, "FP32", "3.4"), (1e39, "BF16", "3.4"),
        (10**400, "FP64", "1.79"), (float("nan"), "FP32", "3.4"), (float("inf"), "INT8", "127"), (0, "BYTES", "BYTES"),
    ],
)  # fmt: skip
def test_a_number_that_the_datatype_lacks_is_refused_with_the_limits(value: float, datatype: str, limit: str) -> None:
    with pytest.raises(ValueError, match=limit):
        element(value, datatype)


VECTOR, STRINGS = TensorSpec("vector", "FP32", (-1, 4)), TensorSpec("strings", "BYTES", (-1, -1))
MAYBE = TensorSpec("maybe", "INT64", (-1, -1), optional=True)
EVERYTHING = (IDS, MASK, IMAGE, VECTOR, STRINGS, MAYBE)
CROP = {"hidden": "ids"}


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (PaddingSpec({"idx": 0}, crops=CROP), "padding.value.idx: the model has no input 'idx'; use one of 'ids',"),
        (PaddingSpec({"vector": 0}, crops=CROP), "padding.value.vector: input 'vector' of shape [-1, 4] has no varia"),
        (PaddingSpec({"strings": 0}, crops=CROP), "padding.value.strings: a BYTES input cannot"),
        (PaddingSpec({"ids": 0.5}, crops=CROP), "padding.value.ids: 0.5 is no INT64"),
        (PaddingSpec({"ids": 0}, {"masks": "ids"}, CROP), "padding.mask.masks: the model has no input 'masks'"),
        (PaddingSpec({"image": 0}, {"mask": "image"}, CROP), "padding.mask.mask is 'image' of shape [-1, 3, -1, -1]"),
        (
            PaddingSpec({"ids": 0}),
            "'hidden' of shape [-1, -1, 4] has variable axes, and parameters.padding.crop.hidden",
        ),
        (PaddingSpec({"ids": 0}, crops={"hiden": "ids"}), "padding.crop.hiden: the model has no output 'hiden'"),
        (PaddingSpec({"ids": 0}, crops={"hidden": "maybe"}), "input 'maybe' may be left out of a request"),
        (PaddingSpec({"maybe": 0}, {"mask": "maybe"}, CROP), "input 'maybe' may be left out of a request"),
        (PaddingSpec({"ids": 0}, crops={"hidden": "idx"}), "padding.crop.hidden: the model has no input 'idx'"),
        (PaddingSpec({"ids": 0}, crops={"hidden": "vector"}), "input 'vector' of shape [-1, 4] has no variable axis"),
        (PaddingSpec({"ids": 0}, crops={"hidden": "image"}), "padding.crop.hidden is 'image' of shape [-1, 3, -1, -1]"),
    ],
)
def test_what_does_not_suit_the_loaded_model_is_named(spec: PaddingSpec, complaint: str) -> None:
    model = ModelSpec("m", 1, "test", "", batching=BatchingSpec(padding=spec))
    with pytest.raises(LoadFailed) as caught:
        offered(model, Signature("test", EVERYTHING, (HIDDEN,), 8, model.batching))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("size", [0, 1])
def test_a_model_that_does_not_batch_cannot_pad(size: int) -> None:
    model = ModelSpec("m", 1, "test", "", batching=BatchingSpec(padding=SPEC))
    with pytest.raises(LoadFailed, match=rf"max_batch_size is {size}\): set max_batch_size to 2 or more"):
        offered(model, Signature("test", (IDS, MASK), (HIDDEN,), size, None))


def test_masks_may_be_left_out_by_clients_and_nothing_else() -> None:
    model = ModelSpec("m", 1, "test", "", batching=BatchingSpec(padding=SPEC))
    signature = Signature("test", (IDS, MASK), (HIDDEN,), 8, model.batching)
    assert {tensor.name: tensor.optional for tensor in offered(model, signature).inputs} == {"ids": False, "mask": True}
    plain = ModelSpec("m", 1, "test", "", batching=BatchingSpec())
    assert offered(plain, signature) is signature
