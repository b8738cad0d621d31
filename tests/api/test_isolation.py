"""A worker that dies, hangs or stops answering costs its own requests, for a while; other models never notice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support import onnx_models
from support.clients import PROTOCOLS, TRANSPORTS, Refused, floats, grpc_channel, infer
from support.load import Load, index_entry, steady_load
from support.repository import add_echo, add_onnx
from support.server import Server, running

#: One model for each way to go wrong: a worker that dies again and again is given up at last.
FAULTY: Final = ("killed", "watched", "crashing", "hanging", "frozen", "stopped", "talking")
#: A worker that comes back takes so long to load that nobody can miss that it was away.
SLOW_LOAD: Final = {"load_delay_ms": "700"}
LIMITS: Final = {
    "TENSORGATE_HEARTBEAT_S": "0.2",
    "TENSORGATE_HEARTBEAT_TIMEOUT_S": "3",
    "TENSORGATE_EXECUTION_TIMEOUT_S": "2",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, with short limits."""
    repository = tmp_path_factory.mktemp("repository")
    for name in FAULTY:
        add_echo(repository, name, options=SLOW_LOAD)
    add_onnx(repository, "steady", onnx_models.identity("FP32", ("length",)))
    with running(tmp_path_factory.mktemp("server"), repository, environment=LIMITS) as started:
        yield started


def test_kill_9_under_load_costs_only_what_the_worker_had(server: Server) -> None:
    with (
        steady_load(server, PROTOCOLS) as steady,
        Load(server, "killed", (*TRANSPORTS, "rest-aio"), {"delay_ms": 20}) as load,
    ):
        load.wait_for_more()
        assert load.refused == []
        first = server.worker("killed")
        first.kill()
        server.wait(lambda: not server.is_ready("killed"), "the model to be not ready")
        assert not server.is_ready(), "nor is the server: one of its models is away"
        assert server.is_ready("steady")
        steady.wait_for_more()
        server.wait_ready("killed")
        server.wait_ready()
        load.wait_for_more()
        assert server.worker("killed").pid != first.pid
    assert load.refused, "what was in flight has to be told"
    for error in load.refused:
        assert error.meaning == "unavailable", error
        assert "died" in error.text or "not at ready state" in error.text or "gone" in error.text
    assert any("died" in error.text for error in load.refused)
    assert any("SIGKILL" in error.text for error in load.refused), "who asks meanwhile is told why it is away"


def test_grpc_health_tells_those_who_watch_that_a_model_left_and_came_back(server: Server) -> None:
    with grpc_channel(server) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="watched"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.worker("watched").kill()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    assert infer("grpc", server, "watched", floats(1)).outputs["y"].tolist() == [1]


@pytest.mark.parametrize("protocol", TRANSPORTS)
@pytest.mark.parametrize(("crash", "reason"), [("7", "exited with code 7"), ("SIGSEGV", "SIGSEGV"), ("0", "code 0")])
def test_a_model_that_ends_its_process_is_started_again(server: Server, protocol: str, crash: str, reason: str) -> None:
    server.wait_ready("crashing")
    with pytest.raises(Refused) as refused:
        infer(protocol, server, "crashing", floats(1), parameters={"crash": crash})
    assert refused.value.meaning == "unavailable", refused.value
    assert "crashing:1-0" in refused.value.text
    assert "died" in refused.value.text
    assert not server.is_ready("crashing"), "who has been told so must not be sent there again"
    server.wait(lambda: reason in index_entry(server, "crashing").get("reason", ""), "the index to tell why")
    assert index_entry(server, "crashing")["state"] == "LOADING"
    server.wait_ready("crashing")
    assert infer(protocol, server, "crashing", floats(2)).outputs["y"].tolist() == [2]


def lose(server: Server, protocol: str, model: str, parameters: dict[str, Any], setting: str) -> None:
    """A request that the worker never answers is given up, by name of the limit; then the model comes back."""
    server.wait_ready(model)
    with steady_load(server, PROTOCOLS):
        with pytest.raises(Refused) as refused:
            infer(protocol, server, model, floats(1), parameters=parameters)
        assert refused.value.meaning == "unavailable", refused.value
        assert setting in refused.value.text
        assert not server.is_ready(model), "who has been told so must not be sent there again"
        server.wait_ready(model)
    assert infer(protocol, server, model, floats(2)).outputs["y"].tolist() == [2]


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_model_that_never_ends_is_given_up_after_the_execution_timeout(server: Server, protocol: str) -> None:
    lose(server, protocol, "hanging", {"hang": "true"}, "execution_timeout_s")


def test_a_model_that_stops_all_threads_is_found_out_by_its_silence(server: Server) -> None:
    lose(server, "rest", "frozen", {"hang": "gil"}, "heartbeat_timeout_s")


def test_a_worker_that_is_stopped_is_found_out_by_its_silence(server: Server) -> None:
    server.wait_ready("stopped")
    server.worker("stopped").suspend()
    lose(server, "grpc", "stopped", {}, "heartbeat_timeout_s")


def test_those_who_wait_behind_a_request_that_hangs_are_told_as_well(server: Server) -> None:
    server.wait_ready("hanging")
    errors: list[Refused] = []

    def ask(parameters: dict[str, Any]) -> Callable[[], None]:
        def run() -> None:
            with pytest.raises(Refused) as refused:
                infer("rest", server, "hanging", floats(1), parameters=parameters)
            errors.append(refused.value)

        return run

    line = {"print_bytes": 80}
    threads = [threading.Thread(target=ask(line | {"hang": "true"}))]
    threads[0].start()
    server.wait_for_log(r"\[hanging:1-0\] x{79}")
    threads += [threading.Thread(target=ask({})) for _ in range(20)]  # more than the worker takes at a time
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error.meaning for error in errors] == ["unavailable"] * 21
    server.wait_ready("hanging")
    assert infer("grpc", server, "hanging", floats(2)).outputs["y"].tolist() == [2]


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_model_that_fills_its_output_is_answered(server: Server, protocol: str) -> None:
    """Far more than a pipe holds: somebody has to read it."""
    answer = infer(protocol, server, "talking", floats(1), parameters={"print_bytes": 400_000})
    assert answer.outputs["y"].tolist() == [1]
