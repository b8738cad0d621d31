"""The GPUs of this machine, as they are now."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True):
    """One GPU. ``index`` is its number on the bus, as in ``cuda:0`` and nvidia-smi."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int

    @property
    def label(self) -> str:
        """How configurations call it."""
        return f"cuda:{self.index}"


class Inventory(msgspec.Struct, frozen=True):
    """All devices in the order of their numbers; ``reason`` says why there are none."""

    devices: tuple[Device, ...] = ()
    reason: str = ""
