"""Whoever reads the channel while every instance computes: calls it back as soon as one of them is free again."""

from __future__ import annotations

import contextlib
import os
import threading


class Lookout:
    """Tells the thread that looks out when an instance wants its place.

    Needed only where a request may be refused while it waits; elsewhere what comes meanwhile can stay in the socket.
    """

    def __init__(self) -> None:
        #: Readable when an instance wants the place: to be waited for beside the channel.
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calm = threading.Condition()
        self._wanting = 0

    @property
    def wanted(self) -> bool:
        """Whether an instance wants the place."""
        return self._wanting > 0

    def relieve(self) -> None:
        """An instance wants the place."""
        with self._calm:
            self._wanting += 1
        os.eventfd_write(self.bell, 1)

    def relieved(self) -> None:
        """It has the place."""
        with self._calm:
            self._wanting -= 1
            self._calm.notify_all()

    def rest(self) -> None:
        """Wait until no instance wants the place."""
        with self._calm:
            self._calm.wait_for(lambda: not self._wanting)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)  # it rang for what is over
