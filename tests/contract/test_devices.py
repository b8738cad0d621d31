"""A model that asks for a CUDA device gets one or an error, never the CPU; what asks for none runs on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from backends.errors import LoadFailed
from backends.spec import ModelSpec
from gateway.modelconfig.spec import to_spec
from gateway.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup
from support.subjects import SUBJECTS, Subject, require

#: Says for each model how loading it went: "" for well.
CODE = """
import json, sys
import msgspec
from backends import loader
from backends.errors import LoadFailed
from backends.spec import ModelSpec
outcomes = []
for spec in msgspec.json.decode(sys.argv[1], type=list[ModelSpec]):
    try:
        loader.create(spec.framework).load(spec)
    except LoadFailed as error:
        outcomes.append(str(error))
    else:
        outcomes.append("")
print(json.dumps(outcomes))
"""


@pytest.fixture(params=[subject for subject in SUBJECTS if subject.package], ids=lambda subject: subject.framework)
def subject(request: pytest.FixtureRequest) -> Subject:
    return require(request.param)


def load_without_cuda(specs: list[ModelSpec]) -> list[str]:
    """The outcomes in a process that sees no CUDA device, whatever this machine has; the gateway hides them so too."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE, msgspec.json.encode(specs).decode()],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    outcomes: list[str] = json.loads(done.stdout)
    return outcomes


def device_of(group: ModelInstanceGroup, framework: str) -> str:
    """The device on which a configuration places its model."""
    config = ModelConfig(name="model", instance_group=[group])
    return to_spec(config, name="model", version=1, path="", framework=framework).device


def test_a_gpu_that_the_framework_does_not_see_fails_the_load_with_the_numbers(
    subject: Subject, tmp_path: Path
) -> None:
    groups = {
        "cuda": ModelInstanceGroup(kind=ModelInstanceGroup.KIND_GPU),
        "cuda:7": ModelInstanceGroup(kind=ModelInstanceGroup.KIND_GPU, gpus=[7]),
        "cpu": ModelInstanceGroup(kind=ModelInstanceGroup.KIND_AUTO),
    }
    spec = subject.identity(tmp_path, ("FP32",), (-1, -1))
    devices = [device_of(group, subject.framework) for group in groups.values()]
    assert devices == [*groups]
    *refused, on_cpu = load_without_cuda([msgspec.structs.replace(spec, device=device) for device in devices])
    for device, text in zip(devices, refused, strict=False):
        assert f"device {device} was asked for (KIND_GPU)" in text
        assert f"{subject.package} " in text
        assert "sees 0 CUDA devices (CUDA_VISIBLE_DEVICES=)" in text
        assert "or place the model on the CPU (KIND_CPU)" in text
    assert on_cpu == ""


def test_a_device_of_another_name_is_refused_with_those_that_there_are(subject: Subject, tmp_path: Path) -> None:
    spec = subject.identity(tmp_path, ("FP32",), (-1, -1))
    names = ["tpu:0", "meta", "cuda:x", "gpu", ""]
    for name in names:
        with pytest.raises(LoadFailed, match=f"device is {name!r}; it is cpu, cuda, or cuda:N"):
            subject.create().load(msgspec.structs.replace(spec, device=name))
