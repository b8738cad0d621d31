"""The options of the TensorFlow backend, and its devices."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.loading import Loading, run
from support.tf_models import build

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("pip install 'tensorgate[tf]'", allow_module_level=True)

from backends.tf import options
from backends.tf.saved_model import session_config

FP32 = np.float32
_TF = Loading("tf")
load, refusal, spec = _TF.load, _TF.refusal, _TF.spec


ACCEPTED = [
    ("signature", "serving_default"), ("tags", "serve"), ("intra_op_thread_count", "2"),
    ("intra_op_thread_count", "0"), ("inter_op_thread_count", "2"), ("xla", "true"), ("memory_growth", "0"),
    ("memory_limit_mb", "100"), ("allow_code", "false"), ("TF_SIGNATURE_DEF", "serving_default"),
    ("TF_GRAPH_TAG", "serve"), ("TF_NUM_INTRA_THREADS", "1"), ("TF_NUM_INTER_THREADS", "1"),
    ("TF_USE_PER_SESSION_THREADS", "1"), ("MAX_SESSION_SHARE_COUNT", "2"), ("TRITON_ANYTHING", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), ACCEPTED)
def test_documented_options_are_accepted(plain: Path, name: str, text: str) -> None:
    backend, _ = load(plain, options={name: text})
    np.testing.assert_array_equal(run(backend, x=np.array([[1, 2]], FP32))["y"], [[2, 3]])
    assert name in str(options.__doc__) or name.startswith("TRITON_")


REFUSED = [
    ("signature", ""), ("tags", "serve,,gpu"), ("intra_op_thread_count", "many"), ("intra_op_thread_count", "-1"),
    ("inter_op_thread_count", "100000"), ("xla", "maybe"), ("memory_growth", ""), ("memory_limit_mb", "2GB"),
    ("memory_limit_mb", "0"), ("allow_code", "yes"), ("TF_NUM_INTRA_THREADS", "x"), ("intra_op_num_threads", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_unknown_options_and_bad_values_are_refused_by_name(plain: Path, name: str, text: str) -> None:
    answer = refusal(plain, options={name: text})
    assert name in answer
    assert "it takes" in answer


def test_options_of_another_kind_of_model_are_refused_by_name(packed: Path, flat: Path) -> None:
    assert "option tags is for SavedModel" in refusal(packed, options={"tags": "serve"})
    assert "option xla is for SavedModel and .keras" in refusal(flat, options={"xla": "true"})
    assert "option TF_SIGNATURE_DEF is for" in refusal(packed, options={"TF_SIGNATURE_DEF": "serve"})


def test_the_cores_are_shared_between_the_instances() -> None:
    def threads(instances: int, cores: int, **given: str) -> tuple[int, int]:
        parsed = options.parse(spec(Path(), instances=instances, options=given), cores)
        return parsed.intra_op_threads, parsed.inter_op_threads

    assert threads(1, 8) == (8, 0)
    assert threads(3, 8) == (2, 0)
    assert threads(16, 8) == (1, 0)
    assert threads(2, 8, intra_op_thread_count="5", inter_op_thread_count="3") == (5, 3)


def test_a_gpu_that_is_not_there_is_refused_with_the_mend(plain: Path, flat: Path) -> None:
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    assert "nvidia-smi" in refusal(plain, device="cuda:0")
    assert "run on the CPU" in refusal(flat, device="cuda")
    assert "device is 'tpu'" in refusal(plain, device="tpu")


def test_the_memory_of_a_gpu_is_taken_as_the_options_say() -> None:
    import tensorflow as tf

    def config(device: str, **given: str) -> Any:
        return session_config(tf, options.parse(spec(Path(), device=device, options=given), 1))

    assert config("cpu").device_count == {"GPU": 0}
    assert config("cuda:3").gpu_options.allow_growth
    assert not config("cuda", memory_growth="false").gpu_options.allow_growth
    limited = config("cuda:0", memory_limit_mb="512").gpu_options
    assert [list(each.memory_limit_mb) for each in limited.experimental.virtual_devices] == [[512]]


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_model_compiled_with_xla_answers_the_same_for_every_shape(kind: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    (compiled, _), (usual, _) = load(path, options={"xla": "true"}), load(path)
    for rows in (1, 4, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(FP32)
        for output, expected in run(usual, x=x).items():
            np.testing.assert_allclose(run(compiled, x=x)[output], expected, rtol=1e-5)


def test_a_model_that_xla_cannot_compile_is_refused(tmp_path: Path) -> None:
    assert "XLA takes no BYTES, as tensor" in refusal(build("join_strings", tmp_path / "a"), options={"xla": "true"})
    assert "calls no function" in refusal(build("first_versions", tmp_path / "c"), options={"xla": "true"})
    assert "cannot be compiled" in refusal(build("spells", tmp_path / "b"), options={"xla": "true"})


def test_the_runtime_tells_the_version(plain: Path, packed: Path, flat: Path) -> None:
    import tensorflow as tf

    assert load(plain)[0].runtime == f"tensorflow {tf.__version__}"
    assert f"(tensorflow {tf.__version__})" in load(packed)[0].runtime
    assert "lite" in load(flat)[0].runtime
