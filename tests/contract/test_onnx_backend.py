"""What the ONNX backend does beyond the common contract: files, options, signatures, and onnxruntime's errors."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from support import onnx_models
from support.onnx_models import build, save, value

pytest.importorskip("onnxruntime", reason="pip install 'tensorgate[onnx]'")

from backends.contract import Arrays
from backends.errors import InferenceFailed, InvalidInput, LoadFailed
from backends.onnx import graph, options
from backends.onnx.backend import OnnxBackend
from backends.onnx.signature import keeps_rows_apart
from backends.rows import split
from backends.spec import BatchingSpec, ModelSpec, Signature, TensorSpec

FP32 = np.float32


def spec(path: Path, **fields: Any) -> ModelSpec:
    return ModelSpec("model", 1, "onnx", str(path), **fields)


def load(model: ModelProto | bytes, folder: Path, **fields: Any) -> tuple[OnnxBackend, Signature]:
    backend = OnnxBackend()
    return backend, backend.load(spec(save(model, folder), **fields))


def refusal(path: Path, **fields: Any) -> str:
    """The text with which loading fails."""
    with pytest.raises(LoadFailed) as failure:
        OnnxBackend().load(spec(path, **fields))
    return str(failure.value)


def run(backend: OnnxBackend, **inputs: Any) -> Arrays:
    return backend.infer({name: np.asarray(array) for name, array in inputs.items()}, (), {})


# --- files ---------------------------------------------------------------------------------------------------------


def test_the_model_is_a_file_or_a_folder_with_one(tmp_path: Path) -> None:
    model = onnx_models.add_one()
    save(model, tmp_path / "default")
    save(model, tmp_path / "other", "resnet.onnx")
    save(model, tmp_path / "nested" / "model.onnx")
    for path in (
        tmp_path / "default", tmp_path / "default" / "model.onnx", tmp_path / "other",
        tmp_path / "other" / "resnet.onnx", tmp_path / "nested",
    ):  # fmt: skip
        backend = OnnxBackend()
        backend.load(spec(path))
        np.testing.assert_array_equal(_plus_one(backend), [[2, 3]])


def _plus_one(backend: OnnxBackend) -> Any:
    return run(backend, x=np.array([[1, 2]], FP32))["y"]


def test_model_onnx_wins_over_other_files_beside_it(tmp_path: Path) -> None:
    save(onnx_models.rubbish(), tmp_path, "other.onnx")
    backend, _ = load(onnx_models.add_one(), tmp_path)
    np.testing.assert_array_equal(_plus_one(backend), [[2, 3]])


def test_several_candidates_are_listed(tmp_path: Path) -> None:
    save(onnx_models.add_one(), tmp_path, "b.onnx")
    save(onnx_models.add_one(), tmp_path, "a.onnx")
    assert "a.onnx, b.onnx" in refusal(tmp_path)


def test_a_folder_without_a_model_and_a_missing_path_are_refused(tmp_path: Path) -> None:
    assert "holds no .onnx file" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nowhere")


WHOLE = onnx_models.add_one().SerializeToString()
NO_MODELS = {
    "text": onnx_models.rubbish(),
    "empty": b"",
    "zip": b"PK\x03\x04" + bytes(range(256)),
    "zeros": bytes(1000),
    "endless number": b"\xff" * 64,
    "lying length": b"\x3a\xff\xff\xff\xff\x7f",
    "group": b"\x0b" * 64,
    "no graph": b"\x08\x0a",
}


@pytest.mark.parametrize("content", NO_MODELS.values(), ids=NO_MODELS.keys())
def test_a_file_that_is_no_onnx_model_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "model.onnx" in refusal(save(content, tmp_path))


@pytest.mark.parametrize("size", range(1, len(WHOLE), 7))
def test_a_model_that_is_cut_short_anywhere_is_refused(tmp_path: Path, size: int) -> None:
    assert "model.onnx" in refusal(save(WHOLE[:size], tmp_path))


def test_an_unreadable_file_is_refused(ordinary_user: None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(WHOLE, Path(folder))
        (Path(folder) / "model.onnx").chmod(0)
        assert "cannot be read" in refusal(Path(folder))


def test_a_file_in_the_format_of_ort_is_not_taken_for_one(tmp_path: Path) -> None:
    """onnxruntime would choose the format by the suffix, and each has its own rules about other files."""
    save(WHOLE, tmp_path, "model.ort")
    backend = OnnxBackend()
    backend.load(spec(tmp_path / "model.ort"))
    np.testing.assert_array_equal(_plus_one(backend), [[2, 3]])


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    model = build([helper.make_node("NoSuchOperator", ["x"], ["y"])], [value("x")], [value("y")])
    assert "NoSuchOperator" in refusal(save(model, tmp_path))


# --- external data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["inside", "subfolder", "link_inside"])
def test_external_data_inside_the_folder_is_read(tmp_path: Path, layout: str) -> None:
    backend = OnnxBackend()
    backend.load(spec(onnx_models.external_data_layout(tmp_path / "model", layout)))
    answer = run(backend, x=np.zeros((1, 4), FP32))["y"]
    np.testing.assert_array_equal(answer, [onnx_models.EXTERNAL_WEIGHTS])


@pytest.mark.parametrize(
    ("layout", "reason"),
    [("parent", "outside"), ("absolute", "absolute"), ("link", "outside"), ("missing", "does not exist")],
)
def test_external_data_elsewhere_is_refused_with_tensor_location_and_mend(
    tmp_path: Path, layout: str, reason: str
) -> None:
    text = refusal(onnx_models.external_data_layout(tmp_path / "model", layout))
    assert reason in text
    assert "'w'" in text
    assert "save_as_external_data" in text


@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
@pytest.mark.parametrize(
    "location", ["../secret.bin", "data/../../secret.bin", "", "a\0b", ".", "*/_ORT_MEM_ADDR_/*", "/dev/zero"]
)
def test_external_data_is_found_wherever_it_hides(tmp_path: Path, place: str, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(onnx_models.EXTERNAL_WEIGHTS.tobytes())
    (tmp_path / "model" / "data").mkdir(parents=True)
    text = refusal(save(onnx_models.with_external_data(location, place=place), tmp_path / "model"))
    assert "has its data at" in text


def test_a_linked_model_may_have_its_data_beside_the_file_it_points_to(tmp_path: Path) -> None:
    """The layout of the Hugging Face cache: a snapshot is a folder of links into a folder of blobs."""
    blobs = save(onnx_models.with_external_data("weights.bin"), tmp_path / "blobs", "1a2b")
    (blobs / "3c4d").write_bytes(onnx_models.EXTERNAL_WEIGHTS.tobytes())
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.onnx").symlink_to("../blobs/1a2b")
    (snapshot / "weights.bin").symlink_to("../blobs/3c4d")
    backend = OnnxBackend()
    backend.load(spec(snapshot))
    np.testing.assert_array_equal(run(backend, x=np.zeros((1, 4), FP32))["y"], [onnx_models.EXTERNAL_WEIGHTS])


def test_external_data_that_is_too_short_is_refused(tmp_path: Path) -> None:
    save(onnx_models.with_external_data("weights.bin"), tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"1234")
    assert "model.onnx cannot be loaded" in refusal(tmp_path)


# --- options -------------------------------------------------------------------------------------------------------

ACCEPTED = [
    ("intra_op_thread_count", "2"), ("intra_op_thread_count", "0"), ("inter_op_thread_count", "2"),
    ("execution_mode", "1"), ("execution_mode", "parallel"), ("graph_optimization_level", "-1"),
    ("graph_optimization_level", "extended"), ("allow_spinning", "true"), ("enable_mem_arena", "0"),
    ("enable_mem_pattern", "false"), ("execution_providers", "cpu"), ("execution_providers", "CPUExecutionProvider"),
    ("gpu_mem_limit", "1000000"), ("session.set_denormal_as_zero", "1"), ("session.disable_prepacking", "1"),
    ("memory.enable_memory_arena_shrinkage", "cpu:0"), ("share_session_between_instances", "true"),
    ("TRITON_BATCH_STRATEGY_PATH", "/somewhere"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), ACCEPTED)
def test_documented_options_are_accepted(tmp_path: Path, name: str, text: str) -> None:
    backend, _ = load(onnx_models.add_one(), tmp_path, options={name: text})
    np.testing.assert_array_equal(_plus_one(backend), [[2, 3]])
    assert name in str(options.__doc__) or name.startswith("TRITON_")


REFUSED = [
    ("intra_op_thread_count", "many"), ("intra_op_thread_count", "-1"), ("intra_op_thread_count", "100000"),
    ("execution_mode", "fast"), ("graph_optimization_level", "3"), ("allow_spinning", "maybe"),
    ("enable_mem_arena", ""), ("execution_providers", "cpu,,cuda"), ("gpu_mem_limit", "2GB"),
    ("session.model_external_initializers_file_folder_path", "/etc"), ("intra_op_num_threads", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_unknown_options_and_bad_values_are_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    answer = refusal(save(onnx_models.add_one(), tmp_path), options={name: text})
    assert name in answer
    assert "it takes" in answer


def test_the_cores_are_shared_between_the_instances() -> None:
    def threads(instances: int, cores: int, **given: str) -> tuple[int, int]:
        parsed = options.parse(spec(Path(), instances=instances, options=given), cores)
        return parsed.intra_op_threads, parsed.inter_op_threads

    assert threads(1, 8) == (8, 1)
    assert threads(3, 8) == (2, 1)
    assert threads(16, 8) == (1, 1)
    assert threads(2, 8, execution_mode="parallel") == (4, 4)
    assert threads(2, 8, intra_op_thread_count="5", inter_op_thread_count="3") == (5, 1)


CUDA, TENSORRT, CPU = "CUDAExecutionProvider", "TensorrtExecutionProvider", "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("asked", "device", "available", "chosen"),
    [
        ((), "cpu", (CUDA, CPU), [CPU]),
        ((), "cuda:0", (TENSORRT, CUDA, CPU), [CUDA, CPU]),
        ((), "cuda:0", (CPU,), [CPU]),
        ((TENSORRT,), "cuda:0", (TENSORRT, CUDA, CPU), [TENSORRT, CUDA, CPU]),
        ((CUDA, CUDA), "cpu", (CUDA, CPU), [CUDA, CPU]),
        ((CPU,), "cuda:0", (CUDA, CPU), [CPU]),
    ],
)
def test_execution_providers_follow_the_option_then_the_device(
    asked: tuple[str, ...], device: str, available: tuple[str, ...], chosen: list[str]
) -> None:
    assert options.choose_providers(asked, device, available) == chosen


def test_a_provider_that_is_not_there_is_refused_with_what_is_and_how_to_install_it(tmp_path: Path) -> None:
    import onnxruntime

    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    text = refusal(save(onnx_models.add_one(), tmp_path), options={"execution_providers": "cuda,cpu"})
    assert CUDA in text
    assert CPU in text
    assert "pip install onnxruntime-gpu" in text


def test_the_runtime_tells_version_and_providers(tmp_path: Path) -> None:
    import onnxruntime

    backend, _ = load(onnx_models.add_one(), tmp_path)
    assert backend.runtime == f"onnxruntime {onnxruntime.__version__} ({CPU})"


# --- signature -----------------------------------------------------------------------------------------------------


def test_a_sequence_is_refused_by_name_and_type(tmp_path: Path) -> None:
    text = refusal(save(onnx_models.gives_sequence(), tmp_path))
    assert "'y'" in text
    assert "seq(tensor(float))" in text


def test_a_float8_tensor_is_refused_by_type(tmp_path: Path) -> None:
    eight = helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, ["batch", "n"])
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
    assert "tensor(float8e4m3fn)" in refusal(save(build([cast], [value("x")], [eight]), tmp_path))


def test_strings_in_and_bf16_out_are_refused_together(tmp_path: Path) -> None:
    assert "'OUT_BF16'" in refusal(save(onnx_models.identities(("BYTES", "BF16")), tmp_path))
    only_bytes = (TensorSpec("OUT_BYTES", "BYTES", (-1, -1)),)
    backend, _ = load(onnx_models.identities(("BYTES", "BF16")), tmp_path, outputs=only_bytes)
    answers = run(backend, IN_BYTES=np.array([[b"a"]], object), IN_BF16=np.zeros((1, 1), np.uint16))
    assert answers["OUT_BYTES"].tolist() == [[b"a"]]


def tensor(name: str, datatype: str, *shape: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec(name, datatype, shape),)


def test_declared_tensors_narrow_the_models(tmp_path: Path) -> None:
    outputs = tensor("OUTPUT1", "INT32", -1, -1)
    backend, signature = load(onnx_models.add_sub(), tmp_path, outputs=outputs)
    assert signature.outputs == tensor("OUTPUT1", "INT32", -1, 16)
    ones = np.ones((2, 16), np.int32)
    assert run(backend, INPUT0=ones, INPUT1=ones).keys() == {"OUTPUT1"}
    _, signature = load(onnx_models.add_one(), tmp_path, inputs=tensor("x", "FP32", -1, 8))
    assert signature.inputs == tensor("x", "FP32", -1, 8)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": tensor("z", "FP32", -1, -1)}, ["input 'z'", "'x'"]),
        ({"outputs": tensor("z", "FP32", -1, -1)}, ["output 'z'", "'y'"]),
        ({"inputs": tensor("x", "INT32", -1, -1)}, ["'x'", "INT32", "FP32"]),
        ({"inputs": tensor("x", "FP32", -1)}, ["'x'", "[-1]", "[-1, 16]"]),
        ({"outputs": tensor("y", "FP32", -1, 15)}, ["'y'", "[-1, 15]", "[-1, 16]"]),
    ],
)
def test_declarations_that_contradict_the_model_are_refused(
    tmp_path: Path, fields: dict[str, Any], words: list[str]
) -> None:
    text = refusal(save(onnx_models.add_one(("batch", 16)), tmp_path), **fields)
    assert all(word in text for word in words), text


def test_a_required_input_cannot_be_left_out_of_the_declaration(tmp_path: Path) -> None:
    text = refusal(save(onnx_models.add_sub(), tmp_path), inputs=tensor("INPUT0", "INT32", -1, 16))
    assert "'INPUT1'" in text


def test_an_input_of_unknown_rank_has_to_be_declared(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    model = build([node], [value("x", "FP32", None)], [value("y", "FP32", None)])
    assert "declare" in refusal(save(model, tmp_path))
    backend, signature = load(model, tmp_path, inputs=tensor("x", "FP32", -1, 2, -1))
    assert signature.inputs == tensor("x", "FP32", -1, 2, -1)
    assert signature.max_batch_size == 0
    assert run(backend, x=np.ones((3, 2, 1), FP32))["y"].shape == (3, 2, 1)


def test_a_scalar_is_not_taken_for_unknown_rank(tmp_path: Path) -> None:
    backend, signature = load(onnx_models.scalar(), tmp_path)
    assert signature.inputs == tensor("x", "FP32")
    assert run(backend, x=FP32(1))["y"] == 2


def test_an_initializer_that_is_an_input_may_be_left_out(tmp_path: Path) -> None:
    backend, signature = load(onnx_models.with_default(), tmp_path)
    assert {each.name: each.optional for each in signature.inputs} == {"x": False, "offset": True}
    x = np.zeros(4, FP32)
    np.testing.assert_array_equal(run(backend, x=x)["y"], np.full(4, 1))
    np.testing.assert_array_equal(run(backend, x=x, offset=np.array([7], FP32))["y"], np.full(4, 7))


def test_a_model_that_batches_does_not_offer_optional_inputs(tmp_path: Path) -> None:
    """One value would hold for the rows of every client in the batch."""
    model = onnx_models.with_default(("batch", 4))
    backend, signature = load(model, tmp_path)
    assert signature.max_batch_size > 0
    assert [each.name for each in signature.inputs] == ["x"]
    with pytest.raises(InvalidInput, match="offset"):
        run(backend, x=np.zeros((1, 4), FP32), offset=np.ones(1, FP32))
    declared = (*tensor("x", "FP32", -1, 4), *tensor("offset", "FP32", 1))
    assert load(model, tmp_path, inputs=declared)[1].max_batch_size == 0
    assert "'offset'" in refusal(tmp_path, inputs=declared, max_batch_size=4)


# --- batching ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "batches"),
    [("batch", True), ("batch_size", True), ("N", True), ("bs", True), ("b", True), (None, True), ("unk__7", True),
     ("seq", False), ("nodes", False), ("batch*heads", False), (1, False)],
)  # fmt: skip
def test_a_model_batches_by_itself_if_its_first_dimension_looks_like_a_batch(
    tmp_path: Path, first: str | int | None, batches: bool
) -> None:
    _, signature = load(onnx_models.add_one((first, 4)), tmp_path)
    assert (signature.max_batch_size, signature.batching) == ((32, BatchingSpec()) if batches else (0, None))


@pytest.mark.parametrize(
    ("inputs", "outputs", "operators", "apart"),
    [
        (["batch", "batch"], ["batch"], set(), True),
        (["batch", "b"], ["batch"], set(), False),
        (["batch"], ["batch"], {"NonMaxSuppression"}, True),
        (["batch"], ["batch"], {"DynamicQuantizeLinear"}, False),
        (["batch"], ["detections"], set(), False),
        (["batch"], [None], set(), False),
        (["unk__1"], ["unk__2"], {"Add"}, True),
        (["unk__1"], ["unk__2"], {"Add", "NonMaxSuppression"}, False),
        ([None], [None], {"NonZero"}, False),
        ([None, "unk__3"], [None], set(), True),
        ([0], ["batch"], set(), False),
        ([], ["batch"], set(), False),
        (["batch"], [], set(), False),
    ],
)
def test_rows_are_joined_only_where_all_dimensions_agree(
    inputs: list[int | str | None], outputs: list[int | str | None], operators: set[str], apart: bool
) -> None:
    assert keeps_rows_apart(inputs, outputs, operators) is apart


def test_a_vector_of_variable_length_is_no_batch(tmp_path: Path) -> None:
    assert load(onnx_models.add_one(("batch",)), tmp_path)[1].max_batch_size == 0
    assert load(onnx_models.add_one(("batch",)), tmp_path, max_batch_size=4)[1].max_batch_size == 4


def test_what_the_spec_says_about_batching_is_taken_as_it_is(tmp_path: Path) -> None:
    wanted = BatchingSpec((4,), 500)
    assert load(onnx_models.add_one(), tmp_path, batching=wanted)[1].batching == wanted
    assert load(onnx_models.add_one(("seq", 4)), tmp_path, max_batch_size=8)[1].max_batch_size == 8
    assert load(onnx_models.add_one(), tmp_path, max_batch_size=0, batching=wanted)[1].batching is None
    assert "-2" in refusal(tmp_path, max_batch_size=-2)
    assert "'y'" in refusal(tmp_path, max_batch_size=4, outputs=tensor("y", "FP32", 2, -1))


def test_a_model_that_only_claims_to_batch_is_found_out_when_its_rows_are_divided(tmp_path: Path) -> None:
    backend, signature = load(onnx_models.mixes_rows(), tmp_path)
    assert signature.max_batch_size > 0
    answers = run(backend, x=np.ones((3, 2), FP32))
    with pytest.raises(InferenceFailed, match=r"'y'.*max_batch_size to 0"):
        split(answers, [1, 2])


# --- inference -----------------------------------------------------------------------------------------------------


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


# --- a quiet guest -------------------------------------------------------------------------------------------------

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


# --- reading files -------------------------------------------------------------------------------------------------


def test_the_graph_reader_finds_what_the_onnx_package_finds() -> None:
    model = onnx_models.with_external_data("a/b.bin", place="branch", offset=0)
    model.graph.input.append(value("open", "FP32", None))
    facts = graph.read(memoryview(model.SerializeToString()))
    assert facts.external == [graph.External("weights", "a/b.bin")]
    assert facts.operators == {"If", "Identity", "Add"}
    assert facts.unranked == {"open"}


MUTATIONS: dict[str, Callable[[bytes, int], bytes]] = {
    "a byte turned round": lambda data, at: data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :],
    "a byte left out": lambda data, at: data[:at] + data[at + 1 :],
    "a byte too many": lambda data, at: data[:at] + b"\xff" + data[at:],
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_graph_reader_survives_damage_anywhere(mutation: Callable[[bytes, int], bytes]) -> None:
    """It gives facts or says ValueError; nothing else, and never more than the file holds."""
    data = onnx_models.with_external_data("weights.bin", place="branch").SerializeToString()
    outcomes = set()
    for at in range(len(data)):
        try:
            facts = graph.read(memoryview(mutation(data, at)))
        except ValueError:
            outcomes.add("refused")
        else:
            outcomes.add("read")
            assert sum(len(item.location) for item in facts.external) <= len(data)
    assert outcomes == {"refused", "read"}
