"""Tensors that do not fit the model: refused with a text that names field and mend, whichever client sent them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.clients import PROTOCOLS, Array, Refused, floats, infer
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")


def zeros(*shape: int, dtype: Any = np.float32) -> Array:
    """A tensor of no interest but for its form."""
    return np.zeros(shape, dtype)


def pair(first: Array, second: Array) -> dict[str, Array]:
    """The inputs of ``simple``, INT32 [1 to 8, 16] both."""
    return {"INPUT0": first, "INPUT1": second}


ROW = zeros(1, 16, dtype=np.int32)

CASES: dict[str, tuple[str, dict[str, Array], dict[str, Any], str, list[str]]] = {
    "unknown model": ("nobody", floats(1), {}, "not found", ["Request for unknown model: 'nobody' is not found"]),
    "unknown version": (
        "versions", floats(1), {"version": "7"}, "not found",
        ["Request for unknown model: 'versions' version 7", "1, 2"],
    ),
    "version that is no number": ("versions", floats(1), {"version": "v1"}, "not found", ["version v1 is not found"]),
    "version 0": ("versions", floats(1), {"version": "0"}, "not found", ["version 0 is not found"]),
    "unknown input": ("echo", {"z": zeros(1)}, {}, "invalid", ["'z'", "echo", "inputs are x"]),
    "one input too many": ("echo", {"x": zeros(1), "z": zeros(1)}, {}, "invalid", ["'z'", "inputs are x"]),
    "input missing": ("simple", {"INPUT0": ROW}, {"outputs": ()}, "invalid", ["missing", "INPUT1"]),
    "no inputs": ("echo", {}, {}, "invalid", ["missing", "x"]),
    "wrong datatype": ("echo", {"x": zeros(1, dtype=np.int32)}, {}, "invalid", ["'x'", "INT32", "expects FP32"]),
    "numbers for text": ("echo_strings", {"x": zeros(1)}, {}, "invalid", ["'x'", "FP32", "expects BYTES"]),
    "too few dimensions": ("identity_fp32", {"x": zeros(2)}, {}, "invalid", ["'x'", "[-1, -1]", "[2]"]),
    "too many dimensions": ("echo", {"x": zeros(2, 1)}, {}, "invalid", ["'x'", "[-1]", "[2, 1]"]),
    "scalar for a vector": ("echo", {"x": zeros()}, {}, "invalid", ["'x'", "[-1]", "[]"]),
    "vector for a scalar": ("scalar_fp32", {"x": zeros(1)}, {}, "invalid", ["'x'", "[1]", "[]"]),
    "fixed size": (
        "simple", pair(ROW, zeros(1, 15, dtype=np.int32)), {"outputs": ()}, "invalid",
        ["'INPUT1'", "[-1, 16]", "[1, 15]"],
    ),
    "fixed size with nothing": ("one_string", {"x": np.empty(0, np.object_)}, {}, "invalid", ["'x'", "[1]", "[0]"]),
    "batch too large": (
        "simple", pair(*[zeros(9, 16, dtype=np.int32)] * 2), {"outputs": ()}, "invalid", ["batch", "8", "9"],
    ),
    "batches that differ": (
        "simple", pair(ROW, zeros(2, 16, dtype=np.int32)), {"outputs": ()}, "invalid", ["INPUT0", "INPUT1", "1", "2"],
    ),
    "unknown output": ("echo", floats(1), {"outputs": ("z",)}, "invalid", ["'z'", "echo", "outputs are y"]),
    "one unknown output": ("echo", floats(1), {"outputs": ("y", "z")}, "invalid", ["'z'", "outputs are y"]),
    "the same output twice": ("echo", floats(1), {"outputs": ("y", "y")}, "invalid", ["'y'", "once"]),
    "values that the model refuses": ("table", {"x": np.array([[99]], np.int64)}, {}, "invalid", ["indices", "99"]),
}  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_refused_by_name(server: Server, protocol: str, case: str) -> None:
    model, inputs, more, meaning, words = CASES[case]
    with pytest.raises(Refused) as refused:
        infer(protocol, server, model, inputs, **more)
    assert refused.value.meaning == meaning, refused.value
    for word in words:
        assert word in refused.value.text


@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol != "rest-json"])
@pytest.mark.parametrize("element", [b"\xff\xfe", b"ok \xc3", b"\xed\xa0\x80"])
def test_strings_of_an_onnx_model_have_to_be_utf8(server: Server, protocol: str, element: bytes) -> None:
    given = np.array([[b"good", element]], np.object_)
    with pytest.raises(Refused) as refused:
        infer(protocol, server, "identity_bytes", {"x": given})
    assert refused.value.meaning == "invalid", refused.value
    assert "'x'" in refused.value.text
    assert "element 1" in refused.value.text
    assert "UTF-8" in refused.value.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("parameter", ["delay_ms", "crash", "print_bytes"])
def test_a_parameter_that_the_model_cannot_read_is_the_clients_fault(
    server: Server, protocol: str, parameter: str
) -> None:
    with pytest.raises(Refused) as refused:
        infer(protocol, server, "echo", floats(1), parameters={parameter: "soon"})
    assert refused.value.meaning == "invalid", refused.value
    assert parameter in refused.value.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bad_request_leaves_good_ones_on_the_same_model_alone(server: Server, protocol: str) -> None:
    for _ in range(3):
        with pytest.raises(Refused):
            infer(protocol, server, "identity_bytes", {"x": zeros(1, 1)})
        given = np.array([[b"good", "\u00fc".encode()]], np.object_)
        answer = infer(protocol, server, "identity_bytes", {"x": given})
        assert answer.outputs["y"].tolist() == given.tolist()
