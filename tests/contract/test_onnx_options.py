"""The options of the ONNX backend, and its execution providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import onnx_models
from support.loading import Loading, run
from support.onnx_models import load, save

pytest.importorskip("onnxruntime", reason="pip install 'tensorgate[onnx]'")

from backends.contract import Backend
from backends.errors import LoadFailed
from backends.onnx import options

FP32 = np.float32
_ONNX = Loading("onnx")
refusal, spec = _ONNX.refusal, _ONNX.spec


def _plus_one(backend: Backend) -> Any:
    return run(backend, x=np.array([[1, 2]], FP32))["y"]


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
        ((TENSORRT,), "cuda:0", (TENSORRT, CPU), [TENSORRT, CPU]),
        ((TENSORRT,), "cuda:0", (TENSORRT, CUDA, CPU), [TENSORRT, CUDA, CPU]),
        ((CUDA, CUDA), "cpu", (CUDA, CPU), [CUDA, CPU]),
        ((CPU,), "cuda:0", (CUDA, CPU), [CPU]),
    ],
)
def test_execution_providers_follow_the_option_then_the_device(
    asked: tuple[str, ...], device: str, available: tuple[str, ...], chosen: list[str]
) -> None:
    assert options.choose_providers(asked, device, available) == chosen


def test_the_cpu_does_not_stand_in_for_a_cuda_device() -> None:
    with pytest.raises(LoadFailed, match=f"{CUDA} is not part of this onnxruntime, which has {CPU}: pip install"):
        options.choose_providers((), "cuda:0", (CPU,))


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
