"""Reads the GPUs from NVIDIA's management library. The only module that imports ``pynvml`` (extra ``gpu``)."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Final

from gateway.placement.inventory import Device, Inventory

log = logging.getLogger("tensorgate.placement")

_NO_PACKAGE: Final = "the package nvidia-ml-py is not installed: pip install 'tensorgate[gpu]'"


class Nvml:
    """Call it for the devices as they are now. Without driver or package there are none, which is said once.

    ``package`` is the name of the module to import.
    """

    def __init__(self, package: str = "pynvml") -> None:
        self._package = package
        self._library: Any = None
        self._reason = ""

    def __call__(self) -> Inventory:
        """Takes milliseconds, the first time more. Raises nothing: a library that fails is a reason."""
        if self._reason:
            return Inventory(reason=self._reason)
        if self._library is None and not self._open():
            log.info("no GPU is known: %s", self._reason)
            return Inventory(reason=self._reason)
        try:
            return Inventory(tuple(map(self._device, range(self._library.nvmlDeviceGetCount()))))
        except self._library.NVMLError as error:  # a driver that is being replaced, a device that fell off the bus
            return Inventory(reason=f"NVIDIA's library does not answer: {error}")

    def _open(self) -> bool:
        try:
            library = importlib.import_module(self._package)
        except ImportError:
            self._reason = _NO_PACKAGE
            return False
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            self._reason = f"there is no NVIDIA driver: {error}"
            return False
        self._library = library
        return True

    def _device(self, index: int) -> Device:
        handle = self._library.nvmlDeviceGetHandleByIndex(index)
        memory = self._library.nvmlDeviceGetMemoryInfo(handle)
        uuid, name = self._library.nvmlDeviceGetUUID(handle), self._library.nvmlDeviceGetName(handle)
        return Device(index, uuid, name, int(memory.total), int(memory.free))
