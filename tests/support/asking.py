"""A request on a channel whose outcome can be awaited, as tests would rather have it."""

from __future__ import annotations

import asyncio
from typing import Any

from backends.tensor import Tensor
from gateway.errors import GatewayError
from gateway.workers.channel import Channel, Reply


class Asked:
    """Sends a request; ``future`` gets the reply, or raises the error."""

    def __init__(self, channel: Channel, tensors: list[Tensor], **given: Any) -> None:
        fields = {"outputs": (), "timeout_us": 0, "priority": 0, "parameters": {}, "trace": "", **given}
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._sent = channel.submit(tensors, on_reply=self._replied, **fields)
        self.id = self._sent.id

    def _replied(self, outcome: Reply | GatewayError) -> None:
        if isinstance(outcome, GatewayError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)

    def abandon(self) -> None:
        """Nobody waits for the reply any more."""
        self._channel.abandon(self._sent)
