"""Priorities and queue policies of a model's configuration, over every protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.clients import PROTOCOLS, Refused, floats, infer
from support.repository import add_echo
from support.rest import http_call
from support.server import Server, running

#: Levels: 1 is not bounded, 2 may have one request waiting, 3 may not wait at all; 4 may be late.
RULES = """
dynamic_batching {
  priority_levels: 4
  default_priority_level: 1
  priority_queue_policy { key: 2 value { max_queue_size: 1 } }
  priority_queue_policy { key: 3 value { default_timeout_microseconds: 1 } }
  priority_queue_policy { key: 4 value { default_timeout_microseconds: 1 timeout_action: DELAY } }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, whose model runs one request at a time."""
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "ruled", config=RULES)
    with running(tmp_path_factory.mktemp("server"), repository) as started:
        yield started


class Asking(threading.Thread):
    """One request from a client of its own; its answer, and its place in ``finished``."""

    def __init__(self, server: Server, protocol: str, finished: list[float], value: float, **more: Any) -> None:
        super().__init__()
        self._ask = (protocol, server, "ruled", floats(value))
        self._more = more
        self._finished = finished
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Ask."""
        try:
            (value,) = infer(*self._ask, **self._more).outputs["y"].tolist()
            self._finished.append(value)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error


#: By this the log tells that the request runs, and it does so for a while.
RUNNING = {"print_bytes": 80, "delay_ms": 2500}


class Busy:
    """The model runs a request that takes a while; ``ask`` sends others meanwhile."""

    def __init__(self, server: Server, protocol: str) -> None:
        self.finished: list[float] = []
        self._server, self._protocol = server, protocol
        begun = server.log.count("x" * 79)
        self._threads = [Asking(server, protocol, self.finished, 0.0, parameters=RUNNING)]
        server.wait(lambda: server.log.count("x" * 79) > begun, "the first request to run")

    def ask(self, value: float, **more: Any) -> Asking:
        thread = Asking(self._server, self._protocol, self.finished, value, **more)
        self._threads.append(thread)
        return thread

    def end(self) -> set[float]:
        """The values that were answered."""
        for thread in self._threads:
            thread.join()
        return set(self.finished)


def meaning_of_overload(protocol: str) -> str:
    return "unavailable" if protocol.startswith("rest") else "StatusCode.RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_full_queue_is_refused_at_once(server: Server, protocol: str) -> None:
    busy = Busy(server, protocol)
    asked = [busy.ask(float(number), priority=2) for number in (1, 2, 3)]
    server.wait(lambda: sum(each.error is not None for each in asked) == 2, "two of three to be refused")
    assert busy.finished == []
    for error in filter(None, (each.error for each in asked)):
        assert isinstance(error, Refused)
        assert error.meaning == meaning_of_overload(protocol)
        assert "Exceeds maximum queue size: 1 requests of priority 2 wait already" in error.text
    assert len(busy.end()) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_too_long_a_wait_is_refused_at_once_or_delayed(server: Server, protocol: str) -> None:
    busy = Busy(server, protocol)
    delayed, refused = busy.ask(4.0, priority=4), busy.ask(3.0, priority=3)
    server.wait(lambda: refused.error is not None, "the wait to be too long")
    assert busy.finished == []
    assert isinstance(refused.error, Refused)
    assert refused.error.meaning == meaning_of_overload(protocol)
    assert "Request timeout expired" in refused.error.text
    assert busy.end() == {0.0, 4.0}
    assert delayed.error is None


def test_priorities_decide_among_those_that_wait(server: Server) -> None:
    busy = Busy(server, "rest")
    low = busy.ask(4.0, priority=4, parameters={"print_bytes": 80})
    default = busy.ask(1.0, priority=0, parameters={"print_bytes": 10})
    assert busy.end() == {0.0, 1.0, 4.0}
    assert low.error is default.error is None
    # The default one writes no end of line: if it ran first, its ten and the other's line are one.
    server.wait(lambda: server.lines[-1].endswith("] " + "x" * 89), "them to run in order")


def test_the_configuration_shows_the_rules(server: Server) -> None:
    shown = http_call(server, "GET", "/v2/models/ruled/config").json["dynamic_batching"]
    assert shown["priority_levels"] == 4
    assert shown["priority_queue_policy"]["3"]["default_timeout_microseconds"] == 1
    assert shown["priority_queue_policy"]["4"]["timeout_action"] == "DELAY"
