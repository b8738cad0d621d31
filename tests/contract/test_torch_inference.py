"""Requests to the torch backend, and whose fault a failure is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

from backends.contract import Backend
from backends.errors import InferenceFailed, InvalidInput
from backends.rows import split
from backends.spec import TensorSpec
from backends.tensor import NUMPY_DTYPE
from support import torch_models, torch_modules
from support.loading import Loading, run, tensors
from support.torch_models import LINEAR, LINEAR_IO, ROWS, X_TO_Y, script

FP32 = np.float32
load = Loading("torch").load


SHAPES = [(2, 3), (1, 1), (0, 3), (2, 0), (0, 0)]


def sample(datatype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    dtype = NUMPY_DTYPE[datatype]
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """Every datatype that torch has, any shape of two dimensions."""
    folder = tmp_path_factory.mktemp("identities")
    return load(torch_models.identities(tuple(torch_models.DTYPE), (-1, -1), folder))[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_datatype_passes_unchanged(identities: Backend, shape: tuple[int, ...]) -> None:
    inputs = {f"IN_{datatype}": sample(datatype, shape) for datatype in torch_models.DTYPE}
    answers = identities.infer(inputs, (), {})
    assert len(answers) == 13
    for datatype in torch_models.DTYPE:
        answer = answers[f"OUT_{datatype}"]
        assert answer.dtype == NUMPY_DTYPE[datatype]
        assert answer.shape == shape
        np.testing.assert_array_equal(answer, inputs[f"IN_{datatype}"])


@pytest.mark.parametrize("datatype", ["FP32", "BF16", "INT64", "BOOL"])
def test_scalars_pass_unchanged(tmp_path: Path, datatype: str) -> None:
    backend, signature = load(torch_models.identities((datatype,), (), tmp_path))
    assert signature.inputs == (TensorSpec(f"IN_{datatype}", datatype, ()),)
    given = sample(datatype, (1,)).reshape(())
    answer = backend.infer({f"IN_{datatype}": given}, (), {})[f"OUT_{datatype}"]
    assert answer.shape == ()
    np.testing.assert_array_equal(answer, given)


def test_an_answer_that_is_the_input_is_in_memory_of_its_own(tmp_path: Path) -> None:
    """The input's memory is used again as soon as the call is over."""
    backend, _ = load(torch_models.identities(("FP32", "BF16"), (-1, -1), tmp_path))
    inputs = {f"IN_{datatype}": sample(datatype, (3, 5)) for datatype in ("FP32", "BF16")}
    kept = {name: array.copy() for name, array in inputs.items()}
    references = [weakref.ref(array) for array in inputs.values()]
    answers = backend.infer(inputs, (), {})
    for array in inputs.values():
        array[...] = 0
    for name, expected in kept.items():
        np.testing.assert_array_equal(answers[name.replace("IN", "OUT")], expected)
    del inputs, array
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("kind", ["script", "export"])
def test_a_model_that_writes_to_its_input_writes_to_a_copy(tmp_path: Path, kind: str) -> None:
    """Inputs may lie in memory that this process must not write to: it would be killed."""
    module = torch_modules.WritesInput()
    if kind == "script":
        backend = script(module, tmp_path, **X_TO_Y)
    else:
        backend, _ = load(torch_models.rowwise(module, 4, folder=tmp_path))
    given = np.frombuffer(ROWS.tobytes(), FP32).reshape(2, 4)
    (answer,) = backend.infer({"x": given}, (), {}).values()
    np.testing.assert_array_equal(answer, (ROWS + 1) * 2)
    np.testing.assert_array_equal(given, ROWS)


def test_views_of_any_layout_are_read_right(identities: Backend) -> None:
    """Batches are views of received bytes: not aligned, not writable."""
    data = bytearray(1) + np.arange(6, dtype=FP32).tobytes()
    unaligned = np.frombuffer(memoryview(data).toreadonly()[1:], FP32).reshape(2, 3)
    inputs = {f"IN_{datatype}": sample(datatype, (2, 3)) for datatype in torch_models.DTYPE}
    for view in (unaligned, unaligned[::-1], np.asfortranarray(unaligned), unaligned[:, ::-1]):
        answers = identities.infer({**inputs, "IN_FP32": view}, ("OUT_FP32",), {})
        np.testing.assert_array_equal(answers["OUT_FP32"], view)


def test_exactly_the_requested_outputs_are_answered(add_sub: Path) -> None:
    backend, _ = load(add_sub)
    inputs = {"left": ROWS * 3, "right": ROWS}
    assert backend.infer(inputs, ("OUTPUT__1",), {}).keys() == {"OUTPUT__1"}
    both = backend.infer(inputs, ("OUTPUT__1", "OUTPUT__0"), {})
    np.testing.assert_array_equal(both["OUTPUT__1"], ROWS * 2)
    np.testing.assert_array_equal(both["OUTPUT__0"], ROWS * 4)


def test_wrong_names_and_types_are_the_requests_fault(add_sub: Path) -> None:
    backend, _ = load(add_sub)
    with pytest.raises(InvalidInput, match="missing: right"):
        run(backend, left=ROWS)
    with pytest.raises(InvalidInput, match="no tensor 'up'; it has left, right, OUTPUT__0"):
        run(backend, left=ROWS, right=ROWS, up=ROWS)
    with pytest.raises(InvalidInput, match="no tensor 'NOTHING'"):
        backend.infer({"left": ROWS, "right": ROWS}, ("NOTHING",), {})
    with pytest.raises(InvalidInput, match="'left' is an array of float64, the model takes FP32"):
        run(backend, left=ROWS.astype(np.float64), right=ROWS)


@pytest.mark.parametrize("kind", ["script", "export"])
def test_a_shape_that_does_not_fit_is_the_requests_fault_and_the_next_request_works(
    tmp_path: Path, program: Path, kind: str
) -> None:
    if kind == "script":
        backend = script(torch_modules.Linear(), tmp_path, **LINEAR_IO)
    else:
        backend, _ = load(program)
    for shape in [(2, 5), (5,), (2, 2, 3)]:
        with pytest.raises(InvalidInput, match="torch"):
            run(backend, x=np.ones(shape, FP32))
    (answer,) = run(backend, x=ROWS).values()
    np.testing.assert_allclose(answer, LINEAR, rtol=1e-6)


def test_bad_values_are_the_requests_fault(tmp_path: Path) -> None:
    inputs, outputs = tensors(("x", "INT64", -1)), tensors(("y", "FP32", -1))
    backend = script(torch_modules.Table(), tmp_path / "table", inputs=inputs, outputs=outputs)
    with pytest.raises(InvalidInput, match="out of"):
        run(backend, x=[1, 99])
    np.testing.assert_array_equal(run(backend, x=[1, 3])["y"], [10, 30])
    backend = script(torch_modules.Complains(), tmp_path / "complains", **X_TO_Y)
    with pytest.raises(InvalidInput, match=r"refuses its input: negative numbers have no root$"):
        run(backend, x=-ROWS)


def test_another_failure_is_the_models_own_and_told_in_short(tmp_path: Path) -> None:
    backend = script(torch_modules.Fails(), tmp_path, **X_TO_Y)
    with pytest.raises(InferenceFailed, match="the model is out of order") as failure:
        run(backend, x=ROWS)
    assert "Traceback" not in str(failure.value)


def test_memory_that_there_is_not_fails_its_request(tmp_path: Path) -> None:
    inputs = tensors(("x", "INT64", 1))
    backend = script(torch_modules.Allocates(), tmp_path, inputs=inputs, outputs=tensors(("y", "FP32", -1)))
    with pytest.raises(InferenceFailed, match="out of memory: .*allocate"):
        run(backend, x=[1 << 60])
    np.testing.assert_array_equal(run(backend, x=[3])["y"], [0, 0, 0])


def test_several_threads_get_each_their_own_answers(add_sub: Path) -> None:
    backend, _ = load(add_sub, instances=4)
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait()
        for turn in range(50):
            left, right = (sample("FP32", (1 + turn % 3, 4), thread * 1000 + turn + part * 500) for part in (0, 1))
            answers = backend.infer({"left": left, "right": right}, (), {})
            np.testing.assert_array_equal(answers["OUTPUT__0"], left + right)
            np.testing.assert_array_equal(answers["OUTPUT__1"], left - right)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, thread) for thread in range(4)]:
            done.result()


def test_a_joined_batch_is_answered_row_by_row_and_outlives_the_model(program: Path) -> None:
    backend, _ = load(program)
    parts = [sample("FP32", (rows, 4), rows) for rows in (1, 3, 0, 2)]
    answers = backend.infer({"x": np.concatenate(parts)}, (), {})
    alone = [run(backend, x=part)["OUTPUT__0"] for part in parts]
    backend.unload()
    gc.collect()
    for expected, share in zip(alone, split(answers, [len(part) for part in parts]), strict=True):
        np.testing.assert_allclose(share["OUTPUT__0"], expected, rtol=1e-5)


# --- a quiet guest ---------------------------------------------------------------------------------------------------


GUEST_CODE = """
import sys
import numpy as np
from backends.errors import InvalidInput, LoadFailed
from backends.spec import ModelSpec, TensorSpec
from backends.torch.backend import TorchBackend
script, program, encoder, rubbish = sys.argv[1:]
assert "torch" not in sys.modules
x = TensorSpec("x", "FP32", (-1, 4))
y = TensorSpec("y", "FP32", (-1, 3))
for path, declared in ((script, ((x,), (y,))), (program, ((), ()))):
    backend = TorchBackend()
    backend.load(ModelSpec("model", 1, "torch", path, inputs=declared[0], outputs=declared[1]))
    array = np.ones((2, 4), np.float32)
    array.flags.writeable = False
    backend.infer({"x": array}, (), {})
    try:
        backend.infer({"x": np.ones((2, 5), np.float32)}, (), {})
    except InvalidInput:
        pass
    else:
        raise SystemExit("the bad request was answered")
    backend.unload()
backend = TorchBackend()
backend.load(ModelSpec("model", 1, "torch", encoder))
backend.infer({"input_ids": np.ones((1, 2), np.int64)}, (), {})
try:
    TorchBackend().load(ModelSpec("model", 1, "torch", rubbish))
except LoadFailed:
    pass
else:
    raise SystemExit("the bad model was loaded")
others = {"onnxruntime", "onnx", "tensorflow", "tensorrt_llm", "keras", "jax"} & set(sys.modules)
assert not others, others
"""


def test_models_load_and_fail_without_a_word_and_without_another_framework(
    tmp_path: Path, program: Path, bert: Path
) -> None:
    script = torch_models.scripted(torch_modules.Linear(), tmp_path)
    rubbish = tmp_path / "rubbish.pt"
    rubbish.write_bytes(b"PK\x03\x04" + bytes(100))
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", GUEST_CODE, str(script), str(program), str(bert), str(rubbish)],
        env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.iterdir()) == []
