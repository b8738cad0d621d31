"""Tensors in the protocol's binary form, and their way to and from numpy."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.spec import ITEM_SIZE
from backends.tensor import (
    NUMPY_DTYPE,
    Tensor,
    array_to_bytes,
    bytes_to_array,
    datatype_of,
    element_bounds,
    element_count,
    elements,
    from_numpy,
)

NUMERIC = [datatype for datatype, size in ITEM_SIZE.items() if size]


def objects(*elements: object) -> npt.NDArray[Any]:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def packed(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def test_every_datatype_of_the_protocol_has_a_numpy_dtype_of_its_size() -> None:
    assert NUMPY_DTYPE.keys() == ITEM_SIZE.keys()
    assert {name: NUMPY_DTYPE[name].itemsize for name in NUMERIC} == {name: ITEM_SIZE[name] for name in NUMERIC}


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (2, 3), (0, 5), (2, 0, 3), (1, 1, 1, 2)])
def test_numbers_travel_as_they_are(datatype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(element_count(shape)).astype(NUMPY_DTYPE[datatype]).reshape(shape)
    tensor = from_numpy("x", array, datatype)
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, shape)
    assert len(tensor.data) == array.nbytes
    assert bytes(tensor.data) == array.tobytes()
    back = tensor.numpy()
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, shape, array.tobytes())


@pytest.mark.parametrize("datatype", [name for name in NUMERIC if name != "BF16"])
def test_the_datatype_is_told_from_the_dtype_in_either_byte_order(datatype: str) -> None:
    dtype = NUMPY_DTYPE[datatype]
    assert datatype_of(dtype) == datatype_of(dtype.newbyteorder(">")) == datatype


def test_a_contiguous_array_is_not_copied_and_neither_is_the_buffer() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = from_numpy("x", array)
    assert np.shares_memory(tensor.numpy(), array)
    assert np.shares_memory(Tensor("x", "FP32", (6,), memoryview(tensor.data)).numpy(), array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(24, dtype=np.int32)[::-2],
        np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        np.broadcast_to(np.int32(7), (2, 3)),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
    ],
)
def test_whatever_the_layout_in_memory_it_travels_row_major_and_little_endian(array: npt.NDArray[np.int32]) -> None:
    tensor = from_numpy("x", array)
    assert tensor.datatype == "INT32"
    assert bytes(tensor.data) == array.astype("<i4").tobytes("C")
    assert tensor.numpy().tolist() == array.tolist()


def test_bf16_travels_as_its_sixteen_bits() -> None:
    bits = np.array([0x3F80, 0x7FC0, 0xFFFF], dtype=np.uint16)
    tensor = from_numpy("x", bits, "BF16")
    assert (tensor.datatype, tensor.numpy().tolist()) == ("BF16", bits.tolist())
    assert from_numpy("x", bits).datatype == "UINT16"


@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.zeros(2), "FP32"),
        (np.zeros(2, np.float32), "BF16"),
        (np.zeros(2, np.int64), "INT32"),
        (np.zeros(2, np.int32), "FP32"),
        (np.zeros(2, np.uint8), "BOOL"),
        (objects(b"a"), "INT32"),
    ],
)
def test_an_array_is_not_sent_under_the_name_of_another_datatype(array: npt.NDArray[Any], datatype: str) -> None:
    with pytest.raises(TypeError, match=rf"'x': an array of {array.dtype} is no {datatype}"):
        from_numpy("x", array, datatype)


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "timedelta64[ms]", "longdouble", "V4", "i4,f4"])
def test_a_dtype_that_the_protocol_does_not_know_is_refused(dtype: str) -> None:
    with pytest.raises(TypeError):
        from_numpy("x", np.zeros(2, dtype=dtype))


# --- BYTES ---


@pytest.mark.parametrize(
    "items",
    [
        [],
        [b""],
        [b"", b""],
        [b"a"],
        [b"\0", b"ends in zeros\0\0"],
        [b"\x04\0\0\0looks packed"],
        ["ümläut".encode(), b"\xff\xfe not UTF-8"],
        [b"x" * 70_000],
    ],
)
def test_byte_strings_survive_whatever_they_hold(items: list[bytes]) -> None:
    tensor = from_numpy("x", objects(*items))
    assert (tensor.datatype, tensor.shape) == ("BYTES", (len(items),))
    assert bytes(tensor.data) == packed(*items)
    assert tensor.numpy().tolist() == items
    assert elements(tensor.data, element_bounds(tensor.data)) == items


@pytest.mark.parametrize(
    "array",
    [
        np.array([["a", "ü"], ["", "ccc"]]),
        np.array([["a", "ü"], ["", "ccc"]], dtype=object),
        np.array([["a", "ü"], ["", "ccc"]], dtype=np.dtypes.StringDType()),
    ],
)
def test_texts_become_utf8_in_row_major_order(array: npt.NDArray[Any]) -> None:
    assert array_to_bytes(array) == packed(b"a", "ü".encode(), b"", b"ccc")
    assert array_to_bytes(array.T) == packed(b"a", b"", "ü".encode(), b"ccc")
    assert from_numpy("x", array).shape == (2, 2)


@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4, 1)])
def test_byte_strings_take_their_shape(shape: tuple[int, ...]) -> None:
    array = bytes_to_array(packed(b"a", b"b", b"c", b"d"), shape)
    assert (array.shape, array.dtype) == (shape, np.dtype(object))
    assert array.reshape(-1).tolist() == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_byte_string_may_be_a_scalar(shape: tuple[int, ...]) -> None:
    assert bytes_to_array(packed(b"one"), shape).reshape(-1).tolist() == [b"one"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(), (0,), (2,), (4,), (2, 2), (0, 7)])
def test_a_wrong_number_of_byte_strings_is_refused_and_never_repeated(count: int, shape: tuple[int, ...]) -> None:
    data = packed(*[b"x"] * count)
    if count == element_count(shape):
        assert bytes_to_array(data, shape).shape == shape
    else:
        with pytest.raises(ValueError, match=rf"^{count} element\(s\), shape .* has {element_count(shape)}$"):
            bytes_to_array(data, shape)


@pytest.mark.parametrize("shape", [(-1,), (-1, -1), (2, -2)])
def test_byte_strings_of_a_negative_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="dimension|element"):
        bytes_to_array(packed(b"a"), shape)


@pytest.mark.parametrize("element", [3, None, 1.5, [1, 2], (b"a",), object(), True])
def test_what_is_neither_bytes_nor_text_is_refused_and_not_made_into_zeros(element: object) -> None:
    with pytest.raises(TypeError, match=f"an element of a BYTES tensor is {type(element).__name__}"):
        array_to_bytes(objects(b"good", element))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x01", "element 0 at offset 0: 1 byte(s) left, its length needs 4"),
        (b"\x01\0\0", "element 0 at offset 0: 3 byte(s) left, its length needs 4"),
        (b"\x01\0\0\0", "element 0 at offset 0: says 1 bytes, 0 are left"),
        (b"\xff\xff\xff\xffabc", "element 0 at offset 0: says 4294967295 bytes, 3 are left"),
        (packed(b"ab") + b"\x02\0\0\0a", "element 1 at offset 6: says 2 bytes, 1 are left"),
        (packed(b"ab", b"") + b"\0", "element 2 at offset 10: 1 byte(s) left, its length needs 4"),
    ],
)
def test_a_length_that_lies_is_told_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$".replace("(", r"\(").replace(")", r"\)")):
        element_bounds(data)
    with pytest.raises(ValueError, match="^element"):
        bytes_to_array(data, (1,))


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_a_long_buffer_is_walked_in_parts(size: int) -> None:
    items = [b"a", b"", b"ccc", b"\x01\0\0\0", b"e"]
    data, found, offset = packed(*items), list[bytes](), 0
    while offset < len(data):
        bounds = element_bounds(data, offset, len(found), len(found) + size)
        assert 1 <= len(bounds) - 1 <= size
        found += elements(data, bounds)
        offset = bounds[-1]
    assert found == items


def test_a_part_names_its_elements_as_the_whole_does() -> None:
    data = packed(b"ab", b"c") + b"\x09\0\0\0a"
    with pytest.raises(ValueError, match=r"^element 2 at offset 11: says 9 bytes, 1 are left$"):
        element_bounds(data, 6, 1, 5)


# --- shapes ---


def test_the_number_of_elements_cannot_overflow() -> None:
    assert element_count(()) == 1
    assert element_count((3, 0, 1 << 62)) == 0
    assert element_count((1 << 62, 1 << 62, 4)) == 1 << 126


@pytest.mark.parametrize("shape", [(5,), (2, 2), (1 << 40,), (0,)])
def test_a_buffer_that_does_not_fit_the_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="reshape"):
        Tensor("x", "FP32", shape, bytes(12)).numpy()
