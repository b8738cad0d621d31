"""Where a model runs, and with how many threads."""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager
from typing import Any, Final

from backends.devices import check_cuda, wants_cuda
from backends.errors import LoadFailed
from backends.torch.framework import torch
from backends.torch.options import Options

#: The only one that a worker sees, whatever its number on the machine.
_FIRST: Final = 0


def choose(name: str) -> Any:
    """The device of that name. Raises ``LoadFailed`` that says which devices there are."""
    if not wants_cuda(name):
        return torch.device("cpu")
    has_cuda = torch.version.cuda is not None or torch.version.hip is not None
    mend = (
        "nvidia-smi has to list the device"
        if has_cuda
        else "this build is for the CPU only, install one with CUDA (pip install torch without +cpu)"
    )
    check_cuda(name, torch.cuda.device_count(), f"torch {torch.__version__}", mend)
    torch.cuda.set_device(_FIRST)  # or libraries would keep a share of their own on another one
    return torch.device("cuda", _FIRST)


def set_threads(chosen: Options) -> None:
    """Once in a process, as torch has it. Raises ``LoadFailed`` if another number is already at work."""
    torch.set_num_threads(chosen.intra_op_threads)
    wanted = chosen.inter_op_threads
    if wanted and wanted != torch.get_num_interop_threads():
        try:
            torch.set_num_interop_threads(wanted)
        except RuntimeError as error:
            raise LoadFailed(
                f"option inter_op_thread_count is {wanted}, and this process works with "
                f"{torch.get_num_interop_threads()} already: it can be set once in a worker"
            ) from error


class Stream:
    """Each thread's own queue of work on a CUDA device, so that instances run side by side; nothing on the CPU."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._local = threading.local()

    def __call__(self) -> AbstractContextManager[Any]:
        """The context in which a thread runs the model."""
        if self._device.type == "cpu":
            return contextlib.nullcontext()
        stream = getattr(self._local, "stream", None)
        if stream is None:
            stream = self._local.stream = torch.cuda.Stream(self._device)
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context
