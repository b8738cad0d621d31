"""A worker's executor, with backends that break the contract; the test holds the gateway's end of the channel."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.batching import Batcher
from backends.contract import Arrays
from backends.messages import Cancel, Drain, Hello, Infer, Load, Release, TensorHead
from backends.port import Disconnected
from backends.spec import ModelSpec
from backends.wire import WireError, encode
from support.executing import HEAD, Infers, Worker, echo, raising


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Starts workers that are ended with the test."""
    workers: list[Worker] = []

    def start(infer: Infers, **given: Any) -> Worker:
        workers.append(Worker(infer, **given))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


def drained(worker: Worker) -> None:
    worker.send(Drain())
    assert worker.join() is None


# --- backends that break the contract ---


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("odd"), "ValueError: odd"),
        (SystemExit(3), "SystemExit: 3"),
        (MemoryError("much"), "out of memory: much"),
        (RecursionError("deep"), "RecursionError: deep"),
        (StopIteration(), "StopIteration: "),
        (OSError(5, "disk"), "OSError: [Errno 5] disk"),
        (RuntimeError("lone \udcff surrogate"), "RuntimeError: lone ? surrogate"),
        (RuntimeError("x" * (1 << 20)), ("RuntimeError: " + "x" * (1 << 20))[: 64 << 10]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_backend_raises_is_the_answer_to_its_request(
    start: Callable[..., Worker], error: BaseException, text: str, instances: int
) -> None:
    worker = start(raising(error), instances=instances)
    for id in (1, 2):
        worker.ask(id)
        refusal = worker.refusal()
        assert (refusal.id, refusal.kind, refusal.text) == (id, "inference_failed", text)
    drained(worker)


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({}, "the model gave no output 'y'"),
        ({"z": np.zeros((1, 2), np.float32)}, "the model gave no output 'y'"),
        ({"y": np.zeros((1, 2))}, "the model gave output 'y' as float64, its signature says FP32"),
        ({"y": np.zeros((1, 2), ">f4")}, "the model gave output 'y' as >f4, its signature says FP32"),
    ],
)
def test_outputs_that_are_not_those_of_the_signature_fail_the_request(
    start: Callable[..., Worker], outputs: Arrays, text: str
) -> None:
    worker = start(lambda _: outputs)
    worker.ask(1)
    refusal = worker.refusal()
    assert (refusal.kind, refusal.text) == ("inference_failed", text)
    drained(worker)


@pytest.mark.parametrize("element", [7, None, 1.5, [1]])
def test_an_output_of_texts_that_holds_something_else_fails_the_request(
    start: Callable[..., Worker], element: object
) -> None:
    array = np.empty((1, 2), object)
    array[0, 0], array[0, 1] = b"good", element
    worker = start(lambda _: {"y": array}, datatype="BYTES")
    worker.ask(1)
    refusal = worker.refusal()
    assert "an element of a BYTES tensor is " in refusal.text
    drained(worker)


def test_an_output_that_mixes_the_rows_of_a_batch_is_found_out_and_each_request_runs_alone(
    start: Callable[..., Worker],
) -> None:
    calls = []

    def mixing(inputs: Arrays) -> Arrays:
        calls.append(len(inputs["x"]))
        return {"y": inputs["x"][:1]}

    worker = start(mixing, max_batch_size=4)
    worker.ask(1, 2, 3, 4)
    assert worker.outcomes(4) == [("answered", id) for id in (1, 2, 3, 4)]
    assert calls == [4, 1, 1, 1, 1]
    drained(worker)


def test_of_a_failing_batch_only_those_at_fault_fail(start: Callable[..., Worker]) -> None:
    def picky(inputs: Arrays) -> Arrays:
        if (inputs["x"] == 2).any():
            raise SystemExit("no twos")
        return echo(inputs)

    worker = start(picky, max_batch_size=4)
    worker.ask(1, 2, 3, 4)
    assert worker.outcomes(4) == [("answered", 1), ("inference_failed", 2), ("answered", 3), ("answered", 4)]
    drained(worker)


# --- the gateway's messages ---


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([Release([4096])], "arena block at 4096 is not in use"),
        ([Load(ModelSpec("m", 1, "echo", ""), 1.0)], "unexpected Load while serving"),
        ([Hello(1, 2)], "not a message"),
        ([Infer(1, [TensorHead("x", "FP32", (1, 2), 8, 0)])], "points into an arena"),
        ([Infer(1, [TensorHead("x", "FP32", (3, 2), 8)])], "cut short"),
        ([Infer(1, [TensorHead("x", "float", (), 0)])], "no datatype"),
    ],
)
def test_rubbish_ends_the_worker_whichever_thread_reads_it(
    start: Callable[..., Worker], messages: list[msgspec.Struct], reason: str, instances: int
) -> None:
    worker = start(echo, instances=instances)
    worker.send(*messages)
    end = worker.join()
    assert isinstance(end, WireError)
    assert reason in str(end)


def test_a_request_whose_number_waits_already_is_rubbish(start: Callable[..., Worker]) -> None:
    worker = start(echo, max_batch_size=8)
    payload = bytes(8)
    frames = [bytes(part) for _ in range(2) for part in encode(Infer(1, [HEAD]), [payload])]
    worker.socket.sendall(b"".join(frames))
    end = worker.join()
    assert isinstance(end, WireError)
    assert str(end) == "request 1 waits already"


def test_a_scalar_for_a_batched_model_fails_alone(start: Callable[..., Worker]) -> None:
    worker = start(echo, max_batch_size=8)
    worker.send(Infer(1, [TensorHead("x", "FP32", (), 4)]), payload=bytes(4))
    worker.ask(2)
    assert sorted(id for _, id in worker.outcomes(2)) == [1, 2]
    drained(worker)


def test_a_full_arena_sends_inline_and_a_release_gives_the_block_to_the_next_answer(
    start: Callable[..., Worker],
) -> None:
    big = np.zeros((1, 16 << 10), np.float32)  # a quarter of the arena
    worker = start(lambda _: {"y": big})

    def offset() -> int:
        worker.ask(1)
        return worker.answers().answers[0].tensors[0].offset

    size = big.nbytes
    assert [offset() for _ in range(6)] == [0, size, 2 * size, 3 * size, -1, -1]
    worker.send(Release([2 * size, 0]))
    assert [offset() for _ in range(3)] == [0, 2 * size, -1]
    drained(worker)


def test_what_was_cancelled_while_it_waited_is_refused_and_what_runs_is_answered(start: Callable[..., Worker]) -> None:
    entered, go = threading.Event(), threading.Event()

    def waits(inputs: Arrays) -> Arrays:
        entered.set()
        assert go.wait(20)
        return echo(inputs)

    worker = start(waits)
    worker.ask(1)
    assert entered.wait(20)
    worker.ask(2)
    worker.send(Cancel(1), Cancel(2), Cancel(3))
    go.set()
    assert sorted(worker.outcomes(2)) == [("answered", 1), ("cancelled", 2)]
    drained(worker)


# --- the end ---


@pytest.mark.parametrize("instances", [1, 4])
def test_the_end_of_the_channel_ends_an_idle_worker(start: Callable[..., Worker], instances: int) -> None:
    worker = start(echo, instances=instances)
    worker.socket.shutdown(socket.SHUT_WR)
    assert isinstance(worker.join(), Disconnected)


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_a_fault_of_one_thread_ends_the_worker_although_another_waits_for_messages(
    start: Callable[..., Worker], instances: int
) -> None:
    entered, go = threading.Event(), threading.Event()

    def breaks(inputs: Arrays) -> Arrays:
        if inputs["x"][0, 0] != 1:
            return echo(inputs)
        entered.set()
        assert go.wait(20)
        raise KeyboardInterrupt("no error that a backend may raise")

    worker = start(breaks, instances=instances)
    worker.ask(1)
    assert entered.wait(20)
    for id in range(2, 2 * instances):
        worker.ask(id)
        assert worker.outcomes(1) == [("answered", id)]  # by another thread, which then waits for more
    go.set()
    assert isinstance(worker.join(), KeyboardInterrupt)


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_a_fault_of_the_thread_that_looks_for_work_ends_the_worker(
    start: Callable[..., Worker], instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Batcher, now_ns: int) -> None:
        raise AssertionError("a fault of our own")

    worker = start(echo, instances=instances)
    worker.ask(1)
    worker.receive(1)
    monkeypatch.setattr(Batcher, "take", broken)
    worker.ask(2)
    end = worker.join()
    assert isinstance(end, AssertionError)
    assert str(end) == "a fault of our own"


@pytest.mark.parametrize("instances", [1, 4])
def test_everything_accepted_is_answered_before_the_end(start: Callable[..., Worker], instances: int) -> None:
    worker = start(echo, instances=instances, max_batch_size=2)
    worker.ask(*range(50))
    worker.send(Drain())
    ids: list[int] = []
    while len(ids) < 50:
        ids += [answer.id for answer in worker.answers().answers]
    assert sorted(ids) == list(range(50))
    assert worker.join() is None
