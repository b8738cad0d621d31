"""Where a model asks to run (``ModelSpec.device``), and whether that is to be had. Pure: imports no framework.

The gateway lets a worker see no CUDA device but its model's (``CUDA_VISIBLE_DEVICES``). So that is the first one there,
whatever its number on the machine. A model that asks for CUDA never runs on the CPU instead: it would be slow for no
visible reason.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Final

from backends.errors import LoadFailed

_DEVICE: Final = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def wants_cuda(device: str) -> bool:
    """Whether ``device`` is a CUDA device. Raises ``LoadFailed`` for what is none and not the CPU."""
    if not _DEVICE.fullmatch(device):
        raise LoadFailed(
            f"device is {device!r}; it is cpu, cuda, or cuda:N: set the instance_group to KIND_CPU or KIND_GPU"
        )
    return device != "cpu"


def check_cuda(device: str, seen: int, framework: str, mend: str) -> None:
    """Raises ``LoadFailed`` with the numbers if a model wants CUDA and its framework sees no CUDA device.

    ``seen``: CUDA devices that the framework can use in this process; ``framework``: its name and version; ``mend``:
    how to get it to see one.
    """
    if not wants_cuda(device) or seen > 0:
        return
    raise LoadFailed(
        f"device {device} was asked for (KIND_GPU), and {framework} sees {seen} CUDA devices"
        f" ({_VISIBLE}={os.environ.get(_VISIBLE, 'unset')}): {mend}, or place the model on the CPU (KIND_CPU)"
    )


def count_cuda() -> int:
    """CUDA devices that the driver shows this process; 0 without a driver. Takes no memory on them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
