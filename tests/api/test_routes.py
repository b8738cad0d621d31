"""Routes and calls: what is found however it is written, what is not, and what is not offered."""

from __future__ import annotations

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from support.clients import floats, grpc_channel, grpc_stub, infer, refusal
from support.rest import http_call, talk
from support.server import Server


@pytest.mark.parametrize(
    "path",
    ["/v2/", "/v2?x=1", "/v2/models/echo/?a=b", "/v2/models/a%20name+%C3%BC%2541", "/v2/models/echo/versions/1",
     "/v2/models/echo/versions/1/", "/v2/models/%65cho"],
)  # fmt: skip
def test_slashes_at_the_end_query_strings_and_quoting_do_not_matter(server: Server, path: str) -> None:
    assert http_call(server, "GET", path).json["name"] in ("tensorgate", "echo", "a name+\u00fc%41")


def test_a_url_may_name_the_host(server: Server) -> None:
    request = f"GET http://{server.http}/v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert talk(server, request.encode()).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v3/models", "/v2/nothing", "/v2/models/echo/nothing", "/v2/models/echo/versions/1/infer/more",
     "/v2/models/echo/versions", "/v2/models//infer", "/v2/health", "/v2/health/live/x", "/v2nothing", "/V2",
     "/v2%2Fhealth%2Flive", "/v2/models/echo/generate", "/favicon.ico", "/%00", "/v2/%ff%fe"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_route_is_404_in_the_protocols_form(server: Server, path: str, method: str) -> None:
    reply = http_call(server, method, path, b"{}" if method == "POST" else None)
    assert reply.status == 404
    assert reply.error


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v2/models/echo/infer", "POST"), ("PUT", "/v2/models/echo/infer", "POST"), ("POST", "/v2", "GET"),
     ("DELETE", "/v2/models/echo", "GET"), ("GET", "/v2/repository/index", "POST"), ("POST", "/v2/health/live", "GET"),
     ("OPTIONS", "/v2/models/echo/infer", "POST"), ("PATCH", "/v2/models/stats", "GET")],
)  # fmt: skip
def test_a_method_that_does_not_fit_is_405_and_names_the_one_that_does(
    server: Server, method: str, path: str, allowed: str
) -> None:
    reply = http_call(server, method, path, b"{}")
    assert reply.status == 405
    assert allowed in reply.error
    assert reply.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path", ["/v2/models/nobody", "/v2/models/nobody/config", "/v2/models/nobody/stats", "/v2/models/echo/versions/7",
             "/v2/models/echo/versions/v1", "/v2/models/echo/versions/-1", "/v2/models/echo/versions/" + "9" * 5000,
             "/v2/models/..%2F..%2Fetc", "/v2/models/%2e%2e", "/v2/models/" + "x" * 4000, "/v2/models/%00",
             "/v2/models/%F0%9F%99%82"],
)  # fmt: skip
def test_an_unknown_model_or_version_is_404_and_named(server: Server, path: str) -> None:
    reply = http_call(server, "GET", path)
    assert reply.status == 404
    assert "is not found" in reply.error


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
@pytest.mark.parametrize(("name", "version"), [("nobody", ""), ("echo", "7"), ("echo", "v1"), ("../x", ""), ("\0", "")])
def test_grpc_answers_not_found_for_them(server: Server, method: str, name: str, version: str) -> None:
    request = getattr(service_pb2, f"{method}Request")(name=name, version=version)
    with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as raised:
        getattr(stub, method)(request)
    assert refusal(raised.value).meaning == "not found"
    assert "is not found" in refusal(raised.value).text


def test_a_model_may_have_the_name_of_a_route(server: Server) -> None:
    """``/v2/models/stats`` is the statistics of all models; whatever lies below is the model's."""
    assert len(http_call(server, "GET", "/v2/models/stats").json["model_stats"]) > 10
    assert http_call(server, "GET", "/v2/models/stats/versions/1").json["name"] == "stats"
    assert http_call(server, "GET", "/v2/models/stats/ready").status == 200
    assert [entry["name"] for entry in http_call(server, "GET", "/v2/models/stats/stats").json["model_stats"]] == [
        "stats"
    ]
    assert infer("rest", server, "stats", floats(1)).model == "stats"


@pytest.mark.parametrize("path", ["/v2", "/v2/models/echo", "/v2/models/echo/config", "/v2/models/nobody"])
def test_head_answers_like_get_without_the_body(server: Server, path: str) -> None:
    get, head = http_call(server, "GET", path), http_call(server, "HEAD", path)
    assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")


def test_http_1_0_is_answered_and_the_connection_closed(server: Server) -> None:
    assert talk(server, b"GET /v2/health/live HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")


QUESTIONS = (
    "get_trace_settings", "get_log_settings", "get_system_shared_memory_status", "get_cuda_shared_memory_status",
)  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_extension_that_is_not_offered_is_refused_in_a_form_that_clients_read(server: Server, question: str) -> None:
    with (
        tritonclient.http.InferenceServerClient(server.http) as rest,
        tritonclient.grpc.InferenceServerClient(server.grpc) as rpc,
    ):
        for client, status in ((rest, "404"), (rpc, "StatusCode.UNIMPLEMENTED")):
            with pytest.raises(InferenceServerException) as raised:
                getattr(client, question)()
            assert raised.value.status() == status
            assert "decoding the response" not in raised.value.message()


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"])
def test_a_grpc_call_that_is_not_offered_says_so(server: Server, method: str) -> None:
    with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as raised:
        getattr(stub, method)(getattr(service_pb2, f"{method}Request")())
    assert refusal(raised.value).meaning == "unsupported"
    assert method in refusal(raised.value).text


def test_a_grpc_stream_that_is_not_offered_says_so(server: Server) -> None:
    with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as raised:
        list(stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest(model_name="echo")])))
    assert refusal(raised.value).meaning == "unsupported"
    assert "ModelStreamInfer" in refusal(raised.value).text


def test_a_grpc_call_that_nobody_knows_is_unimplemented(server: Server) -> None:
    with grpc_channel(server) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/inference.GRPCInferenceService/Nothing", bytes, bytes)(b"")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_tells_the_services_and_their_messages(server: Server) -> None:
    with grpc_channel(server) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(database.get_services())
        service = descriptor_pool.DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
        assert service.FindMethodByName("ModelInfer").input_type.fields_by_name["raw_input_contents"].number == 7
