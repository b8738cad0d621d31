"""Clients that ask without a pause, and an account of every answer that they get."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from support.clients import Refused, floats, infer
from support.rest import http_call, index
from support.server import Server

#: Between a refusal and the next try: a client that is told to come back does not ask a thousand times a second.
_PAUSE_S: Final = 0.02


class Load:
    """Clients of one model that answers ``y`` = ``x``, one for each protocol in ``protocols``, until the end of the
    block; every answer is counted and checked. ``asked`` = ``answered`` + ``len(refused)`` in the end."""

    def __init__(
        self, server: Server, model: str, protocols: Sequence[str], parameters: dict[str, Any] | None = None
    ) -> None:
        self.asked = 0
        self.answered = 0
        self.refused: list[Refused] = []
        self._server, self._model, self._parameters = server, model, parameters
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._wrong: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(protocol,)) for protocol in protocols]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self._wrong == []
        assert self.asked == self.answered + len(self.refused)

    def wait_for_more(self) -> None:
        """Until every client had time for a few more answers."""
        target = self.answered + 10 * len(self._threads)
        self._server.wait(lambda: self.answered >= target or self._wrong, f"more answers of {self._model}")

    def _guarded(self, protocol: str) -> None:
        try:
            self._ask(protocol)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            self._wrong.append(error)

    def _ask(self, protocol: str) -> None:
        value = 0
        while not self._stop.is_set():
            value += 1
            with self._lock:
                self.asked += 1
            try:
                answer = infer(protocol, self._server, self._model, floats(value), parameters=self._parameters)
            except Refused as error:
                with self._lock:
                    self.refused.append(error)
                self._stop.wait(_PAUSE_S)
                continue
            assert answer.outputs["y"].tolist() == [value]
            with self._lock:
                self.answered += 1


def counted(server: Server, model: str, what: str = "success") -> int:
    """A counter of the model's statistics."""
    return int(
        http_call(server, "GET", f"/v2/models/{model}/stats").json["model_stats"][0]["inference_stats"][what]["count"]
    )


def index_entry(server: Server, model: str) -> dict[str, str]:
    """The model's entry in the repository's index."""
    return next(entry for entry in index(server) if entry["name"] == model)


@contextlib.contextmanager
def steady_load(server: Server, protocols: Sequence[str], model: str = "steady") -> Iterator[Load]:
    """Load on a model that has nothing wrong: no request may be lost, by the clients' count and by the server's."""
    before = counted(server, model), counted(server, model, "fail")
    with Load(server, model, protocols) as load:
        load.wait_for_more()
        yield load
        load.wait_for_more()
    assert load.refused == []
    assert counted(server, model) - before[0] == load.answered
    assert counted(server, model, "fail") == before[1]
