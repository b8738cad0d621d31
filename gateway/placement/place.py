"""Which device a replica gets. Pure: devices in, a device out, and what is lacking on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gateway.placement.inventory import Device, Inventory

#: A model's wish for any GPU; ``cuda:N`` is one for that very device.
ANY: Final = "cuda"
_FIRST: Final = "cuda:0"
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
#: On the device: what a process takes before it has a model, and for each byte of the model's artifact.
BASE_BYTES: Final = 512 * _MIB
ARTIFACT_FACTOR: Final = 1.2


class Placement(NamedTuple):
    """``device`` as a worker is told; ``lack`` is "" if there is room for it now."""

    device: str
    lack: str


def expected_bytes(artifact_bytes: int) -> int:
    """A guess at what a model takes of its device."""
    return BASE_BYTES + int(ARTIFACT_FACTOR * artifact_bytes)


def place(wish: str, needed: int, inventory: Inventory, promised: Mapping[str, int]) -> Placement:
    """The device for a replica that needs so many bytes: the one that it names, or the one with the most room.

    ``promised``: device -> bytes that replicas which still load there are expected to take. A device that is not in the
    inventory lacks nothing: the worker, which asks the driver itself, says what is wrong.
    """
    left = {device.label: device.free_bytes - promised.get(device.label, 0) for device in inventory.devices}
    device = wish if wish != ANY else max(left, key=lambda label: left[label], default=_FIRST)
    if left.get(device, needed) >= needed:
        return Placement(device, "")
    eligible = [each for each in inventory.devices if wish in (ANY, each.label)]
    told = ", ".join(_told(each, left[each.label]) for each in eligible)
    return Placement(device, f"waits for memory: needs about {_size(needed)}; {told}")


def _told(device: Device, left: int) -> str:
    promised = device.free_bytes - left
    kept = f" ({_size(promised)} of them promised to others)" if promised else ""
    return f"{device.label} has {device.free_bytes / _GIB:.1f} of {device.total_bytes / _GIB:.1f} GiB free{kept}"


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"
