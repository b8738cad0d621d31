"""Our definition files against the client's, and what is committed against the definition files."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2 as client_config
from tritonclient.grpc import service_pb2 as client_service

from gateway.proto import POOL, SERVICE, descriptor_set, inference_pb2, model_config_pb2

ROOT = Path(__file__).parents[2]


def file_proto(descriptor: Any) -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    descriptor.CopyToProto(proto)
    return proto


def enum_facts(path: str, enum: descriptor_pb2.EnumDescriptorProto) -> Iterator[tuple[Any, ...]]:
    for value in enum.value:
        yield "value", f"{path}.{enum.name}", value.name, value.number


def message_facts(path: str, message: descriptor_pb2.DescriptorProto) -> Iterator[tuple[Any, ...]]:
    """Everything about a message that its wire form depends on."""
    path = f"{path}.{message.name}"
    yield "message", path, message.options.map_entry
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        kind = (field.number, field.type, field.label, field.type_name)
        yield "field", path, field.name, kind, oneof, field.options.packed
    for nested in message.nested_type:
        yield from message_facts(path, nested)
    for enum in message.enum_type:
        yield from enum_facts(path, enum)


def file_facts(file: descriptor_pb2.FileDescriptorProto) -> set[tuple[Any, ...]]:
    facts: set[tuple[Any, ...]] = {("file", file.package, file.syntax)}
    for message in file.message_type:
        facts.update(message_facts(file.package, message))
    for enum in file.enum_type:
        facts.update(enum_facts(file.package, enum))
    for service in file.service:
        for method in service.method:
            streams = (method.client_streaming, method.server_streaming)
            facts.add(("method", service.name, method.name, method.input_type, method.output_type, streams))
    return facts


@pytest.mark.parametrize(
    ("ours", "theirs"), [(inference_pb2, client_service), (model_config_pb2, client_config)], ids=["service", "config"]
)
def test_every_message_field_enum_and_method_equals_the_clients(ours: Any, theirs: Any) -> None:
    own, client = file_facts(file_proto(ours.DESCRIPTOR)), file_facts(file_proto(theirs.DESCRIPTOR))
    assert len(own) > 100
    assert own - client == set()
    assert client - own == set()


def test_the_messages_live_in_a_pool_of_their_own() -> None:
    assert inference_pb2.ModelInferRequest.DESCRIPTOR.full_name == client_service.ModelInferRequest.DESCRIPTOR.full_name
    assert inference_pb2.ModelInferRequest.DESCRIPTOR is not client_service.ModelInferRequest.DESCRIPTOR
    assert POOL.FindMessageTypeByName("inference.ModelConfig") is model_config_pb2.ModelConfig.DESCRIPTOR


def test_a_message_travels_from_the_client_to_us_and_back() -> None:
    theirs = client_service.ModelConfigResponse(config=client_config.ModelConfig(name="m", max_batch_size=4))
    ours = inference_pb2.ModelConfigResponse.FromString(theirs.SerializeToString())
    assert ours.config == model_config_pb2.ModelConfig(name="m", max_batch_size=4)
    assert client_service.ModelConfigResponse.FromString(ours.SerializeToString()) == theirs


def test_the_modules_hold_messages_enums_and_enum_values() -> None:
    assert model_config_pb2.DataType.Name(model_config_pb2.TYPE_STRING) == "TYPE_STRING"
    assert model_config_pb2.ModelInstanceGroup.KIND_GPU == client_config.ModelInstanceGroup.KIND_GPU
    assert SERVICE in {service.full_name for service in inference_pb2.DESCRIPTOR.services_by_name.values()}


def test_the_committed_descriptors_are_a_fresh_compilation() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools compiles the definition files")
    fresh = runpy.run_path(str(ROOT / "scripts" / "build_protos.py"))["descriptor_set"]()
    assert descriptor_set() == descriptor_pb2.FileDescriptorSet.FromString(fresh), "run scripts/build_protos.py"


def stub_names(body: list[ast.stmt], path: str = "") -> Iterator[str]:
    """Annotated names in a stub, of those classes that are messages."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            is_message = any(ast.unparse(base).endswith("Message") for base in node.bases)
            yield from stub_names(node.body, f"{path}{node.name}.") if is_message else ()
        elif path and isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            yield path + ast.unparse(node.target)


def field_names(message: Any, path: str = "") -> Iterator[str]:
    path = f"{path}{message.name}."
    for field in message.fields:
        if field.name != "global":  # a keyword of Python's; stubs leave it out
            yield path + field.name
    for nested in message.nested_types:
        yield from field_names(nested, path)


@pytest.mark.parametrize("module", [inference_pb2, model_config_pb2], ids=["inference", "model_config"])
def test_the_committed_stubs_declare_every_field(module: Any) -> None:
    stub = Path(module.__file__).with_suffix(".pyi").read_text()
    expected: set[str] = set()
    for message in module.DESCRIPTOR.message_types_by_name.values():
        expected.update(field_names(message))
    declared = {name for name in stub_names(ast.parse(stub).body) if not name.endswith(".DESCRIPTOR")}
    # enum values that a message shows as its own are annotated in the stub too
    declared = {name for name in declared if not name.rpartition(".")[2].isupper()}
    assert declared == expected
