"""Clients that ask at the same time, and what the server's counters say of the batches that they shared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from support.clients import PROTOCOLS, Refused
from support.rest import http_call
from support.server import Server

T = TypeVar("T")


def together(count: int, ask: Callable[[int], T]) -> list[T | Exception]:
    """What each of ``count`` threads that begin at once gets or raises."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = ask(index)
        except Refused as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def statistics(server: Server, model: str) -> Any:
    """The model's counters."""
    return http_call(server, "GET", f"/v2/models/{model}/stats").json["model_stats"][0]


def batches(server: Server, model: str) -> dict[int, int]:
    """Rows of a batch -> how many batches of that size there were."""
    entries = statistics(server, model)["batch_stats"]
    return {entry["batch_size"]: entry["compute_infer"]["count"] for entry in entries}


def protocol_of(index: int) -> str:
    """All protocols in turn: they share batches as well."""
    return PROTOCOLS[index % len(PROTOCOLS)]
