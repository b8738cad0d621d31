"""When a dead worker is started again. Time is an argument, so no test waits."""

from __future__ import annotations

import pytest

from gateway.workers.restart import FIRST_DELAY_S, MAX_DELAY_S, MAX_FAILURES, STABLE_AFTER_S, RestartBudget


def crash(budget: RestartBudget, times: int) -> list[float | None]:
    return [budget.exited(float(now)) for now in range(times)]


def test_the_first_restart_is_prompt_and_each_next_one_takes_twice_as_long_up_to_a_limit() -> None:
    delays = crash(RestartBudget(), MAX_FAILURES)
    assert delays == [min(MAX_DELAY_S, FIRST_DELAY_S * 2**n) for n in range(MAX_FAILURES)]


def test_after_the_budget_the_worker_is_given_up_for_good() -> None:
    budget = RestartBudget()
    assert None not in crash(budget, MAX_FAILURES)
    assert crash(budget, 3) == [None, None, None]
    assert budget.failures == MAX_FAILURES + 3


def test_a_worker_that_became_ready_and_died_soon_is_not_forgiven() -> None:
    budget = RestartBudget()
    now = 0.0
    for _ in range(MAX_FAILURES):
        budget.started(now)
        now += STABLE_AFTER_S - 0.001
        assert budget.exited(now) is not None
    budget.started(now)
    assert budget.exited(now + STABLE_AFTER_S - 0.001) is None


@pytest.mark.parametrize("failures", [0, 1, MAX_FAILURES - 1, MAX_FAILURES])
def test_a_worker_that_ran_long_enough_is_forgiven_what_came_before(failures: int) -> None:
    budget = RestartBudget()
    crash(budget, failures)
    budget.started(1000.0)
    assert budget.exited(1000.0 + STABLE_AFTER_S) == FIRST_DELAY_S
    assert budget.failures == 1


def test_a_long_run_forgives_once_and_not_the_deaths_after_it() -> None:
    budget = RestartBudget()
    budget.started(0.0)
    assert budget.exited(STABLE_AFTER_S) == FIRST_DELAY_S
    delays = [budget.exited(STABLE_AFTER_S + n) for n in range(1, MAX_FAILURES + 1)]  # it never became ready again
    assert delays[0] == 2 * FIRST_DELAY_S
    assert delays[-1] is None
