"""A model that is away and comes back by itself: every transport says when to ask again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import grpc
import pytest

from support import onnx_models
from support.clients import Request, floats, grpc_stub, typed_message
from support.repository import add_echo, add_onnx
from support.rest import Reply, post_infer
from support.server import Server, running

BODY: Final = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}


def refused(server: Server, model: str, because: str) -> Reply:
    """The first refusal that holds the words."""

    def ask() -> Reply | None:
        reply = post_infer(server, model, BODY)
        return reply if reply.status == 503 and because in reply.error else None

    return server.wait(ask, f"{model} to be {because}")


def trailing(server: Server, model: str) -> dict[str, str]:
    """What comes with a refusal over gRPC."""
    with grpc_stub(server) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(typed_message(Request(model, floats(1))))
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    return {entry.key: str(entry.value) for entry in raised.value.trailing_metadata()}


def test_while_a_model_loads_one_is_to_ask_again_soon(tmp_path: Path) -> None:
    add_echo(tmp_path / "models", "slow", options={"load_hang": "true"})
    with running(tmp_path, tmp_path / "models", ready=False) as server:
        assert refused(server, "slow", "loading").headers["retry-after"] == "1"
        said = trailing(server, "slow")
        assert (said["retry-after"], said["grpc-retry-pushback-ms"]) == ("1", "1000")


def test_after_a_death_one_is_to_ask_again_when_its_next_worker_is_due(tmp_path: Path) -> None:
    folder = add_onnx(tmp_path / "models", "killed", onnx_models.add_one(("length",)))
    with running(tmp_path, tmp_path / "models") as server:
        onnx_models.save(onnx_models.identity("FP32", ("length",)), folder)  # it is away until this is put back
        os.kill(server.worker("killed").pid, signal.SIGKILL)
        refused(server, "killed", "has changed since it was registered")
        # the next try is due in 30 s, of which some may have passed
        assert 1 <= int(refused(server, "killed", "failed").headers["retry-after"]) <= 30
        assert 1 <= int(trailing(server, "killed")["retry-after"]) <= 30


def test_what_does_not_come_back_by_itself_names_no_time(tmp_path: Path) -> None:
    add_onnx(tmp_path / "models", "broken", b"no model")
    with running(tmp_path, tmp_path / "models", ready=False) as server:
        assert "retry-after" not in refused(server, "broken", "failed").headers
        assert "retry-after" not in trailing(server, "broken")
