"""A worker's executor: which answers leave together, and in which order they leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from backends.contract import Arrays
from backends.messages import Answers, Drain, Infer
from backends.spec import BatchingSpec, QueuePolicy
from support.executing import HEAD, Infers, Worker, echo


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


class Gates:
    """A model that runs each request until its gate is opened; ``failing`` ones fail then."""

    def __init__(self, *failing: int) -> None:
        self.running: list[int] = []
        self._changed = threading.Condition()
        self._open: set[int] = set()
        self._failing = failing

    def __call__(self, inputs: Arrays) -> Arrays:
        number = int(inputs["x"][0, 0])
        with self._changed:
            self.running.append(number)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: number in self._open, 20)
        if number in self._failing:
            raise ValueError("as told")
        return {"y": inputs["x"]}

    def open(self, *numbers: int) -> None:
        with self._changed:
            self._open.update(numbers)
            self._changed.notify_all()

    def wait_running(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.running) == count, 20)


def drained(worker: Worker) -> None:
    worker.send(Drain())
    assert worker.join() is None


def test_whoever_is_faster_is_answered_first_unless_order_matters(start: Callable[..., Worker]) -> None:
    gates = Gates()
    worker = start(gates, instances=2)
    worker.ask(1, 2)
    gates.wait_running(2)
    gates.open(2)
    assert worker.outcomes(1) == [("answered", 2)]
    gates.open(1)
    assert worker.outcomes(1) == [("answered", 1)]
    drained(worker)


@pytest.mark.parametrize("failing", [(), (1,), (2,), (1, 2, 3)])
def test_answers_and_failures_leave_in_order_where_that_is_asked_for(
    start: Callable[..., Worker], failing: tuple[int, ...]
) -> None:
    gates = Gates(*failing)
    worker = start(gates, instances=3, batching=BatchingSpec(preserve_ordering=True))
    worker.ask(1, 2, 3)
    gates.wait_running(3)
    gates.open(3)
    gates.open(2)
    gates.open(1)
    assert [id for _, id in worker.outcomes(3)] == [1, 2, 3]
    drained(worker)


def test_many_short_requests_are_answered_in_order_and_none_is_kept(start: Callable[..., Worker]) -> None:
    worker = start(echo)
    count = 200
    worker.ask(*range(count))
    answered = [answer.id for message in worker.receive(count) for answer in answers(message)]
    assert answered == list(range(count))  # the last one came although nothing followed it
    drained(worker)


def answers(message: object) -> list[Any]:
    assert isinstance(message, Answers)
    return message.answers


def test_an_answer_does_not_wait_for_the_next_request_to_be_run(start: Callable[..., Worker]) -> None:
    """That one may take long, or end the worker and the answer with it."""
    gates = Gates()
    worker = start(gates)
    gates.open(*range(5))
    worker.ask(*range(6))
    gates.wait_running(6)
    assert worker.outcomes(5) == [("answered", number) for number in range(5)]
    gates.open(5)
    assert worker.outcomes(1) == [("answered", 5)]
    drained(worker)


def test_what_the_model_does_to_its_memory_later_does_not_change_an_answer(start: Callable[..., Worker]) -> None:
    """A backend may use its memory again as soon as its call is over."""
    memory = np.zeros((1, 2), np.float32)

    def infer(inputs: Arrays) -> Arrays:
        memory[:] = inputs["x"]
        return {"y": memory}

    worker = start(infer)
    worker.ask(*range(50))
    for number, (message, payload) in enumerate(worker.receive_with_payload(50)):
        assert [answer.id for answer in answers(message)] == [number]
        assert np.frombuffer(payload, np.float32).tolist() == [number, number]
    drained(worker)


def test_priorities_decide_among_those_that_wait(start: Callable[..., Worker]) -> None:
    gates = Gates()
    worker = start(gates, batching=BatchingSpec(priority_levels=3, default_priority=2))
    gates.open(2, 3, 4, 5)
    worker.ask(1)
    gates.wait_running(1)
    for id, priority in ((2, 3), (3, 0), (4, 1), (5, 3)):
        payload = np.array([id, id], np.float32).tobytes()
        worker.send(Infer(id, [HEAD], priority=priority), payload=payload)
    gates.open(1)
    assert [id for _, id in worker.outcomes(5)] == [1, 4, 3, 2, 5]
    drained(worker)


@pytest.mark.parametrize("instances", [1, 3])
def test_a_full_queue_and_too_long_a_wait_are_overload(start: Callable[..., Worker], instances: int) -> None:
    """And said at once: while every instance computes, and may do so for long."""
    gates = Gates()
    policies = {2: QueuePolicy(max_size=2), 3: QueuePolicy(timeout_us=1)}
    worker = start(
        gates, instances=instances, batching=BatchingSpec(priority_levels=3, default_priority=1, policies=policies)
    )
    worker.ask(*range(instances))
    gates.wait_running(instances)
    for id, priority in ((12, 2), (13, 3), (22, 2), (32, 2)):
        worker.send(Infer(id, [HEAD], priority=priority), payload=np.array([id, id], np.float32).tobytes())
    found = [worker.refusal(), worker.refusal()]
    assert {(each.id, each.kind, each.text.split(":")[0]) for each in found} == {
        (13, "overloaded", "Request timeout expired"),
        (32, "overloaded", "Exceeds maximum queue size"),
    }
    gates.open(*range(40))
    assert {id for _, id in worker.outcomes(instances + 2)} == {*range(instances), 12, 22}
    drained(worker)
