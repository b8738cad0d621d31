"""Where a model runs, and with how many threads."""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager
from typing import Any

from backends.errors import LoadFailed
from backends.torch.framework import torch
from backends.torch.options import Options


def choose(name: str) -> Any:
    """The device of that name. Raises ``LoadFailed`` that says which devices there are."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoadFailed(f"device {name!r} is not known; it is cpu, cuda, or cuda:N") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise LoadFailed(f"device {name!r} is not supported; it is cpu, cuda, or cuda:N")
    if torch.version.cuda is None and torch.version.hip is None:
        raise LoadFailed(
            f"device {name} was asked for, and this torch ({torch.__version__}) is built for the CPU only: install a "
            "build with CUDA (pip install torch without +cpu), or place the model on the CPU"
        )
    count = torch.cuda.device_count()
    index = device.index or 0
    if index >= count:
        raise LoadFailed(
            f"device {name} was asked for, and torch sees {count} CUDA device(s): check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or place the model elsewhere"
        )
    torch.cuda.set_device(index)  # or libraries would keep a share of their own on the first device
    return torch.device("cuda", index)


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
