"""Requests to the TensorFlow backend, and whose fault a failure is."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.loading import Loading, run, tensor
from support.tf_models import build
from support.tf_saving import TYPE

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)

from backends.errors import BackendError, InferenceFailed, InvalidInput, OutOfMemory
from backends.options import usable_cores
from backends.tensor import NUMPY_DTYPE
from backends.tf.library import failure, load_failure, text_of

FP32 = np.float32
_TF = Loading("tf")
load, refusal = _TF.load, _TF.refusal


def texts(*rows: bytes) -> Any:
    return np.array([[row] for row in rows], object)


def sample(datatype: str, shape: tuple[int, ...], seed: int) -> Any:
    random = np.random.default_rng(seed)
    if datatype == "BYTES":
        elements = np.empty(int(np.prod(shape, dtype=int)), object)
        elements[:] = [random.bytes(index % 5) + b"\0" for index in range(len(elements))]
        return elements.reshape(shape)
    return random.integers(0, 2, shape).astype(NUMPY_DTYPE[datatype])


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)], ids=str)
def test_every_datatype_passes_through_one_call(tmp_path: Path, shape: tuple[int, ...]) -> None:
    backend, _ = load(build("identities", tmp_path / "model", datatypes=list(TYPE)))
    given = {f"IN_{datatype}": sample(datatype, shape, seed) for seed, datatype in enumerate(TYPE)}
    answers = backend.infer(given, (), {})
    for datatype in TYPE:
        answer = answers[f"OUT_{datatype}"]
        assert answer.dtype == NUMPY_DTYPE[datatype]
        np.testing.assert_array_equal(answer, given[f"IN_{datatype}"])


def aligned(*shape: int) -> Any:
    """An array where TensorFlow wants it, which it then does not copy."""
    memory = np.zeros(4 * int(np.prod(shape)) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 4 * int(np.prod(shape))].view(FP32).reshape(shape)


@pytest.mark.parametrize("model", ["identities", "add_one"])
def test_arrays_that_are_not_copied_are_let_go_and_not_handed_on(tmp_path: Path, model: str) -> None:
    arguments = {"datatypes": ["FP32"]} if model == "identities" else {}
    backend, signature = load(build(model, tmp_path / "model", **arguments))
    given = aligned(4, 64)
    given[...] = 7
    reference = weakref.ref(given.base)
    answer = run(backend, **{signature.inputs[0].name: given})[signature.outputs[0].name]
    assert not np.shares_memory(given, answer)
    given[...] = 0
    expected = 7 if model == "identities" else 8
    del given
    gc.collect()
    assert reference() is None
    backend.unload()
    del backend
    gc.collect()
    assert (answer == expected).all()


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros(4, FP32), r"input 'x' has shape \[4\]; the model takes \[-1, 4\]"),
        (np.zeros((1, 5), FP32), r"input 'x' has shape \[1, 5\]"),
        (np.zeros((1, 4), np.int32), "input 'x' is an array of int32; the model takes FP32"),
        (np.zeros((1, 4), object), "input 'x' is an array of object"),
    ],
)
@pytest.mark.parametrize("kind", ["saved", "keras", "lite"])
def test_an_input_that_does_not_fit_is_the_requests_fault(tmp_path: Path, kind: str, x: Any, words: str) -> None:
    if kind == "saved":
        backend, _ = load(build("add_one", tmp_path / "model", shape=[None, 4]))
    elif kind == "keras":
        backend, _ = load(build("keras_pass", tmp_path))
    else:
        backend, signature = load(build("lite", tmp_path, model="no_signature"))
        assert signature.inputs[0].name == "x"
    with pytest.raises(InvalidInput, match=words):
        run(backend, x=x)
    assert next(iter(run(backend, x=np.zeros((1, 4), FP32)).values())).shape == (1, 4)


def test_missing_and_unknown_names_are_the_requests_fault(plain: Path) -> None:
    backend, _ = load(plain)
    x = np.zeros((1, 1), FP32)
    for inputs, outputs, word in [({}, (), "missing: x"), ({"x": x, "z": x}, (), "'z'"), ({"x": x}, ("w",), "'w'")]:
        with pytest.raises(InvalidInput, match=word):
            backend.infer(inputs, outputs, {})


def test_bad_values_are_the_requests_fault_and_the_next_request_works(tmp_path: Path) -> None:
    backend, _ = load(build("picks_from_table", tmp_path / "model"))
    with pytest.raises(InvalidInput, match=r"99 is not in \[0, 4\)") as failure:
        run(backend, x=[[1], [99]])
    assert "\n" not in str(failure.value)
    assert "node" not in str(failure.value)
    np.testing.assert_array_equal(run(backend, x=[[1], [3]])["y"], [[10], [30]])


def test_a_failure_inside_of_the_model_is_its_own(tmp_path: Path) -> None:
    backend, _ = load(build("fails", tmp_path / "model"))
    with pytest.raises(InferenceFailed, match="Table not initialized"):
        run(backend, x=np.zeros((1, 1), FP32))


def test_what_an_error_of_tensorflow_is_called_for_the_client() -> None:
    import tensorflow as tf

    def told(error: type[Exception], text: str) -> BackendError:
        return failure(tf, error(None, None, text))

    assert isinstance(told(tf.errors.InvalidArgumentError, "indices"), InvalidInput)
    assert isinstance(told(tf.errors.InvalidArgumentError, "unsupported operation on XLA_CPU_JIT"), InferenceFailed)
    assert isinstance(told(tf.errors.UnimplementedError, "no such kernel"), InferenceFailed)
    assert str(told(tf.errors.ResourceExhaustedError, "tensor with shape[9]")).startswith("out of memory: tensorflow: ")
    assert isinstance(
        load_failure(tf, tf.errors.ResourceExhaustedError(None, None, "x"), "it cannot load"), OutOfMemory
    )
    unknown = load_failure(tf, tf.errors.NotFoundError(None, None, "Op type not registered 'Foo'"), "it cannot load")
    assert "'Foo'; the operator belongs to another package" in str(unknown)


def test_long_errors_are_cut_and_lose_the_history_of_the_graph() -> None:
    history = "Detected at node 'a' defined at (most recent call last):\n  File 'x.py'"
    assert text_of(ValueError(f"Graph execution error:\n\nno  {{{{node a/b}}}} such\nthing {history}")) == (
        "tensorflow: no such thing"
    )
    assert len(text_of(ValueError("x" * 10_000))) < 600
    assert text_of(ValueError()) == "tensorflow: ValueError"


def test_strings_are_any_bytes(tmp_path: Path) -> None:
    backend, _ = load(build("join_strings", tmp_path / "model"))
    answers = run(backend, x=texts(b"\xff\0", "grün".encode()), suffix=texts(b"\0", b"!"))
    assert answers["y"].tolist() == [[b"\xff\0\0"], ["grün!".encode()]]


@pytest.mark.parametrize("kind", ["saved", "lite"])
def test_views_of_any_layout_are_read_right(tmp_path: Path, kind: str) -> None:
    """Batches are views of received bytes: not aligned, not writable."""
    folder = tmp_path / "model"
    backend, _ = load(
        build("add_one", folder, shape=[None, 4]) if kind == "saved" else build("lite", folder, model="no_signature")
    )
    data = bytearray(1) + np.arange(8, dtype=FP32).tobytes()
    unaligned = np.frombuffer(memoryview(data).toreadonly()[1:], FP32).reshape(2, 4)
    turned = np.arange(8, dtype=FP32).reshape(4, 2).T
    for x in (unaligned, turned, unaligned[::-1]):
        (answer,) = run(backend, x=x).values()
        np.testing.assert_array_equal(answer, x + 1)


def test_several_inputs_and_outputs_do_not_get_mixed_up(tmp_path: Path) -> None:
    backend, _ = load(build("add_sub", tmp_path / "model"))
    a, b = np.full((1, 16), 5, np.int32), np.full((1, 16), 3, np.int32)
    answers = backend.infer({"INPUT1": b, "INPUT0": a}, ("OUTPUT1", "OUTPUT0"), {})
    assert list(answers) == ["OUTPUT1", "OUTPUT0"]
    assert (answers["OUTPUT0"] == 8).all()
    assert (answers["OUTPUT1"] == 2).all()


@pytest.mark.parametrize("kind", ["plain", "packed", "flat"])
def test_several_threads_get_each_their_own_answers(kind: str, request: pytest.FixtureRequest) -> None:
    # in a process that has run a Keras model already the number of threads cannot change
    cores = str(usable_cores())
    backend, signature = load(request.getfixturevalue(kind), instances=4, options={"intra_op_thread_count": cores})
    width = {"plain": 7, "packed": 3, "flat": 4}[kind]
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait()
        for turn in range(50):
            x = np.full((1 + turn % 3, width), thread * 100 + turn, FP32)
            answers = run(backend, **{each.name: x for each in signature.inputs})
            expected = {"plain": x + 1, "packed": 2 * x, "flat": 2 * x}[kind]
            name = {"plain": "y", "packed": "scores", "flat": "sum"}[kind]
            np.testing.assert_allclose(answers[name], expected, rtol=1e-2 if kind == "packed" else 0)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, thread) for thread in range(4)]:
            done.result()


def test_other_threads_go_on_while_the_model_computes(tmp_path: Path) -> None:
    """A request of some seconds; meanwhile, this thread counts."""
    backend, _ = load(build("slow", tmp_path / "model", rounds=300, size=300))
    counted = 0
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run, backend, x=np.ones((2, 3), FP32))
        while not done.done():
            counted += 1
        np.testing.assert_array_equal(done.result()["y"], np.ones((2, 3)))
    assert counted > 100


# --- a quiet guest ---------------------------------------------------------------------------------------------------


QUIET_CODE = """
import sys
import numpy as np
from backends.errors import BackendError
from backends.spec import ModelSpec
from backends.tf.backend import TfBackend
others = {"torch", "onnxruntime", "tensorrt_llm", "jax"}
assert not {"tensorflow", *others} & set(sys.modules), "construction imports a framework"
*good, bad = (ModelSpec("model", 1, "tf", path) for path in sys.argv[1:])
for spec in good:
    backend = TfBackend()
    names = [tensor.name for tensor in backend.load(spec).inputs]
    backend.infer({name: np.zeros((2, 4), np.float32) for name in names}, (), {})
    for shape in [(1, 5), (3, 4)]:
        try:
            backend.infer({name: np.zeros(shape, np.float32) for name in names}, (), {})
        except BackendError:
            pass
    backend.unload()
try:
    TfBackend().load(bad)
except BackendError:
    pass
else:
    raise SystemExit("the bad model was loaded")
assert not others & set(sys.modules), others & set(sys.modules)
"""


def test_nothing_is_printed_or_written_at_home_and_no_other_framework_is_imported(tmp_path: Path, flat: Path) -> None:
    """Left to itself, TensorFlow logs its build's features, Keras writes its settings, LiteRT warns of its end."""
    home = tmp_path / "home"
    home.mkdir()
    good = [build("add_one", tmp_path / "good", shape=[None, 4]), build("keras_pass", tmp_path / "keras"), flat]
    bad = shutil.copytree(good[0], tmp_path / "bad")
    shutil.rmtree(bad / "variables")
    (bad / "variables").mkdir()
    (bad / "variables" / "variables.index").write_bytes(b"rubbish")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("TF_", "KERAS_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", QUIET_CODE, *map(str, good), str(bad)],
        env={**kept, "HOME": str(home), "KERAS_BACKEND": "torch"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.iterdir()) == []


# --- a real model ----------------------------------------------------------------------------------------------------


def test_a_real_savedmodel_answers_as_its_tflite_twin() -> None:
    """basic-pitch, saved by an old Keras with its optimiser, which ``tf.saved_model.load`` cannot load any more.

    Both sum in the order that suits the processor, and the logarithm of an almost silent bin makes much of the last
    bits of float32: up to 2e-3 of a probability in one place of ten thousand. Hence a bound, and a finer mean.
    """
    package = importlib.util.find_spec("basic_pitch")
    if package is None or package.origin is None:
        pytest.skip("basic_pitch is not installed: pip install --no-deps basic-pitch==0.4.0")
    models = Path(package.origin).parent / "saved_models" / "icassp_2022"
    assert "nmp, nmp.tflite" in refusal(models)
    saved, signature = load(models / "nmp")
    assert signature.inputs == tensor("input_2", "FP32", -1, 43844, 1)
    assert {each.name: each.shape for each in signature.outputs} == {
        "contour": (-1, 172, 264), "note": (-1, 172, 88), "onset": (-1, 172, 88),
    }  # fmt: skip
    assert signature.max_batch_size == 32
    lite, twin = load(models / "nmp.tflite")
    assert twin.inputs == signature.inputs
    seconds = np.arange(43844) / 22050
    audio = np.stack([np.sin(2 * np.pi * pitch * seconds) * np.exp(-seconds) for pitch in (220.0, 440.0, 987.77)])
    answers = run(saved, input_2=audio.astype(FP32)[..., None])
    others = run(lite, input_2=audio.astype(FP32)[..., None])
    for name, answer in answers.items():
        np.testing.assert_allclose(answer, others[name], atol=1e-2)
        assert np.abs(answer - others[name]).mean() < 1e-4
    assert answers["note"].max() > 0.5, "it hears notes"
