"""The rules of ``backends.contract``, for every backend whose framework is installed."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from backends.batching import Pending, batch_key
from backends.contract import Backend
from backends.errors import InvalidInput, LoadFailed
from backends.rows import join, split
from backends.spec import ITEM_SIZE, ModelSpec
from backends.tensor import NUMPY_DTYPE, from_numpy
from support.subjects import SUBJECTS, Subject, every_subject_and, require

Array = npt.NDArray[Any]
FRAMEWORK_PACKAGES = {"onnxruntime", "torch", "tensorflow", "tensorrt_llm"}


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.framework)
def subject(request: pytest.FixtureRequest) -> Subject:
    return require(request.param)


def sample(datatype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Values of that datatype, its extremes among them, different for every seed."""
    random = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=int))
    if datatype == "BYTES":
        texts = np.empty(count, dtype=object)
        texts[:] = [f"{seed}·{index}\0".encode() if index % 3 else b"" for index in range(count)]
        return texts.reshape(shape)
    dtype = NUMPY_DTYPE[datatype]
    if datatype == "BOOL":
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "f":
        floats = random.standard_normal(shape).astype(dtype)
        floats.reshape(-1)[: min(count, 3)] = [np.inf, -np.inf, -0.0][:count]
        return floats
    limits = np.iinfo(dtype)
    integers = random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    integers.reshape(-1)[: min(count, 2)] = [limits.min, limits.max][:count]
    return integers


def load(subject: Subject, spec: ModelSpec) -> Backend:
    backend = subject.create()
    backend.load(spec)
    return backend


def simple(subject: Subject, folder: Path, **changes: Any) -> Backend:
    """The identity of FP32 rows, loaded."""
    return load(subject, msgspec.structs.replace(subject.identity(folder, ("FP32",), (-1, -1)), **changes))


# --- loading -------------------------------------------------------------------------------------------------------


def run_in_new_process(code: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


MODULES_CODE = """
import sys
import msgspec
from backends import loader
from backends.spec import ModelSpec
spec = msgspec.json.decode(sys.argv[1], type=ModelSpec)
others = set(sys.argv[3].split(","))
backend = loader.create(spec.framework)
found = (others | {sys.argv[2]}) & set(sys.modules)
assert not found, f"construction imports {found}"
backend.import_framework(spec)
found = others & set(sys.modules)
assert not found, f"the framework's import imports {found}"
assert sys.argv[2] == "none" or sys.argv[2] in sys.modules
backend.load(spec)
found = others & set(sys.modules)
assert not found, f"load imports {found}"
backend.unload()
"""


def test_construction_imports_no_framework_and_loading_no_other_one(subject: Subject, tmp_path: Path) -> None:
    spec = msgspec.json.encode(subject.identity(tmp_path, ("FP32",), (-1, -1))).decode()
    others = FRAMEWORK_PACKAGES - {subject.package}
    run_in_new_process(MODULES_CODE, spec, subject.package or "none", ",".join(others))


def test_load_tells_the_signature_and_then_the_runtime(subject: Subject, tmp_path: Path) -> None:
    backend = subject.create()
    assert backend.runtime == ""
    signature = backend.load(subject.identity(tmp_path, ("FP32", "INT64"), (-1, 3)))
    assert [(t.name, t.datatype, t.shape) for t in signature.inputs] == [
        ("IN_FP32", "FP32", (-1, 3)), ("IN_INT64", "INT64", (-1, 3)),
    ]  # fmt: skip
    assert [(t.name, t.datatype, t.shape) for t in signature.outputs] == [
        ("OUT_FP32", "FP32", (-1, 3)), ("OUT_INT64", "INT64", (-1, 3)),
    ]  # fmt: skip
    assert signature.platform
    assert backend.runtime


def test_trimming_beside_requests_changes_no_answer(subject: Subject, tmp_path: Path) -> None:
    backend = simple(subject, tmp_path)
    rows = np.arange(64, dtype=np.float32).reshape(8, 8)

    def ask(_: int) -> Array:
        return backend.infer({"IN_FP32": rows}, ("OUT_FP32",), {})["OUT_FP32"]

    with ThreadPoolExecutor(1) as clients:
        answers = clients.map(ask, range(20))
        for _ in range(20):
            backend.trim()
        for answer in answers:
            np.testing.assert_array_equal(answer, rows)


def test_a_model_that_cannot_be_loaded_fails_with_a_text_for_a_person(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed) as failure:
        subject.create().load(subject.broken(tmp_path))
    assert len(str(failure.value)) > 10


def test_an_unknown_option_is_refused_by_name(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="no_such_option"):
        simple(subject, tmp_path, options={"no_such_option": "1"})


def test_max_batch_size_is_the_one_of_the_spec(subject: Subject, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(subject.identity(tmp_path, ("FP32",), (-1, -1)), max_batch_size=7)
    assert subject.create().load(spec).max_batch_size == 7


def test_batching_is_refused_where_the_first_dimension_is_fixed(subject: Subject, tmp_path: Path) -> None:
    spec = subject.identity(tmp_path, ("FP32",), (4,))
    with pytest.raises(LoadFailed, match="IN_FP32"):
        subject.create().load(msgspec.structs.replace(spec, max_batch_size=8))
    assert subject.create().load(spec).max_batch_size == 0


# --- inference -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 3), (2, 0), (0, 0)], ids=str)
@every_subject_and("datatype", ITEM_SIZE)
def test_every_datatype_passes_unchanged(
    subject: Subject, tmp_path: Path, datatype: str, shape: tuple[int, ...]
) -> None:
    backend = load(subject, subject.identity(tmp_path, (datatype,), (-1, -1)))
    given = sample(datatype, shape)
    answer = backend.infer({f"IN_{datatype}": given}, (f"OUT_{datatype}",), {})[f"OUT_{datatype}"]
    assert answer.dtype == NUMPY_DTYPE[datatype]
    assert answer.shape == shape
    np.testing.assert_array_equal(answer, given)
    assert {type(element) for element in answer.reshape(-1).tolist()} <= (
        {bytes} if datatype == "BYTES" else {bool, int, float}
    )


@every_subject_and("datatype", ["FP32", "BF16", "INT64", "BOOL", "BYTES"])
def test_scalars_pass_unchanged(subject: Subject, tmp_path: Path, datatype: str) -> None:
    backend = load(subject, subject.identity(tmp_path, (datatype,), ()))
    given = sample(datatype, (1,)).reshape(())
    answer = backend.infer({f"IN_{datatype}": given}, (f"OUT_{datatype}",), {})[f"OUT_{datatype}"]
    assert answer.shape == ()
    np.testing.assert_array_equal(answer, given)


def test_exactly_the_requested_outputs_are_answered(subject: Subject, tmp_path: Path) -> None:
    backend = load(subject, subject.identity(tmp_path, ("FP32", "INT32", "BOOL"), (-1, -1)))
    inputs = {f"IN_{datatype}": sample(datatype, (2, 2)) for datatype in ("FP32", "INT32", "BOOL")}
    for outputs in [("OUT_INT32",), ("OUT_BOOL", "OUT_FP32"), ("OUT_FP32", "OUT_INT32", "OUT_BOOL")]:
        answers = backend.infer(inputs, outputs, {})
        assert answers.keys() == set(outputs)
        for name in outputs:
            np.testing.assert_array_equal(answers[name], inputs[name.replace("OUT", "IN")])


def test_a_missing_input_and_an_unknown_output_are_the_requests_fault(subject: Subject, tmp_path: Path) -> None:
    backend = simple(subject, tmp_path)
    with pytest.raises(InvalidInput, match="IN_FP32"):
        backend.infer({}, ("OUT_FP32",), {})
    with pytest.raises(InvalidInput, match="NOTHING"):
        backend.infer({"IN_FP32": sample("FP32", (1, 1))}, ("NOTHING",), {})


@every_subject_and("datatype", ["FP32", "BF16", "BYTES"])
def test_inputs_are_never_written_to(subject: Subject, tmp_path: Path, datatype: str) -> None:
    """They may be views of memory that this process must not write to."""
    backend = load(subject, subject.identity(tmp_path, (datatype,), (-1, -1)))
    given = sample(datatype, (3, 5))
    before = given.copy()
    given.flags.writeable = False
    answer = backend.infer({f"IN_{datatype}": given}, (f"OUT_{datatype}",), {})[f"OUT_{datatype}"]
    np.testing.assert_array_equal(given, before)
    assert not np.shares_memory(given, answer)


@every_subject_and("datatype", ["FP32", "BF16", "BYTES"])
def test_inputs_are_not_kept(subject: Subject, tmp_path: Path, datatype: str) -> None:
    """Their memory is used again as soon as the call is over, even while its answer is still being sent."""
    backend = load(subject, subject.identity(tmp_path, (datatype,), (-1, -1)))
    given = sample(datatype, (3, 5))
    expected = given.copy()
    reference = weakref.ref(given)
    answers = backend.infer({f"IN_{datatype}": given}, (f"OUT_{datatype}",), {})
    given[...] = sample(datatype, (3, 5), seed=1)
    np.testing.assert_array_equal(answers[f"OUT_{datatype}"], expected)
    del given
    gc.collect()
    assert reference() is None


@every_subject_and("datatype", ["FP32", "BF16", "BYTES"])
def test_answers_outlive_later_calls_and_unloading(subject: Subject, tmp_path: Path, datatype: str) -> None:
    backend = load(subject, subject.identity(tmp_path, (datatype,), (-1, -1)))
    inputs = [sample(datatype, (2, 300), seed) for seed in range(5)]
    answers = [backend.infer({f"IN_{datatype}": given}, (), {})[f"OUT_{datatype}"] for given in inputs]
    backend.unload()
    del backend
    gc.collect()
    for given, answer in zip(inputs, answers, strict=True):
        np.testing.assert_array_equal(answer, given)


@every_subject_and("datatypes", [("FP32", "INT64", "BYTES"), ("FP32", "BF16")])
def test_several_threads_get_each_their_own_answers(
    subject: Subject, tmp_path: Path, datatypes: tuple[str, ...]
) -> None:
    spec = msgspec.structs.replace(subject.identity(tmp_path, datatypes, (-1, -1)), instances=4)
    backend = load(subject, spec)
    start = threading.Barrier(4)

    def work(thread: int) -> None:
        start.wait()
        for turn in range(50):
            seed = thread * 1000 + turn
            inputs = {f"IN_{datatype}": sample(datatype, (1 + turn % 3, 7), seed) for datatype in datatypes}
            answers = backend.infer(inputs, tuple(f"OUT_{datatype}" for datatype in datatypes), {})
            for datatype in datatypes:
                np.testing.assert_array_equal(answers[f"OUT_{datatype}"], inputs[f"IN_{datatype}"])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, thread) for thread in range(4)]:
            done.result()


@every_subject_and("datatype", ITEM_SIZE)
def test_a_joined_batch_is_answered_row_by_row(subject: Subject, tmp_path: Path, datatype: str) -> None:
    backend = subject.create()
    signature = backend.load(subject.identity(tmp_path, (datatype,), (-1, 3)))
    assert signature.max_batch_size > 1
    given = [sample(datatype, (rows, 3), seed=rows) for rows in (1, 3, 0, 2)]
    batch = [pending(index, f"IN_{datatype}", array, datatype) for index, array in enumerate(given)]
    assert len({request.key for request in batch}) == 1
    answers = backend.infer(join(batch), (f"OUT_{datatype}",), {})
    for array, share in zip(given, split(answers, [request.rows for request in batch]), strict=True):
        np.testing.assert_array_equal(share[f"OUT_{datatype}"], array)


def pending(id: int, name: str, array: Array, datatype: str) -> Pending:
    tensors = [from_numpy(name, array, datatype)]
    return Pending(
        id=id, tensors=tensors, outputs=(), parameters={}, priority=0, arrived_ns=0, deadline_ns=0,
        rows=len(array), key=batch_key(tensors, None, batched=True),
    )  # fmt: skip
