"""The options of the torch backend, and its devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from backends.errors import LoadFailed
from backends.torch import options
from support import torch_models, torch_modules
from support.loading import Loading, run, tensors
from support.torch_models import ALLOWED, LINEAR, LINEAR_IO, ROWS, script

FP32 = np.float32
_TORCH = Loading("torch")
load, refusal, spec = _TORCH.load, _TORCH.refusal, _TORCH.spec


IMAGE_IO: dict[str, Any] = {
    "inputs": tensors(("image", "FP32", -1, 3, -1, -1)),
    "outputs": tensors(("y", "FP32", -1, 4, -1, -1)),
}


ACCEPTED = [
    ("intra_op_thread_count", "1"), ("intra_op_thread_count", "0"), ("INTRA_OP_THREAD_COUNT", "1"),
    ("inter_op_thread_count", "0"), ("allow_code", "false"), ("dtype", "fp32"), ("dtype", "bfloat16"),
    ("channels_last", "true"), ("freeze", "true"), ("optimize_for_inference", "1"), ("cuda_graphs", "false"),
    ("graph_optimization_level", "basic"), ("INFERENCE_MODE", "true"), ("TRITON_BATCH_STRATEGY_PATH", "/somewhere"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), ACCEPTED)
def test_documented_options_are_accepted(tmp_path: Path, name: str, text: str) -> None:
    backend = script(torch_modules.Linear(), tmp_path, options={name: text}, **LINEAR_IO)
    np.testing.assert_allclose(run(backend, x=ROWS)["y"], LINEAR, rtol=1e-2)
    assert name in str(options.__doc__) or name.startswith(("TRITON_", "INFERENCE_"))


REFUSED = [
    ("intra_op_thread_count", "many"), ("intra_op_thread_count", "-1"), ("intra_op_thread_count", "100000"),
    ("allow_code", "perhaps"), ("dtype", "int8"), ("channels_last", ""), ("compile", "true"), ("method", "a b"),
    ("state", "private"), ("class", "Net"), ("class", "../model:Net"), ("class_arguments", "{"),
    ("intra_op_threads", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_unknown_options_and_bad_values_are_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    answer = refusal(tmp_path, options={name: text})
    assert name in answer
    assert "it takes" in answer


FOREIGN = [("freeze", "true"), ("dtype", "bf16"), ("reset_method", "reset"), ("check_inputs", "1")]


@pytest.mark.parametrize(("name", "text"), FOREIGN)
def test_an_option_of_another_kind_is_refused_with_its_kinds(program: Path, name: str, text: str) -> None:
    assert f"option {name} is for" in refusal(program, options={name: text})


def test_the_cores_are_shared_between_the_instances(tmp_path: Path) -> None:
    def threads(instances: int, cores: int, **given: str) -> int:
        return options.parse(spec(Path(), instances=instances, options=given), cores).intra_op_threads

    assert [threads(1, 8), threads(3, 8), threads(16, 8)] == [8, 2, 1]
    assert threads(2, 8, intra_op_thread_count="5") == 5
    script(torch_modules.Linear(), tmp_path, options={"intra_op_thread_count": "1"}, **LINEAR_IO)
    assert torch.get_num_threads() == 1
    load(tmp_path, **LINEAR_IO)
    assert torch.get_num_threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("name", ["channels_last", "freeze", "optimize_for_inference"])
def test_layouts_and_optimisations_keep_the_answer(tmp_path: Path, name: str) -> None:
    image = np.random.default_rng(0).standard_normal((2, 3, 5, 6), FP32)
    file = torch_models.scripted(torch_modules.Image(), tmp_path)
    expected = run(load(file, **IMAGE_IO)[0], image=image)["y"]
    answer = run(load(file, options={name: "true"}, **IMAGE_IO)[0], image=image)["y"]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["script", "encoder", "class"])
def test_a_model_computes_in_another_type_behind_the_same_signature(tmp_path: Path, kind: str, bert: Path) -> None:
    if kind == "encoder":
        plain, half = (load(bert, options=given) for given in ({}, {"dtype": "bfloat16"}))
        inputs: dict[str, Any] = {"input_ids": np.array([[1, 2, 3]])}
    else:
        allowed = ALLOWED if kind == "class" else {}
        if kind == "class":
            torch_models.python_class(tmp_path)
        else:
            torch_models.scripted(torch_modules.Linear(), tmp_path)
        plain, half = (
            load(tmp_path, options={**allowed, **given}, **LINEAR_IO) for given in ({}, {"dtype": "bfloat16"})
        )
        inputs = {"x": ROWS / 3}
    assert plain[1] == half[1]
    expected, answers = (run(backend, **inputs) for backend, _ in (plain, half))
    for name, answer in answers.items():
        assert answer.dtype == FP32
        assert not np.array_equal(answer, expected[name])
        np.testing.assert_allclose(answer, expected[name], rtol=0.05, atol=0.05)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_with_what_is(program: Path) -> None:
    text = refusal(program, device="cuda:1")
    assert "cuda:1" in text
    assert torch.__version__ in text or "0 CUDA device" in text
    assert "it is cpu, cuda, or cuda:N" in refusal(program, device="tpu:0")
    assert "it is cpu, cuda, or cuda:N" in refusal(program, device="meta")
    assert "needs a CUDA device" in refusal(program, options={"cuda_graphs": "true"})


def test_the_number_of_inter_op_threads_holds_for_the_process(program: Path) -> None:
    torch.ones(2).sum()
    wanted = torch.get_num_interop_threads() + 1
    try:
        backend, _ = load(program, options={"inter_op_thread_count": str(wanted)})
    except LoadFailed as refused:
        assert "can be set once in a worker" in str(refused)
    else:
        assert torch.get_num_interop_threads() == wanted
        assert run(backend, x=ROWS)["OUTPUT__0"].shape == (2, 3)
