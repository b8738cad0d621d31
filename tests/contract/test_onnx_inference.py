"""Requests to the ONNX backend, and whose fault a failure is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import onnx_models
from support.loading import run
from support.onnx_models import load, save

pytest.importorskip("onnxruntime", reason="pip install 'tensorgate[onnx]'")

from backends.errors import InferenceFailed, InvalidInput

FP32 = np.float32


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros(4, FP32), "Invalid rank for input: x"),
        (np.zeros((1, 5), FP32), "index: 1 Got: 5 Expected: 4"),
        (np.zeros((1, 4), np.int32), "Unexpected input data type"),
    ],
)
def test_an_input_that_does_not_fit_is_the_requests_fault(tmp_path: Path, x: Any, words: str) -> None:
    backend, _ = load(onnx_models.add_one(("batch", 4)), tmp_path)
    with pytest.raises(InvalidInput, match=words):
        run(backend, x=x)
    np.testing.assert_array_equal(run(backend, x=np.zeros((1, 4), FP32))["y"], np.ones((1, 4)))


def test_an_input_that_does_not_fit_a_model_of_bf16_is_the_requests_fault(tmp_path: Path) -> None:
    backend, _ = load(onnx_models.identity("BF16", ("batch", 4)), tmp_path)
    for shape in [(4,), (1, 5)]:
        with pytest.raises(InvalidInput, match="for input: x"):
            run(backend, x=np.zeros(shape, np.uint16))


def test_bad_values_are_the_requests_fault_and_the_next_request_works(tmp_path: Path) -> None:
    backend, _ = load(onnx_models.picks_from_table(), tmp_path)
    with pytest.raises(InvalidInput, match="out of data bounds"):
        run(backend, x=[[1], [99]])
    np.testing.assert_array_equal(run(backend, x=[[1], [3]])["y"], [[10], [30]])


def test_a_failure_inside_of_the_model_is_its_own(tmp_path: Path) -> None:
    backend, _ = load(onnx_models.halves(), tmp_path)
    with pytest.raises(InferenceFailed, match="Reshape"):
        run(backend, x=np.zeros(3, FP32))
    assert run(backend, x=np.zeros(4, FP32))["y"].shape == (2, 2)


def test_bytes_that_are_not_utf8_are_refused_with_input_and_element(tmp_path: Path) -> None:
    backend, _ = load(onnx_models.join_strings(), tmp_path)
    suffix = np.array([[b"!"], [b"?"]], object)
    with pytest.raises(InvalidInput, match=r"input 'x', element 1: not UTF-8 .* at byte 2"):
        run(backend, x=np.array([[b"good"], [b"ab\xff"]], object), suffix=suffix)
    answers = run(backend, x=np.array([["grün".encode()], [b"a\0b"]], object), suffix=suffix)
    assert answers["y"].tolist() == [["grün!".encode()], [b"a\0b?"]]


def test_a_string_of_the_model_that_is_not_utf8_fails_that_request_only(tmp_path: Path) -> None:
    backend, _ = load(onnx_models.gives_bad_strings(), tmp_path)
    x = np.ones(1, FP32)
    with pytest.raises(InferenceFailed, match="not UTF-8"):
        run(backend, x=x)
    np.testing.assert_array_equal(backend.infer({"x": x}, ("z",), {})["z"], x)


def test_views_of_any_layout_are_read_right(tmp_path: Path) -> None:
    """Batches are views of received bytes: not aligned, not writable."""
    data = bytearray(1) + np.arange(6, dtype=FP32).tobytes()
    unaligned = np.frombuffer(memoryview(data).toreadonly()[1:], FP32).reshape(2, 3)
    transposed = np.arange(6, dtype=np.uint16).reshape(3, 2).T
    backend, _ = load(onnx_models.identity(), tmp_path)
    np.testing.assert_array_equal(run(backend, x=unaligned)["y"], unaligned)
    np.testing.assert_array_equal(run(backend, x=unaligned.T)["y"], unaligned.T)
    backend, _ = load(onnx_models.identity("BF16"), tmp_path)
    np.testing.assert_array_equal(run(backend, x=transposed)["y"], transposed)


def test_several_inputs_and_outputs_do_not_get_mixed_up(tmp_path: Path) -> None:
    backend, _ = load(onnx_models.add_sub(), tmp_path)
    a, b = np.full((1, 16), 5, np.int32), np.full((1, 16), 3, np.int32)
    answers = backend.infer({"INPUT1": b, "INPUT0": a}, ("OUTPUT1", "OUTPUT0"), {})
    assert (answers["OUTPUT0"] == 8).all()
    assert (answers["OUTPUT1"] == 2).all()


def test_a_slow_model_gives_its_input(tmp_path: Path) -> None:
    backend, signature = load(onnx_models.slow(rounds=3), tmp_path)
    assert signature.inputs[0].shape == (-1, -1)
    np.testing.assert_array_equal(run(backend, x=np.ones((2, 3), FP32))["y"], np.ones((2, 3)))


# --- a quiet guest ---------------------------------------------------------------------------------------------------


FAILING_CODE = """
import sys
import numpy as np
from backends.errors import InvalidInput, LoadFailed
from backends.onnx.backend import OnnxBackend
from backends.spec import ModelSpec
good, bad = (ModelSpec("model", 1, "onnx", path) for path in sys.argv[1:])
backend = OnnxBackend()
backend.load(good)
for shape in [(1, 1), (1,)]:
    try:
        backend.infer({"x": np.full(shape, 99)}, ("y",), {})
    except InvalidInput:
        pass
    else:
        raise SystemExit("the bad request was answered")
try:
    OnnxBackend().load(bad)
except LoadFailed:
    pass
else:
    raise SystemExit("the bad model was loaded")
assert "onnx" not in sys.modules
"""


def test_errors_are_raised_and_not_printed_and_nothing_is_reported_or_written_at_home(tmp_path: Path) -> None:
    """Left to itself, onnxruntime logs each error to stderr, and opens a database of telemetry in the home folder."""
    home = tmp_path / "home"
    home.mkdir()
    good = save(onnx_models.picks_from_table(), tmp_path / "good")
    bad = save(onnx_models.with_external_data("weights.bin"), tmp_path / "bad")
    (bad / "weights.bin").write_bytes(b"1234")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", FAILING_CODE, str(good), str(bad)],
        env={**environment, "HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.iterdir()) == []
