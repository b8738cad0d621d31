"""When a worker that died is started again: growing delays, and a budget. Pure: time is an argument, in seconds."""

from __future__ import annotations

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 30.0
STABLE_AFTER_S = 60.0
MAX_FAILURES = 8


class RestartBudget:
    """Counts consecutive deaths; a worker that ran for ``STABLE_AFTER_S`` is forgiven what came before."""

    def __init__(self) -> None:
        self.failures = 0
        self._started: float | None = None

    def started(self, now: float) -> None:
        """The worker became ready."""
        self._started = now

    def exited(self, now: float) -> float | None:
        """Delay before the next start, or None: it crashes again and again, give up."""
        if self._started is not None and now - self._started >= STABLE_AFTER_S:
            self.failures = 0
        self._started = None
        self.failures += 1
        if self.failures > MAX_FAILURES:
            return None
        return float(min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (self.failures - 1)))
