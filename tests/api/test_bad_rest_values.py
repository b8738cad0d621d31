"""REST tensors with impossible values: numbers out of range, sizes that wrap around or do not fit, lengths that lie."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pytest

from support.rest import binary_body, rest_error
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

INTEGERS: Final = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("where", ["below", "above", "far above", "beyond 64 bits"])
def test_an_integer_out_of_range_is_refused_and_not_wrapped(server: Server, datatype: str, where: str) -> None:
    info = np.iinfo(datatype.lower())
    value = {"below": info.min - 1, "above": info.max + 1, "far above": info.max + 45, "beyond 64 bits": 10**25}[where]
    tensor = {"name": "x", "shape": [1, 2], "datatype": datatype, "data": [0, int(value)]}
    text = rest_error(server, f"identity_{datatype.lower()}", {"inputs": [tensor]})
    assert "'x'" in text
    assert str(value) in text
    assert str(info.max) in text


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("value", ["1.0", "1.5", "1e2", "true", '"1"', "null", "NaN", "Infinity", "{}"])
def test_an_integer_is_no_other_kind_of_value(server: Server, datatype: str, value: str) -> None:
    body = f'{{"inputs": [{{"name": "x", "shape": [1, 2], "datatype": "{datatype}", "data": [0, {value}]}}]}}'
    text = rest_error(server, f"identity_{datatype.lower()}", body.encode())
    assert "'x'" in text
    assert datatype in text


@pytest.mark.parametrize(("datatype", "value"), [("BOOL", v) for v in ("0", "1", '"true"', "null", "0.0")]
                         + [("BYTES", v) for v in ("0", "1.5", "true", "null", "{}")])  # fmt: skip
def test_booleans_and_strings_are_no_numbers(server: Server, datatype: str, value: str) -> None:
    body = f'{{"inputs": [{{"name": "x", "shape": [1, 1], "datatype": "{datatype}", "data": [{value}]}}]}}'
    text = rest_error(server, f"identity_{datatype.lower()}", body.encode())
    assert "'x'" in text
    assert datatype in text


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("FP32", "1e39"), ("FP32", "-1e39"), ("FP32", "1e400"), ("FP64", "1e400"), ("FP64", "-1e400")],
)
def test_a_real_out_of_range_is_refused_and_does_not_become_infinity(server: Server, datatype: str, value: str) -> None:
    body = f'{{"inputs": [{{"name": "x", "shape": [1, 1], "datatype": "{datatype}", "data": [{value}]}}]}}'
    text = rest_error(server, f"identity_{datatype.lower()}", body.encode())
    assert "'x'" in text
    assert "range" in text


@pytest.mark.parametrize("number", ["1" * 5000, "-" + "1" * 5000])
@pytest.mark.parametrize(
    "place",
    ['{"inputs": [{"name": "x", "shape": [%s], "datatype": "FP32", "data": [1]}]}',
     '{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [%s]}]}',
     '{"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [%s]}]}',
     '{"inputs": [], "parameters": {"a": %s}}', '{"inputs": [], "parameters": {"timeout": %s}}'],
)  # fmt: skip
def test_a_number_with_thousands_of_digits_is_rest_error(server: Server, place: str, number: str) -> None:
    rest_error(server, "echo", (place % number).encode())


# --- overflow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape", "size"),
    [
        ("identity_fp32", [4, 2**60 + 2], 32),  # 4 bytes an element: 32, modulo 2**64
        ("identity_fp32", [2**32, 2**32], 0),
        ("identity_fp32", [2**62, 1], 0),
        ("cube", [2**33, 2**31, 4], 0),
        ("cube", [2**33, 2**31, 4], 4),
        ("cube", [2**63 - 1, 2**63 - 1, 2**63 - 1], 4),
        ("identity_bytes", [2**32, 2**32], 0),
        ("identity_bytes", [2**63, 2], 4),
    ],
)
def test_a_shape_whose_size_wraps_around_is_rest_error(server: Server, model: str, shape: list[int], size: int) -> None:
    datatype = "BYTES" if model == "identity_bytes" else "FP32"
    tensor = {"name": "x", "shape": shape, "datatype": datatype}
    body, headers = binary_body({"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}, bytes(size))
    assert "'x'" in rest_error(server, model, body, headers)
    data = ["a"] if datatype == "BYTES" else [1]
    assert str(shape) in rest_error(server, model, {"inputs": [tensor | {"data": data}]})


@pytest.mark.parametrize("shape", [[0, 2**63 - 1], [0, 2**63], [0, 2**64], [2**70, 0], [0, 10**30]])
def test_a_shape_of_nothing_times_too_much_is_rest_error(server: Server, shape: list[int]) -> None:
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": []}
    assert "'x'" in rest_error(server, "identity_fp32", {"inputs": [tensor]})


# --- binary tensors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "sent", "words"),
    [
        (-1, 8, ["'x'", "-1"]),
        ("8", 8, ["'x'", "'8'"]),
        (8.0, 8, ["'x'", "8.0"]),
        (True, 8, ["'x'", "True"]),
        ([8], 8, ["'x'", "[8]"]),
        (None, 8, ["'x'", "data"]),
        (7, 8, ["1 byte"]),
        (9, 8, ["'x'", "9", "8"]),
        (8, 0, ["'x'", "8", "0"]),
        (4, 4, ["'x'", "8", "4"]),
        (12, 12, ["'x'", "8", "12"]),
        (0, 0, ["'x'", "8", "0"]),
        (0, 8, ["8 byte"]),
        (2**63, 8, ["'x'", str(2**63)]),
        (2**70, 8, ["'x'", str(2**70)]),
    ],
    ids=repr,
)
def test_binary_data_of_the_wrong_size(server: Server, size: Any, sent: int, words: list[str]) -> None:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    body, headers = binary_body({"inputs": [tensor]}, bytes(sent))
    text = rest_error(server, "echo", body, headers)
    for word in words:
        assert word in text


def test_sizes_whose_sum_is_off_by_one(server: Server) -> None:
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ]
    for sent, word in ((127, "'INPUT1'"), (129, "1 byte")):
        body, headers = binary_body({"inputs": inputs}, bytes(sent))
        assert word in rest_error(server, "simple", body, headers)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"abcd", ["element 0", "offset 0"]),  # no length at all: "abcd" is one, of 1.6 billion
        (b"\xff\xff\xff\xff", ["element 0", "4294967295"]),
        (struct.pack("<I", 3) + b"abc" + b"\1\0\0", ["element 1", "offset 7"]),
        (struct.pack("<I", 3) + b"abc" + struct.pack("<I", 5) + b"ab", ["element 1", "5", "2"]),
        (struct.pack("<I", 0), ["2", "1"]),
        (struct.pack("<I", 0) * 3, ["2", "3"]),
        (b"", ["2", "0"]),
        (b"\x80\x04\x95\x00", ["element 0"]),  # a pickle
    ],
)
@pytest.mark.parametrize("model", ["echo_strings", "identity_bytes"])
def test_strings_whose_lengths_lie(server: Server, model: str, data: bytes, words: list[str]) -> None:
    shape = [2] if model == "echo_strings" else [1, 2]
    tensor = {"name": "x", "shape": shape, "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    body, headers = binary_body({"inputs": [tensor]}, data)
    text = rest_error(server, model, body, headers)
    assert "'x'" in text
    for word in words:
        assert word in text
