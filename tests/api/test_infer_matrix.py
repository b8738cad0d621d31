"""Tensors of every datatype and many shapes come back unchanged through every client of the protocol."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from support.clients import DTYPE, PROTOCOLS, TRANSPORTS, Array, Refused, carries, floats, infer
from support.server import Server

DATATYPES: Final = tuple(DTYPE)
MATRIX: Final = [
    pytest.param(protocol, datatype, id=f"{protocol}-{datatype}")
    for protocol in PROTOCOLS
    for datatype in DATATYPES
    if carries(protocol, datatype)
]
SHAPES: Final = ((2, 3), (1, 1), (1, 7), (0, 3), (2, 0), (0, 0))
#: Clients that carry any bytes; JSON carries text only.
RAW: Final = tuple(protocol for protocol in PROTOCOLS if protocol != "rest-json")
#: aiohttp's advice to those who send much in one piece, as tritonclient does.
_LARGE: Final = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")

_INTEGERS: Final = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
_REALS: Final = ("FP16", "BF16", "FP32", "FP64")
_TEXTS: Final = (b"", b"a", "h\u00e9llo \U0001f642".encode(), b'line\nbreak "quoted" \\ \x7f', b"x" * 70_000)


def extremes(datatype: str) -> list[Any]:
    """Values of a datatype that are easily lost on the way."""
    if datatype in _INTEGERS:
        info = np.iinfo(DTYPE[datatype])
        return [info.min, info.max, 0, 1, info.max - 1, info.min + 1]
    if datatype == "BOOL":
        return [True, False, False, True]
    if datatype == "BYTES":
        return list(_TEXTS)
    tiny = 1e-7 if datatype in ("FP16", "BF16") else float(np.finfo(DTYPE[datatype]).smallest_subnormal)
    largest = 3.0e38 if datatype == "BF16" else float(np.finfo(DTYPE[datatype]).max)
    return [0.0, -0.0, 0.1, 1 / 3, -largest, largest, tiny, 12345.678]


def tensor(datatype: str, shape: tuple[int, ...]) -> Array:
    """The extremes, repeated until the shape is full."""
    values = np.empty(len(extremes(datatype)), DTYPE[datatype])
    values[:] = extremes(datatype)
    return np.resize(values, shape) if 0 not in shape else np.empty(shape, DTYPE[datatype])


def assert_same(found: Array, expected: Array) -> None:
    """Equal in shape and in every bit."""
    assert found.shape == expected.shape
    if expected.dtype == np.object_:
        assert found.tolist() == expected.tolist()
    else:
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("protocol", "datatype"), MATRIX)
def test_a_matrix_comes_back_unchanged(server: Server, protocol: str, datatype: str) -> None:
    for shape in SHAPES:
        given = tensor(datatype, shape)
        answer = infer(protocol, server, f"identity_{datatype.lower()}", {"x": given})
        assert_same(answer.outputs["y"], given)
        assert (answer.model, answer.version) == (f"identity_{datatype.lower()}", "1")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES"])
def test_a_scalar_has_the_shape_of_no_dimensions(server: Server, protocol: str, datatype: str) -> None:
    given = tensor(datatype, (1,)).reshape(())
    answer = infer(protocol, server, f"scalar_{datatype.lower()}", {"x": given})
    assert_same(answer.outputs["y"], given)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name in ("FP32", "FP64", "INT64", "UINT64")])
def test_no_value_is_rounded(server: Server, protocol: str, datatype: str) -> None:
    """Every bit pattern of a sample survives, over JSON as well: decimal text has to be exact."""
    bits = np.random.default_rng(seed=4).integers(0, 256, (64 * 50, 8), np.uint8).tobytes()
    values = np.frombuffer(bits, DTYPE[datatype]).reshape(50, -1)
    if datatype.startswith("FP"):
        values = np.where(np.isfinite(values), values, values.dtype.type(1.5))
    assert_same(infer(protocol, server, f"identity_{datatype.lower()}", {"x": values}).outputs["y"], values)


@pytest.mark.parametrize(("protocol", "datatype"), [case for case in MATRIX if case.values[1] in _REALS])
def test_nan_and_infinities_come_back(server: Server, protocol: str, datatype: str) -> None:
    given = np.array([[np.nan, np.inf, -np.inf, 1.5]], DTYPE[datatype])
    found = infer(protocol, server, f"identity_{datatype.lower()}", {"x": given}).outputs["y"]
    assert np.isnan(found.astype(np.float64)).tolist() == [[True, False, False, False]]
    assert found[0, 1:].tolist() == given[0, 1:].tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["identity_bytes", "echo_strings"])
def test_text_with_nul_characters_is_not_cut(server: Server, protocol: str, model: str) -> None:
    given = np.array([b"\0", b"a\0b", b"end\0", b"\0\0\0\0"], np.object_)
    given = given.reshape(2, 2) if model == "identity_bytes" else given
    assert_same(infer(protocol, server, model, {"x": given}).outputs["y"], given)


@pytest.mark.parametrize("protocol", RAW)
def test_bytes_that_are_no_text_come_back_in_binary_form(server: Server, protocol: str) -> None:
    given = np.array([b"\xff\xfe", bytes(range(256)), b"", b"\xc3", b"\x00\x80" * 40_000], np.object_)
    assert_same(infer(protocol, server, "echo_strings", {"x": given}).outputs["y"], given)


@_LARGE
@pytest.mark.parametrize("protocol", RAW)
def test_16_mib_go_there_and_back(server: Server, protocol: str) -> None:
    given = np.random.default_rng(seed=5).random((4, 1 << 20), np.float32)
    assert_same(infer(protocol, server, "identity_fp32", {"x": given}).outputs["y"], given)


def test_100_000_values_go_there_and_back_as_json(server: Server) -> None:
    given = np.random.default_rng(seed=6).random((10, 10_000), np.float32)
    assert_same(infer("rest-json", server, "identity_fp32", {"x": given}).outputs["y"], given)


@_LARGE
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_16_mib_of_strings_go_there_and_back(server: Server, protocol: str) -> None:
    given = np.array([bytes([65 + index % 26]) * (1 << 14) for index in range(1 << 10)], np.object_)
    assert_same(infer(protocol, server, "echo_strings", {"x": given}).outputs["y"], given)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("id", ["", "42", 'an \u00efd \U0001f642 "quoted"', "x" * 10_000])
def test_the_id_is_echoed(server: Server, protocol: str, id: str) -> None:
    assert infer(protocol, server, "echo", floats(1), id=id).id == id


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("outputs", [("OUTPUT0",), ("OUTPUT1",), ("OUTPUT0", "OUTPUT1"), ("OUTPUT1", "OUTPUT0"), ()])
def test_only_the_outputs_asked_for_come_and_all_without_a_list(
    server: Server, protocol: str, outputs: tuple[str, ...]
) -> None:
    given = {"INPUT0": np.arange(16, dtype=np.int32)[None], "INPUT1": np.full((1, 16), 2, np.int32)}
    answer = infer(protocol, server, "simple", given, outputs=outputs)
    assert list(answer.outputs) == list(outputs or ("OUTPUT0", "OUTPUT1"))
    expected = {"OUTPUT0": given["INPUT0"] + 2, "OUTPUT1": given["INPUT0"] - 2}
    for name, found in answer.outputs.items():
        assert_same(found, expected[name])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inputs_may_come_in_any_order(server: Server, protocol: str) -> None:
    given = {"INPUT1": np.full((2, 16), 3, np.int32), "INPUT0": np.full((2, 16), 10, np.int32)}
    answer = infer(protocol, server, "simple", given, outputs=("OUTPUT1",))
    assert_same(answer.outputs["OUTPUT1"], np.full((2, 16), 7, np.int32))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("version", "added", "served"), [("1", 0, "1"), ("2", 1, "2"), ("", 1, "2")])
def test_a_version_is_chosen_by_number_and_else_the_newest_answers(
    server: Server, protocol: str, version: str, added: int, served: str
) -> None:
    answer = infer(protocol, server, "versions", floats(1, 2), version=version)
    assert answer.version == served
    assert answer.outputs["y"].tolist() == [1 + added, 2 + added]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_name_may_hold_what_a_url_has_to_quote(server: Server, protocol: str) -> None:
    answer = infer(protocol, server, "a name+\u00fc%41", floats(1, 2))
    assert answer.model == "a name+\u00fc%41"
    assert answer.outputs["y"].tolist() == [1, 2]


@pytest.mark.parametrize("protocol", ["rest", "rest-json", "rest-aio", "grpc", "grpc-aio"])
@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_a_request_may_be_compressed(server: Server, protocol: str, compression: str) -> None:
    given = tensor("FP32", (100, 100))
    answer = infer(protocol, server, "identity_fp32", {"x": given}, compression=compression)
    assert_same(answer.outputs["y"], given)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parameters_reach_the_model(server: Server, protocol: str) -> None:
    """The echo backend fails with the text that a parameter gives it."""
    with pytest.raises(Refused) as refused:
        infer(protocol, server, "echo", floats(1), parameters={"fail": "as \u00fc asked"})
    assert refused.value.meaning == "failed"
    assert "as \u00fc asked" in refused.value.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parameters_of_every_kind_are_taken(server: Server, protocol: str) -> None:
    parameters = {"text": "x", "whole": 7, "negative": -7, "real": 0.5, "yes": True, "priority_class": "high"}
    assert infer(protocol, server, "echo", floats(1), parameters=parameters).outputs["y"].tolist() == [1]


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_model_asks_for_the_clients_error_by_invalid_input(server: Server, protocol: str) -> None:
    with pytest.raises(Refused) as refused:
        infer(protocol, server, "echo", floats(1), parameters={"invalid": "x must be a prime"})
    assert (refused.value.meaning, refused.value.text) == ("invalid", "x must be a prime")
