"""A large JSON request is decoded in slices: with the same outcome as in one go, wherever the slices fall."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.tensor import Tensor, pack_elements
from gateway.errors import GatewayError
from gateway.inference.request import InferRequest, InferResponse
from gateway.inference.slices import whole
from gateway.rest.v2 import cut, jsonslices
from gateway.rest.v2.decode import Wanted, decode, decode_in_slices
from gateway.rest.v2.encode import encode, encode_in_slices

Decode = Callable[[bytes], tuple[InferRequest, Wanted]]

LIMIT = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def tiny_slices() -> Iterator[None]:
    """A few bytes a slice: they end inside of everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "SLICE", 7)
        patch.setattr(jsonslices, "SLICE", 16)
        patch.setattr(jsonslices, "SLICE_ELEMENTS", 2)
        yield


def outcome(decode: Decode, body: bytes) -> Any:
    """What was decoded, with the data as bytes; or the error's class and text."""
    try:
        request, wanted = decode(body)
    except GatewayError as error:
        return type(error), str(error)
    for tensor in request.inputs:
        tensor.data = bytes(tensor.data)
    return request, wanted


def in_one_go(body: bytes) -> tuple[InferRequest, Wanted]:
    return decode("m", "1", body, None, LIMIT)


def in_slices(body: bytes) -> tuple[InferRequest, Wanted]:
    return whole(decode_in_slices("m", "1", body, None, LIMIT))


def request(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": inputs, **more}, ensure_ascii=False).encode()


def tensor(datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": "x", "shape": shape, "datatype": datatype, "data": data}


texts = st.text(st.sampled_from('ab",[]{}:\\é\n'), max_size=9)
NESTED = {"FP32": st.floats(width=32), "INT8": st.integers(-129, 128), "BOOL": st.booleans(), "BYTES": texts}


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    """A matrix, flat or nested, sometimes with a shape that is not its own."""
    datatype = draw(st.sampled_from(sorted(NESTED)))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    data: list[Any] = [draw(NESTED[datatype]) for _ in range(rows * columns)]
    if draw(st.booleans()):
        data = [data[row * columns : (row + 1) * columns] for row in range(rows)]
    shape = draw(st.sampled_from([[rows, columns], [rows, columns], [rows, columns], [columns]]))
    return tensor(datatype, shape, data)


@given(st.lists(tensors(), min_size=1, max_size=3), st.dictionaries(texts, texts, max_size=2))
def test_any_request_is_decoded_as_in_one_go(inputs: list[dict[str, Any]], parameters: dict[str, str]) -> None:
    body = request(*inputs, parameters=parameters, id='"data": [1, 2')
    assert outcome(in_slices, body) == outcome(in_one_go, body)


@pytest.mark.parametrize(
    "data",
    [
        "[]", "[1]", "[1, 2, 3]", " [ 1 , 2 ,3 ] ", "[[1], [2, 3]]", "[1, [2, [3]]]", "[1.5, 2, -3e2]",
        "[1, NaN, -Infinity]", "[1, null, 3]", '[1, "2", 3]', "[1, {}, 3]", "[1, 2, 3, 4]", "[1, 2, 1e999]",
        "[1, 2, 1e39]", "[1,, 2, 3]", "[1, 2, 3,]", "[,1, 2, 3]", "[1 2 3]", "[1, 2 3]", "[1, 2, 3]]", "5", "null",
        '"x"', "{}", "[" * 101 + "1" + "]" * 101, "[1, 0x2, 3]", "[1, 02, 3]", "[true, 2, 3]",
    ],
)  # fmt: skip
def test_any_data_is_taken_or_refused_in_the_same_words(data: str) -> None:
    body = b'{"id": "an id", "inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": %s}]}'
    text = body % data.encode()
    assert outcome(in_slices, text) == outcome(in_one_go, text)


@pytest.mark.parametrize(
    "data",
    ["[1, 2, 4", "[1, 2, 3}", "[1, 2, [3}]", "[[1, 2] [3]]", "[1, 2, nan]", '[[1], ["2"], [3]]', '[1, {"a": [2]}]'],
)
def test_what_is_broken_in_several_places_is_refused_for_one_of_them(data: str) -> None:
    text = b'{"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": %s}]}' % data.encode()
    found, expected = outcome(in_slices, text), outcome(in_one_go, text)
    assert found[0] is expected[0]
    assert found[1].partition(":")[0] == expected[1].partition(":")[0]


@pytest.mark.parametrize(
    "data",
    [
        '["a", "b", "c"]', '["a\\\\", "\\"b", "c,"]', '["\\\\\\"", "],[", "}"]', '["é", "\\u00e9", "\\ud83d\\ude00"]',
        '[["a"], ["b", "c"]]', '["a" "b", "c"]', '["a", "b", 3]', '["a", "b", "c', '["a", "b", "c\\"]', "[[], []]",
    ],
)  # fmt: skip
def test_strings_are_told_from_what_looks_like_structure(data: str) -> None:
    text = b'{"inputs": [{"data": %s, "name": "x", "shape": [3], "datatype": "BYTES"}]}' % data.encode()
    found, expected = outcome(in_slices, text), outcome(in_one_go, text)
    if isinstance(expected[0], type) and "'data'" not in expected[1]:
        assert found[0] is expected[0]  # the text itself is broken: the words may name another place
    elif data != "[[], []]":
        assert found == expected


@given(st.binary(max_size=80) | st.text(st.sampled_from('{}[]":,\\ data1'), max_size=80).map(str.encode))
@example(b'{"inputs":[{"data":[')
@example(b'{"inputs":[{"data":[}]')
def test_rubbish_is_refused_and_nothing_else_happens(body: bytes) -> None:
    expected = outcome(in_one_go, body)
    found = outcome(in_slices, body)
    assert found == expected or found[0] is expected[0]


@given(st.lists(st.floats(width=32), max_size=20), st.lists(texts, max_size=9))
def test_any_answer_is_encoded_as_in_one_go(numbers: list[float], strings: list[str]) -> None:
    response = InferResponse(
        "m",
        "1",
        [
            Tensor("numbers", "FP32", (len(numbers),), np.array(numbers, "<f4").tobytes()),
            Tensor("strings", "BYTES", (len(strings),), pack_elements(strings)),
            Tensor("raw", "INT8", (2,), b"ab"),
        ],
        lambda: None,
    )
    wanted = Wanted(frozenset({"raw"}), False)
    found, length = whole(encode_in_slices(response, wanted))
    expected, expected_length = encode(response, wanted)
    assert found[length:] == expected[expected_length:] == b"ab"
    # numbers that are not finite make all others of their slice longer, not different
    as_json = [
        json.loads(text[:size], parse_float=np.float32) for text, size in ((found, length), (expected, expected_length))
    ]
    assert repr(as_json[0]) == repr(as_json[1])
