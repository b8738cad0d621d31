"""From a configuration to what a worker gets, and to the versions that are served."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from backends.spec import BatchingSpec, ModelSpec, TensorSpec
from gateway.modelconfig.parse import ConfigError, parse
from gateway.modelconfig.spec import FRAMEWORK, framework_of, served_versions, to_spec
from gateway.proto.model_config_pb2 import ModelConfig

TENSORS = 'input { name: "a" data_type: TYPE_FP32 dims: 4 } output { name: "b" data_type: TYPE_FP32 dims: 4 } '


def spec(text: str, **given: Any) -> ModelSpec:
    fields = {"name": "m", "version": 3, "path": "models/m/3", "framework": "onnx", **given}
    return to_spec(parse(text, "pbtxt"), **fields)


def test_an_empty_configuration_leaves_everything_to_the_backend() -> None:
    assert spec("") == ModelSpec("m", 3, "onnx", "models/m/3", max_batch_size=None, batching=BatchingSpec())


def test_a_full_configuration() -> None:
    found = spec("""
        name: "m" platform: "onnxruntime_onnx" max_batch_size: 8 default_model_filename: "net.onnx"
        input [ { name: "a" data_type: TYPE_STRING dims: [ -1, 3 ] optional: true } ]
        input { name: "b" data_type: TYPE_BF16 }
        output { name: "c" data_type: TYPE_INT64 dims: 1000 }
        instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_AUTO } ]
        dynamic_batching { preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 100 }
        parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
        optimization { graph { level: 1 } }
    """)
    assert found == ModelSpec(
        name="m",
        version=3,
        framework="onnx",
        path="models/m/3/net.onnx",
        max_batch_size=8,
        batching=BatchingSpec((4, 8), 100),
        inputs=(TensorSpec("a", "BYTES", (-1, -1, 3), optional=True), TensorSpec("b", "BF16", (-1,))),
        outputs=(TensorSpec("c", "INT64", (-1, 1000)),),
        instances=3,
        device="cpu",
        options={"intra_op_thread_count": "1", "graph_optimization_level": "extended"},
    )


def test_without_a_batch_dimension_dims_are_the_whole_shape() -> None:
    found = spec(TENSORS)
    assert found.max_batch_size == 0
    assert found.batching is None
    assert found.inputs == (TensorSpec("a", "FP32", (4,)),)


@pytest.mark.parametrize(
    ("text", "batching"),
    [
        ("", BatchingSpec()),
        ("max_batch_size: 4", BatchingSpec()),
        ("max_batch_size: 4 " + TENSORS, BatchingSpec()),
        ("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5 }", BatchingSpec((), 5)),
        ("max_batch_size: 1", None),
        ("max_batch_size: 1 dynamic_batching { }", None),
        (TENSORS, None),
    ],
)
def test_dynamic_batching_is_on_wherever_more_than_one_row_may_be_batched(
    text: str, batching: BatchingSpec | None
) -> None:
    assert spec(text).batching == batching


@pytest.mark.parametrize(
    ("group", "instances", "device"),
    [
        ("", 1, "cpu"),
        ("instance_group { }", 1, "cpu"),
        ("instance_group { kind: KIND_MODEL count: 2 }", 2, "cpu"),
        ("instance_group { kind: KIND_GPU count: 3 }", 3, "cuda"),
        ("instance_group { kind: KIND_GPU gpus: [ 2 ] } instance_group { kind: KIND_GPU gpus: 2 }", 2, "cuda:2"),
    ],
)
def test_instance_groups_give_number_and_device(group: str, instances: int, device: str) -> None:
    found = spec(group)
    assert (found.instances, found.device) == (instances, device)


@pytest.mark.parametrize(("level", "option"), [(-1, "basic"), (1, "extended"), (2, "disable")])
def test_the_graph_level_becomes_an_option(level: int, option: str) -> None:
    assert spec(f"optimization {{ graph {{ level: {level} }} }}").options == {"graph_optimization_level": option}


def test_a_parameter_goes_before_the_graph_level() -> None:
    parameter = 'parameters { key: "graph_optimization_level" value { string_value: "all" } }'
    assert spec(parameter + "optimization { graph { level: 1 } }").options == {"graph_optimization_level": "all"}


@pytest.mark.parametrize(
    ("path", "found"),
    [("models/m/3", "models/m/3/n.onnx"), ("models/m/3/n.onnx", "models/m/3/n.onnx")],
)
def test_the_default_file_is_looked_for_in_the_versions_folder(path: str, found: str) -> None:
    assert spec('default_model_filename: "n.onnx"', path=path).path == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "other"', ["name is 'other'", "'m'"]),
        ('backend: "tensorflow"', ["'tensorflow'", "'tf'", "'onnx'"]),
        ('backend: "caffe2"', ["backend 'caffe2'", "onnxruntime"]),
        ('platform: "ensemble"', ["platform 'ensemble'"]),
        ("max_batch_size: -1", ["max_batch_size is -1"]),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }", ["preferred_batch_size", "8", "1 to", "4"]),
        ("dynamic_batching { preferred_batch_size: 0 }", ["preferred_batch_size holds 0", "1 or more"]),
        (
            TENSORS + "dynamic_batching { preferred_batch_size: 2 }",
            ["preferred_batch_size holds 2", "max_batch_size 0"],
        ),
        ("instance_group { count: -1 }", ["instance_group[0].count is -1"]),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }", ["cuda:0, cuda:1", "keep one"]),
        ("instance_group { } instance_group { kind: KIND_GPU }", ["cpu, cuda;"]),
        ("instance_group { passive: true }", ["instance_group.passive"]),
        ("input { data_type: TYPE_FP32 }", ["input[0].name is empty"]),
        ('input { name: "a" }', ["input[0] ('a').data_type", "TYPE_FP32"]),
        ('output { name: "a" data_type: 99 }', ["output[0] ('a').data_type"]),
        ('output { name: "a" data_type: TYPE_FP32 dims: [ 3, 0 ] }', ["output[0] ('a').dims is [3, 0]"]),
        ('input { name: "a" data_type: TYPE_FP32 dims: -2 }', ["input[0] ('a').dims is [-2]"]),
        (TENSORS + TENSORS, ["input[1].name 'a' is given twice"]),
        ('default_model_filename: "../other.onnx"', ["default_model_filename '../other.onnx'"]),
        ('default_model_filename: ".."', ["default_model_filename '..'"]),
        ("optimization { graph { level: 7 } }", ["optimization.graph.level is 7"]),
        ("sequence_batching { }", ["sequence_batching is not supported"]),
        ("ensemble_scheduling { }", ["ensemble_scheduling is not supported"]),
        ("model_transaction_policy { decoupled: true }", ["decoupled", "false"]),
        ("batch_input { }", ["batch_input"]),
        ("batch_output { }", ["batch_output"]),
        ('model_operations { op_library_filename: "x.so" }', ["model_operations"]),
        ('model_repository_agents { agents { name: "checksum" } }', ["model_repository_agents"]),
        ('input { name: "a" reshape { } }', ["reshape of input 'a'"]),
        ('output { name: "b" is_shape_tensor: true }', ["is_shape_tensor of output 'b'"]),
        ('input { name: "a" allow_ragged_batch: true }', ["allow_ragged_batch of input 'a'"]),
        ('input { name: "a" is_non_linear_format_io: true }', ["is_non_linear_format_io of input 'a'"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(text)
    assert all(part in str(caught.value) for part in said), str(caught.value)


def test_what_changes_no_answer_is_ignored_and_said(caplog: pytest.LogCaptureFixture) -> None:
    text = """
        runtime: "x" response_cache { enable: true } metric_tags { key: "a" value: "b" }
        optimization { graph { } cuda { graphs: true } }
        instance_group { count: 1 gpus: 1 rate_limiter { } }
    """
    with caplog.at_level(logging.WARNING):
        found = spec(text)
    assert found == spec("")
    (message, *_) = caplog.messages
    for field in (
        "runtime", "response_cache", "metric_tags", "optimization.cuda",
        "instance_group.rate_limiter", "instance_group.gpus without KIND_GPU",
    ):  # fmt: skip
        assert field in message
    assert "optimization.graph" not in message
    assert "instance_group.count" not in message


def test_what_is_honoured_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    spec("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 1 } instance_group { count: 1 }")
    assert caplog.messages == []


def test_the_backend_names_the_framework() -> None:
    assert framework_of(ModelConfig()) is None
    assert framework_of(ModelConfig(platform="onnxruntime_onnx")) == "onnx"
    assert framework_of(ModelConfig(backend="pytorch", platform="whatever")) == "torch"
    assert {framework_of(ModelConfig(backend=name)) for name in FRAMEWORK} == {"onnx", "torch", "tf", "trtllm", "echo"}


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", [7]),
        ("version_policy { }", [7]),
        ("version_policy { latest { } }", [7]),
        ("version_policy { latest { num_versions: 2 } }", [3, 7]),
        ("version_policy { latest { num_versions: 9 } }", [1, 3, 7]),
        ("version_policy { all { } }", [1, 3, 7]),
        ("version_policy { specific { versions: [ 7, 1, 5 ] } }", [1, 7]),
        ("version_policy { specific { } }", []),
    ],
)
def test_the_version_policy_chooses_versions(policy: str, served: list[int]) -> None:
    assert served_versions(parse(policy, "pbtxt"), [7, 1, 3]) == served
    assert served_versions(parse(policy, "pbtxt"), []) == []
