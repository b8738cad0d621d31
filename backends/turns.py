"""Turns of several threads: what was taken first is answered first, however long each of them computes."""

from __future__ import annotations

import threading


class Turns:
    """Numbers the batches as they are taken; each waits before its answer until all earlier ones are done."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._mine = threading.local()
        self._taken = 0
        self._done = 0

    def take(self) -> None:
        """This thread has taken the next batch; for one thread at a time."""
        self._mine.number = self._taken
        self._taken += 1

    def wait(self) -> None:
        """Until it is this thread's turn to answer. A second call returns at once."""
        with self._condition:
            self._condition.wait_for(lambda: self._done == self._mine.number)

    def done(self) -> None:
        """Everything of this thread's batch is answered."""
        with self._condition:
            self._condition.wait_for(lambda: self._done == self._mine.number)
            self._done += 1
            self._condition.notify_all()
