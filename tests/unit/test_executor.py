"""A worker's executor, with backends that break the contract; the test holds the gateway's end of the channel."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.arena import MIN_BLOCK, Mapping, create
from backends.batching import Batcher
from backends.contract import Arrays, Backend
from backends.executor import Executor
from backends.messages import Answers, Cancel, Drain, Hello, Infer, Load, Refusal, Release, TensorHead, ToGateway
from backends.port import Disconnected, Port
from backends.spec import BatchingSpec, ModelSpec, Signature, TensorSpec
from backends.wire import THRESHOLD, FrameReader, WireError, encode

Infers = Callable[[Arrays], Arrays]
HEAD = TensorHead("x", "FP32", (1, 2), 8)


class Scripted(Backend):
    """Does what the test says."""

    def __init__(self, infer: Infers) -> None:
        self._infer = infer

    def load(self, spec: ModelSpec) -> Signature:
        raise NotImplementedError  # the executor gets a loaded backend

    def infer(self, inputs: Arrays, outputs: tuple[str, ...], parameters: dict[str, Any]) -> Arrays:
        return self._infer(inputs)

    def unload(self) -> None:
        """Nothing is held."""


class Worker:
    """An executor in a thread of its own; ``end`` is what ``run`` raised."""

    def __init__(self, infer: Infers, *, instances: int = 1, max_batch_size: int = 0, datatype: str = "FP32") -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(20)
        self._theirs = theirs
        fd = create("test-responses", 64 * MIN_BLOCK)
        self._arena = Mapping(fd, writable=True)
        os.close(fd)
        shape = (-1, 2) if max_batch_size else (1, 2)
        signature = Signature(
            "test",
            (TensorSpec("x", "FP32", shape),),
            (TensorSpec("y", datatype, shape),),
            max_batch_size,
            BatchingSpec((), 100_000) if max_batch_size else None,
        )
        spec = ModelSpec("m", 1, "test", "", instances=instances)
        self.port = Port(theirs, None, self._arena)
        self.executor = Executor(self.port, Scripted(infer), spec, signature)
        self.end: BaseException | None = None
        self._frames: FrameReader[ToGateway] = FrameReader(ToGateway)
        self._inbox: list[ToGateway] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.executor.run()
        except BaseException as error:  # noqa: BLE001 - it is what the tests ask for
            self.end = error

    def send(self, *messages: msgspec.Struct, payload: bytes = b"") -> None:
        self.socket.sendall(b"".join(bytes(part) for message in messages for part in encode(message, [payload])))

    def ask(self, *ids: int) -> None:
        """Requests with one row each, in one go."""
        for id in ids:
            self.send(Infer(id, [HEAD]), payload=np.array([id, id], np.float32).tobytes())

    def receive(self, count: int) -> list[ToGateway]:
        """The next messages."""
        while len(self._inbox) < count:
            self._inbox += [message for message, _ in self._frames.feed(self.socket.recv(1 << 16))]
        taken, self._inbox = self._inbox[:count], self._inbox[count:]
        return taken

    def answers(self) -> Answers:
        """The next message, which has to be answers."""
        (message,) = self.receive(1)
        assert isinstance(message, Answers)
        return message

    def refusal(self) -> Refusal:
        """The next message, which has to be a refusal."""
        (message,) = self.receive(1)
        assert isinstance(message, Refusal)
        return message

    def outcomes(self, count: int) -> list[tuple[str, int]]:
        """The next messages in short, each of one request: what became of it, and its number."""
        found = []
        for message in self.receive(count):
            if isinstance(message, Refusal):
                found.append((message.kind, message.id))
            else:
                assert isinstance(message, Answers)
                (answer,) = message.answers
                found.append(("answered", answer.id))
        return found

    def join(self) -> BaseException | None:
        """Wait for the end of ``run``; what it raised."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.end

    def close(self) -> None:
        self.socket.close()
        self._thread.join(20)
        self._theirs.close()
        self._arena.close()


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


def echo(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"]}


def raising(error: BaseException) -> Infers:
    def infer(inputs: Arrays) -> Arrays:
        raise error

    return infer


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
    big = np.zeros((1, THRESHOLD), np.float32)  # a quarter of the arena
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
def test_a_fault_of_one_thread_ends_the_worker_although_the_others_wait_for_messages(
    start: Callable[..., Worker], instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(echo, instances=instances)

    def broken(self: Batcher, now_ns: int) -> None:
        raise AssertionError("a fault of our own")

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
