"""The completed configuration: what perf_analyzer reads, and that it means the same when it is read again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from backends.spec import BatchingSpec, ModelSpec, QueuePolicy, Signature, TensorSpec
from gateway.modelconfig.parse import from_dict, parse
from gateway.modelconfig.render import render, to_json
from gateway.modelconfig.spec import to_spec
from gateway.proto.model_config_pb2 import ModelConfig

SPEC = ModelSpec("m", 3, "onnx", "models/m/3", instances=2, options={"threads": "1"})
BATCHED = Signature(
    "onnxruntime_onnx",
    (TensorSpec("a", "FP32", (-1, 16)), TensorSpec("s", "BYTES", (-1,), optional=True)),
    (TensorSpec("b", "INT64", (-1, -1, 2)),),
    max_batch_size=8,
    batching=BatchingSpec((4,), 100),
)
PLAIN = Signature("onnxruntime_onnx", (TensorSpec("a", "FP32", (1, 16)),), (TensorSpec("b", "BF16", (-1,)),))


def rendered(spec: ModelSpec, signature: Signature, text: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(render(spec, signature, parse(text, "pbtxt"), (3, 1))))
    return found


def test_an_automatic_configuration_is_completed() -> None:
    found = rendered(SPEC, BATCHED)
    assert (found["name"], found["platform"], found["backend"]) == ("m", "onnxruntime_onnx", "onnxruntime")
    assert found["max_batch_size"] == 8
    assert [(e["name"], e["data_type"], e["dims"], e["optional"]) for e in found["input"]] == [
        ("a", "TYPE_FP32", [16], False),
        ("s", "TYPE_STRING", [], True),
    ]
    assert [(e["name"], e["data_type"], e["dims"]) for e in found["output"]] == [("b", "TYPE_INT64", [-1, 2])]
    assert found["dynamic_batching"]["preferred_batch_size"] == [4]
    assert found["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert found["version_policy"] == {"specific": {"versions": [1, 3]}}
    assert found["default_model_filename"] == "model.onnx"
    assert found["parameters"] == {"threads": {"string_value": "1"}}
    assert found["model_transaction_policy"] == {"decoupled": False}
    (group,) = found["instance_group"]
    assert (group["name"], group["kind"], group["count"], group["gpus"]) == ("m_0", "KIND_CPU", 2, [])


def test_without_a_batch_dimension_dims_are_the_whole_shape_and_nothing_is_batched() -> None:
    found = rendered(SPEC, PLAIN)
    assert found["max_batch_size"] == 0
    assert found["input"][0]["dims"] == [1, 16]
    assert found["output"][0]["dims"] == [-1]
    assert "dynamic_batching" not in found


def test_the_fields_that_clients_read_are_present_even_when_empty() -> None:
    found = rendered(ModelSpec("e", 1, "echo", ""), Signature("echo", (), ()))
    assert {"name", "platform", "max_batch_size", "input", "output"} <= found.keys()
    assert (found["input"], found["output"], found["max_batch_size"], found["backend"]) == ([], [], 0, "echo")


def test_a_gpu_is_shown_with_its_number() -> None:
    (group,) = rendered(ModelSpec("m", 1, "onnx", "m.onnx", device="cuda:2"), PLAIN)["instance_group"]
    assert (group["kind"], group["gpus"]) == ("KIND_GPU", [2])


def test_the_file_of_the_artifact_is_shown() -> None:
    assert rendered(ModelSpec("m", 1, "onnx", "models/net.onnx"), PLAIN)["default_model_filename"] == "net.onnx"
    given = rendered(ModelSpec("m", 1, "onnx", "models/1"), PLAIN, 'default_model_filename: "given.onnx"')
    assert given["default_model_filename"] == "given.onnx"


def test_what_the_author_said_beyond_the_signature_is_kept() -> None:
    text = """
        input { name: "a" data_type: TYPE_FP32 dims: 99 format: FORMAT_NCHW }
        output { name: "b" label_filename: "labels.txt" }
        metric_tags { key: "team" value: "vision" }
    """
    found = rendered(SPEC, BATCHED, text)
    assert (found["input"][0]["format"], found["input"][0]["dims"]) == ("FORMAT_NCHW", [16])
    assert found["output"][0]["label_filename"] == "labels.txt"
    assert found["metric_tags"] == {"team": "vision"}


@pytest.mark.parametrize("declared", ["", "all {}", "latest { num_versions: 2 }", "specific { versions: 9 }"])
def test_the_version_policy_names_the_versions_that_are_loaded_whatever_was_declared(declared: str) -> None:
    found = rendered(SPEC, PLAIN, f"version_policy {{ {declared} }}")
    assert found["version_policy"] == {"specific": {"versions": [1, 3]}}


def test_a_cache_that_does_not_exist_is_not_shown() -> None:
    assert "response_cache" not in rendered(SPEC, PLAIN, "response_cache { enable: true }")


def test_the_declared_configuration_is_not_changed() -> None:
    config = parse('max_batch_size: 8 input { name: "a" data_type: TYPE_FP32 dims: 99 }', "pbtxt")
    before = config.SerializeToString(deterministic=True)
    render(SPEC, BATCHED, config, (3,))
    assert config.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("signature", [BATCHED, PLAIN], ids=["batched", "plain"])
def test_the_completed_configuration_means_what_is_served(signature: Signature) -> None:
    full = render(SPEC, signature, ModelConfig(), (3,))
    again = from_dict(json.loads(to_json(full)))
    assert again == full
    spec = to_spec(again, name="m", version=3, path="models/m/3", framework="onnx")
    assert (spec.inputs, spec.outputs) == (signature.inputs, signature.outputs)
    assert (spec.max_batch_size, spec.batching) == (signature.max_batch_size, signature.batching)
    assert (spec.instances, spec.device, spec.options) == (2, "cpu", {"threads": "1"})


def test_numbers_of_64_bits_are_numbers_at_every_depth() -> None:
    text = 'model_warmup { inputs { key: "a" value { dims: [ 16 ] } } }'
    rules = BatchingSpec(priority_levels=1, default_priority=1, policies={1: QueuePolicy(timeout_us=5)})
    found = rendered(SPEC, msgspec.structs.replace(BATCHED, batching=rules), text)
    assert found["model_warmup"][0]["inputs"]["a"]["dims"] == [16]
    assert found["dynamic_batching"]["priority_queue_policy"]["1"]["default_timeout_microseconds"] == 5
