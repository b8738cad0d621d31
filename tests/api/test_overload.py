"""More requests than may wait: the surplus is refused at once with the time to try again, the others are answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import grpc
import pytest

from support.clients import Request, floats, grpc_stub, infer, typed_message
from support.repository import add_echo
from support.rest import Reply, post_infer
from support.server import Server, running

WAITING = 4
#: What the worker holds at a time, the one that it runs included; the rest waits in the gateway.
HELD = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, where few requests may wait."""
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "busy")
    add_echo(repository, "other")
    environment = {"TENSORGATE_MAX_WAITING": str(WAITING)}
    with running(tmp_path_factory.mktemp("server"), repository, environment=environment) as started:
        yield started


@pytest.fixture
def full(server: Server) -> Iterator[list[Reply]]:
    """As many requests as are taken, the first of which runs for a while; their answers, complete after the test."""
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    replies: list[Reply] = []

    def ask(parameters: dict[str, int]) -> None:
        replies.append(post_infer(server, "busy", body | {"parameters": parameters}))

    threads = [threading.Thread(target=ask, args=({"print_bytes": 80, "delay_ms": 3000},))]
    begun = server.log.count("x" * 79)
    threads[0].start()
    server.wait(lambda: server.log.count("x" * 79) > begun, "the first request to run")
    threads += [threading.Thread(target=ask, args=({},)) for _ in range(HELD + WAITING + 5)]
    for thread in threads[1:]:
        thread.start()
    server.wait(lambda: len(replies) == 6, "those that are too many to be refused")
    yield replies
    for thread in threads:
        thread.join()


def test_rest_refuses_the_surplus_with_503_and_retry_after(server: Server, full: list[Reply]) -> None:
    refused = list(full)
    for reply in refused:
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        for word in ("maximum queue size", str(WAITING), "busy:1", "max_waiting"):
            assert word in reply.error
    assert infer("rest", server, "other", floats(1)).outputs["y"].tolist() == [1], "other models have room"


def test_grpc_refuses_the_surplus_and_says_when_to_try_again(server: Server, full: list[Reply]) -> None:
    assert len(full) == 6
    with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(typed_message(Request("busy", floats(1))))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "maximum queue size" in (raised.value.details() or "")
    metadata = {entry.key: entry.value for entry in raised.value.trailing_metadata()}
    assert int(metadata["grpc-retry-pushback-ms"]) > 0


def test_all_others_are_answered(server: Server, full: list[Reply]) -> None:
    server.wait(lambda: len(full) == 1 + HELD + WAITING + 5, "the model to be through")
    answered = [reply for reply in full if reply.status == 200]
    assert len(answered) == HELD + WAITING
    assert all(json.loads(reply.body)["outputs"][0]["data"] == [1] for reply in answered)
