"""Two models: whatever the code of one does to its process, clients of the other lose nothing, by count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import pytest

from support import onnx_models
from support.clients import PROTOCOLS, TRANSPORTS, Refused, floats, infer
from support.load import Load, steady_load
from support.repository import add_onnx
from support.server import Server, running
from support.unruly import DEEDS, add_unruly

if find_spec("torch") is None:
    pytest.skip("needs torch: pip install 'tensorgate[torch]'", allow_module_level=True)

#: Eight clients of the model that has nothing wrong.
CLIENTS: Final = (*PROTOCOLS, *TRANSPORTS)
LIMITS: Final = {
    "TENSORGATE_ALLOW_CODE": "true",
    "TENSORGATE_HEARTBEAT_S": "0.2",
    "TENSORGATE_HEARTBEAT_TIMEOUT_S": "4",
    "TENSORGATE_WORKER_MEMORY_LIMIT_BYTES": "1GiB",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_unruly(repository, "unruly")
    add_onnx(repository, "steady", onnx_models.identity("FP32", ("length",)))
    with running(tmp_path_factory.mktemp("server"), repository, environment=LIMITS) as started:
        yield started


@pytest.mark.parametrize(
    ("deed", "protocol", "told", "cause"),
    [
        ("crash", "rest", "died while it had the request", r"killed by signal 11, SIGSEGV"),
        ("leave", "grpc", "died while it had the request", r"exited with code 3"),
        ("freeze", "rest", "no heartbeat for 4 s", r"no heartbeat for 4 s \(setting heartbeat_timeout_s\)"),
        ("leak", "grpc", "its limit is 1024 MiB", r"it uses \d+ MiB, its limit is 1024 MiB \(setting worker_memory"),
    ],
    ids=["crash", "leave", "freeze", "leak"],
)
def test_a_model_that_ruins_its_process_costs_its_own_requests_only(
    server: Server, deed: str, protocol: str, told: str, cause: str
) -> None:
    server.wait_ready("unruly")
    before = server.worker("unruly").pid
    with steady_load(server, CLIENTS) as steady, Load(server, "unruly", TRANSPORTS) as others:
        others.wait_for_more()
        assert others.refused == []
        with pytest.raises(Refused) as refused:
            infer(protocol, server, "unruly", floats(DEEDS[deed]))
        assert refused.value.meaning == "unavailable", refused.value
        assert told in refused.value.text
        steady.wait_for_more()
        server.wait_ready("unruly")
        others.wait_for_more()
    assert server.worker("unruly").pid != before
    assert {error.meaning for error in others.refused} == {"unavailable"}
    assert any(re.search(cause, error.text) for error in others.refused), [error.text for error in others.refused]
    assert re.search(rf"unruly:1-0: the worker .*{cause}", server.log)
    assert infer(protocol, server, "unruly", floats(2)).outputs["y"].tolist() == [2]


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_model_that_writes_megabytes_of_output_costs_nothing(server: Server, protocol: str) -> None:
    server.wait_ready("unruly")
    before = server.worker("unruly").pid
    with steady_load(server, CLIENTS), Load(server, "unruly", TRANSPORTS) as others:
        answer = infer(protocol, server, "unruly", floats(DEEDS["talk"]))
        assert answer.outputs["y"].tolist() == [DEEDS["talk"]]
        others.wait_for_more()
    assert others.refused == []
    assert server.worker("unruly").pid == before
