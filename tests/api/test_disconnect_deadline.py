"""A client that leaves, or whose time is up, costs nothing further: what waits for it never runs, others go on.

The ``echo`` model runs one request at a time. Each test first keeps it busy with a request that says when it has begun.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import grpc
import pytest
from tritonclient.grpc import service_pb2

from support.clients import PROTOCOLS, TRANSPORTS, Refused, Request, floats, grpc_stub, infer, refusal, typed_message
from support.rest import connect, http_call
from support.server import Server

pytestmark = pytest.mark.usefixtures("unharmed")

#: One line of output, by which the log tells that a request is being executed.
LINE: Final = {"print_bytes": 80}


class Busy:
    """A request that occupies the model; ``over`` says that it was answered."""

    def __init__(self, server: Server, milliseconds: int) -> None:
        self.over = False
        self._server = server
        self._milliseconds = milliseconds
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        before = executions_begun(self._server)
        self._thread.start()
        self._server.wait(lambda: executions_begun(self._server) > before, "the model to be busy")
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        assert self.over, "the request that kept the model busy failed"

    def _run(self) -> None:
        infer("rest", self._server, "echo", floats(0), parameters=LINE | {"delay_ms": self._milliseconds})
        self.over = True


def executions_begun(server: Server) -> int:
    """How many requests with ``LINE`` have begun to run."""
    return server.log.count("[echo:1-0] " + "x" * 79)


def statistics(server: Server) -> Any:
    """The counters of ``echo``."""
    return http_call(server, "GET", "/v2/models/echo/stats").json["model_stats"][0]


def executions(server: Server) -> int:
    """Batches that were executed."""
    return int(statistics(server)["execution_count"])


def failures(server: Server) -> int:
    """Requests that failed, those of clients that left included."""
    return int(statistics(server)["inference_stats"]["fail"]["count"])


# --- clients that leave ----------------------------------------------------------------------------------------------


#: Prints a line if it ever runs, and takes a while then.
TELLTALE: Final = LINE | {"delay_ms": 300}


def rest_request() -> bytes:
    """A request as bytes."""
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor], "parameters": TELLTALE}).encode()
    return b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def rest_client(server: Server, *, reset: bool) -> Iterator[None]:
    """Sends a request, and is gone at the end of the block."""
    with connect(server) as connection:
        if reset:  # closing sends RST at once, as the kernel does for a process that was killed
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(rest_request())
        yield


@contextlib.contextmanager
def pipelining_client(server: Server) -> Iterator[None]:
    """Sends several requests at once, of which all but the first wait for the one before."""
    with connect(server) as connection:
        connection.sendall(rest_request() * 3)
        yield


@contextlib.contextmanager
def grpc_client(server: Server) -> Iterator[None]:
    """The same over gRPC, with a cancel."""
    with grpc_stub(server) as stub:
        call = stub.ModelInfer.future(typed_message(Request("echo", floats(1), parameters=TELLTALE)))
        yield
        call.cancel()


LEAVE: Final[dict[str, Callable[[Server], contextlib.AbstractContextManager[None]]]] = {
    "REST, closed": lambda server: rest_client(server, reset=False),
    "REST, reset": lambda server: rest_client(server, reset=True),
    "REST, pipelining": pipelining_client,
    "gRPC, cancelled": grpc_client,
}


def wait_for_arrival(server: Server) -> None:
    """Until the server has read what was sent before: it has answered something that was sent afterwards."""
    for _ in range(3):
        assert server.is_alive()
        with grpc_stub(server) as stub:
            stub.ServerLive(service_pb2.ServerLiveRequest())


@pytest.mark.parametrize("way", LEAVE)
@pytest.mark.parametrize("arrives", [True, False], ids=["queued", "at once"])
def test_a_request_that_waits_does_not_run_when_its_client_has_left(server: Server, way: str, arrives: bool) -> None:
    before, failed, begun = executions(server), failures(server), executions_begun(server)
    with Busy(server, 1000) as busy:
        with LEAVE[way](server):
            if arrives:
                wait_for_arrival(server)
        if arrives:
            server.wait(lambda: failures(server) > failed, "the server to notice that the client is gone")
            assert not busy.over, "it was noticed only when the model became free"
    infer("rest", server, "echo", floats(1))
    assert executions(server) - before == 2, "the busy one and the last one"
    assert executions_begun(server) - begun == 1


@pytest.mark.parametrize("way", LEAVE)
def test_a_client_that_leaves_while_its_request_runs_disturbs_nobody(server: Server, way: str) -> None:
    begun, failed = executions_begun(server), failures(server)
    with LEAVE[way](server):
        server.wait(lambda: executions_begun(server) > begun, "the request to run")
    server.wait(lambda: failures(server) > failed, "the server to notice")
    assert infer("rest", server, "echo", floats(3)).outputs["y"].tolist() == [3]


def test_one_of_many_waiting_clients_leaves_and_the_others_get_their_answers(server: Server) -> None:
    failed = failures(server)
    answers: dict[int, list[float]] = {}

    def ask(value: int) -> None:
        answers[value] = infer("rest", server, "echo", floats(value)).outputs["y"].tolist()

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(30)]
    with Busy(server, 1000):
        with rest_client(server, reset=True), grpc_client(server):
            for thread in threads:
                thread.start()
            wait_for_arrival(server)
        server.wait(lambda: failures(server) >= failed + 2, "the server to notice both")
    for thread in threads:
        thread.join()
    assert answers == {value: [value] for value in range(30)}


# --- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_request_whose_time_is_up_while_it_waits_is_told_so_though_the_model_is_busy(
    server: Server, protocol: str
) -> None:
    begun = executions_begun(server)
    with Busy(server, 1500) as busy:
        with pytest.raises(Refused) as refused:
            infer(protocol, server, "echo", floats(1), timeout_us=100_000, parameters=LINE)
        assert not busy.over, "the answer came only when the model was free"
    assert refused.value.meaning == "deadline", refused.value
    assert "timeout" in refused.value.text.lower()
    infer(protocol, server, "echo", floats(1))
    assert executions_begun(server) - begun == 1, "it must not run afterwards"


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_request_whose_time_is_up_while_it_runs_is_told_so_at_once(server: Server, protocol: str) -> None:
    before = executions(server)
    with pytest.raises(Refused) as refused:
        infer(protocol, server, "echo", floats(1), timeout_us=100_000, parameters={"delay_ms": 1000})
    assert refused.value.meaning == "deadline", refused.value
    assert executions(server) == before, "the answer came only when the model was through"
    server.wait(lambda: executions(server) > before, "the model to be through")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("timeout_us", [60_000_000, 2**53, 2**63 - 1])
def test_a_request_with_time_enough_is_answered(server: Server, protocol: str, timeout_us: int) -> None:
    assert infer(protocol, server, "echo", floats(1), timeout_us=timeout_us).outputs["y"].tolist() == [1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_timeout_of_zero_is_none(server: Server, protocol: str) -> None:
    assert infer(protocol, server, "echo", floats(1), timeout_us=0).outputs["y"].tolist() == [1]


def test_a_grpc_deadline_is_kept_by_the_server_too(server: Server) -> None:
    begun, failed = executions_begun(server), failures(server)
    with Busy(server, 1500) as busy:
        with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as raised:
            stub.ModelInfer(typed_message(Request("echo", floats(1), parameters=LINE)), timeout=0.2)
        assert refusal(raised.value).meaning == "deadline"
        server.wait(lambda: failures(server) > failed, "the server to give it up")
        assert not busy.over
    infer("grpc", server, "echo", floats(1))
    assert executions_begun(server) - begun == 1, "it must not run afterwards"


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_requests_that_wait_longer_than_the_worker_holds_have_deadlines_too(server: Server, protocol: str) -> None:
    """The worker takes 16 requests at a time: the others wait in the gateway."""
    texts: list[str] = []

    def ask() -> None:
        with pytest.raises(Refused) as refused:
            infer(protocol, server, "echo", floats(1), timeout_us=300_000)
        texts.append(refused.value.meaning)

    with Busy(server, 2000) as busy:
        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not busy.over
    assert texts == ["deadline"] * 24


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_models_answer_while_one_is_busy(server: Server, protocol: str) -> None:
    with Busy(server, 500) as busy:
        for value in range(5):
            given = {"x": floats(value, 1)["x"].reshape(1, 2)}
            assert infer(protocol, server, "identity_fp32", given).outputs["y"].tolist() == [[value, 1]]
        assert not busy.over


def test_health_and_metadata_answer_while_all_are_busy(server: Server) -> None:
    with Busy(server, 500) as busy:
        assert server.is_ready()
        assert server.is_ready("echo")
        assert http_call(server, "GET", "/v2/models/echo").status == 200
        assert not busy.over
