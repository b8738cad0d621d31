"""Health, metadata, configuration, statistics and index: the same over both transports and in every client."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from google.protobuf.json_format import MessageToDict, ParseDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from support.clients import TRANSPORTS, Refused, floats, grpc_channel, grpc_stub, infer, refusal
from support.rest import http_call
from support.server import Server

CLIENTS: dict[str, Any] = {
    "http": tritonclient.http.InferenceServerClient,
    "http.aio": tritonclient.http.aio.InferenceServerClient,
    "grpc": tritonclient.grpc.InferenceServerClient,
    "grpc.aio": tritonclient.grpc.aio.InferenceServerClient,
}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def ask(server: Server, kind: str, question: Callable[[Any], Any]) -> Any:
    """Ask one of the four clients; messages as dictionaries, with the names of REST."""
    url = server.http if kind.startswith("http") else server.grpc

    async def ask_aio() -> Any:
        async with CLIENTS[kind](url) as client:
            return await question(client)

    if kind.endswith(".aio"):
        answer = asyncio.run(ask_aio())
    else:
        with CLIENTS[kind](url) as client:
            answer = question(client)
    assert not inspect.isawaitable(answer)
    if hasattr(answer, "DESCRIPTOR"):
        return MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return answer


every_client = pytest.mark.parametrize("kind", CLIENTS)


# --- health ----------------------------------------------------------------------------------------------------------


@every_client
def test_the_server_lives_and_is_ready(server: Server, kind: str) -> None:
    assert ask(server, kind, lambda client: client.is_server_live()) is True
    assert ask(server, kind, lambda client: client.is_server_ready()) is True


@every_client
@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [("versions", "", True), ("versions", "1", True), ("versions", "9", False), ("versions", "x", False),
     ("nobody", "", False), ("a name+\u00fc%41", "", True)],
)  # fmt: skip
def test_a_model_says_whether_it_is_ready(server: Server, kind: str, model: str, version: str, ready: bool) -> None:
    assert ask(server, kind, lambda client: client.is_model_ready(model, version)) is ready


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_is_a_status_without_a_body(server: Server, path: str, method: str) -> None:
    reply = http_call(server, method, path)
    assert (reply.status, reply.body) == (200, b"")


def test_a_model_that_is_not_ready_answers_400_with_a_reason(server: Server) -> None:
    reply = http_call(server, "GET", "/v2/models/nobody/ready")
    assert reply.status == 400
    assert "not ready" in reply.error


@pytest.mark.parametrize(
    ("service", "status"),
    [("", SERVING), ("inference.GRPCInferenceService", SERVING), ("echo", SERVING)],
)
def test_grpc_health_checks_the_server_and_single_models(server: Server, service: str, status: int) -> None:
    with grpc_channel(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == status


def test_grpc_health_knows_no_other_service(server: Server) -> None:
    with grpc_channel(server) as channel, pytest.raises(grpc.RpcError) as raised:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert refusal(raised.value).meaning == "not found"


@pytest.mark.parametrize(("service", "status"), [("", SERVING), ("echo", SERVING), ("nobody", SERVICE_UNKNOWN)])
def test_grpc_health_can_be_watched(server: Server, service: str, status: int) -> None:
    with grpc_channel(server) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
        assert next(watch).status == status
        watch.cancel()


# --- metadata --------------------------------------------------------------------------------------------------------


@every_client
def test_the_server_tells_its_name_version_and_extensions(server: Server, kind: str) -> None:
    metadata = ask(server, kind, lambda client: client.get_server_metadata())
    assert metadata["name"] == "tensorgate"
    assert metadata["version"]
    assert {"model_configuration", "binary_tensor_data", "parameters", "statistics"} <= set(metadata["extensions"])


@every_client
def test_a_model_tells_what_it_takes_and_gives(server: Server, kind: str) -> None:
    metadata = ask(server, kind, lambda client: client.get_model_metadata("simple"))
    shape = [-1, 16] if kind.startswith("http") else ["-1", "16"]
    assert metadata == {
        "name": "simple",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": name, "datatype": "INT32", "shape": shape} for name in ("INPUT0", "INPUT1")],
        "outputs": [{"name": name, "datatype": "INT32", "shape": shape} for name in ("OUTPUT0", "OUTPUT1")],
    }


@every_client
def test_metadata_lists_the_versions_that_are_ready(server: Server, kind: str) -> None:
    assert ask(server, kind, lambda client: client.get_model_metadata("versions"))["versions"] == ["1", "2"]
    assert ask(server, kind, lambda client: client.get_model_metadata("versions", "1"))["versions"] == ["1"]


@every_client
def test_a_quoted_name_is_found(server: Server, kind: str) -> None:
    assert ask(server, kind, lambda client: client.get_model_metadata("a name+\u00fc%41"))["name"] == "a name+\u00fc%41"


def test_a_scalars_shape_is_empty(server: Server) -> None:
    assert http_call(server, "GET", "/v2/models/scalar_fp32").json["inputs"][0]["shape"] == []


# --- configuration ---------------------------------------------------------------------------------------------------


@every_client
def test_the_configuration_is_complete(server: Server, kind: str) -> None:
    answer = ask(server, kind, lambda client: client.get_model_config("simple"))
    config = answer if kind.startswith("http") else answer["config"]
    assert config["name"] == "simple"
    assert config["max_batch_size"] == 8
    assert config["platform"] == "onnxruntime_onnx" or config["backend"] == "onnxruntime"
    assert [
        (tensor["name"], tensor["data_type"], [int(dim) for dim in tensor["dims"]]) for tensor in config["input"]
    ] == [
        ("INPUT0", "TYPE_INT32", [16]),
        ("INPUT1", "TYPE_INT32", [16]),
    ]
    assert [tensor["name"] for tensor in config["output"]] == ["OUTPUT0", "OUTPUT1"]


def test_the_configuration_is_the_same_over_both_transports(server: Server) -> None:
    for model in ("simple", "table", "echo", "identity_bytes", "scalar_fp32"):
        rest = http_call(server, "GET", f"/v2/models/{model}/config").json
        with grpc_stub(server) as stub:
            message = stub.ModelConfig(service_pb2.ModelConfigRequest(name=model)).config
        assert ParseDict(rest, type(message)()) == message, model


# --- statistics ------------------------------------------------------------------------------------------------------

DURATIONS = {
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
}  # fmt: skip


@every_client
def test_statistics_hold_every_counter(server: Server, kind: str) -> None:
    infer("rest", server, "echo", floats(1))
    answer = ask(server, kind, lambda client: client.get_inference_statistics("echo"))
    (entry,) = answer["model_stats"]
    assert (entry["name"], entry["version"]) == ("echo", "1")
    assert set(entry["inference_stats"]) == DURATIONS
    assert all(set(duration) == {"count", "ns"} for duration in entry["inference_stats"].values())
    assert int(entry["inference_count"]) >= 1
    assert int(entry["execution_count"]) >= 1
    assert int(entry["last_inference"]) > 1_700_000_000_000
    assert int(entry["batch_stats"][0]["batch_size"]) == 1
    assert {"compute_input", "compute_infer", "compute_output"} <= set(entry["batch_stats"][0])


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_statistics_are_current_as_soon_as_the_answer_is_there(server: Server, protocol: str) -> None:
    before = statistics(server, "echo")
    for _ in range(5):
        infer(protocol, server, "echo", floats(1, 2))
    with pytest.raises(Refused):
        infer(protocol, server, "echo", floats(1), outputs=("nobody",))
    after = statistics(server, "echo")
    assert after["inference_count"] - before["inference_count"] == 5
    assert after["execution_count"] - before["execution_count"] == 5
    growth = {
        name: after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"] for name in DURATIONS
    }
    expected = {"success": 5, "fail": 1, "queue": 5, "compute_input": 5, "compute_infer": 5, "compute_output": 5}
    assert growth == expected | {"cache_hit": 0, "cache_miss": 0}
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    nanoseconds = {
        name: after["inference_stats"][name]["ns"] - before["inference_stats"][name]["ns"] for name in DURATIONS
    }
    assert 0 < sum(nanoseconds[name] for name in parts) <= nanoseconds["success"]


def statistics(server: Server, model: str) -> Any:
    """The counters of a model with one version."""
    (entry,) = http_call(server, "GET", f"/v2/models/{model}/stats").json["model_stats"]
    return entry


def test_statistics_of_all_models_and_of_one_version(server: Server) -> None:
    for path in ("/v2/models/stats", "/v2/models/stats/"):
        names = [entry["name"] for entry in http_call(server, "GET", path).json["model_stats"]]
        assert names == sorted(names)
        assert {"echo", "simple", "versions"} <= set(names)
    one = http_call(server, "GET", "/v2/models/versions/versions/2/stats").json["model_stats"]
    assert [(entry["name"], entry["version"]) for entry in one] == [("versions", "2")]
    both = http_call(server, "GET", "/v2/models/versions/stats").json["model_stats"]
    assert [entry["version"] for entry in both] == ["1", "2"]


# --- the repository's index ------------------------------------------------------------------------------------------


@every_client
def test_the_index_lists_every_version_with_its_state(server: Server, kind: str) -> None:
    answer = ask(server, kind, lambda client: client.get_model_repository_index())
    entries = answer if kind.startswith("http") else answer["models"]
    states = {(entry["name"], entry["version"]): entry["state"] for entry in entries}
    assert states["versions", "1"] == states["versions", "2"] == states["echo", "1"] == "READY"


@pytest.mark.parametrize("body", [b"", b"  ", b"{}", b'{"ready": true}', b'{"ready": false, "more": 1}'])
def test_the_index_takes_an_empty_body_and_a_filter(server: Server, body: bytes) -> None:
    reply = http_call(server, "POST", "/v2/repository/index", body)
    assert reply.status == 200
    assert {"name": "echo", "version": "1", "state": "READY"} in reply.json


@pytest.mark.parametrize("body", [b'{"ready": "yes"}', b'{"ready": 1}', b"[]", b"null", b"{", b"[" * 250_000])
def test_a_filter_that_makes_no_sense_is_refused(server: Server, body: bytes) -> None:
    reply = http_call(server, "POST", "/v2/repository/index", body)
    assert reply.status == 400
    assert "ready" in reply.error


def test_the_list_of_models_names_those_that_are_ready(server: Server) -> None:
    assert {"echo", "simple", "a name+\u00fc%41"} <= set(http_call(server, "GET", "/v2/models").json["models"])
