"""torch's errors in a few words, and whose fault they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from backends.errors import BackendError, InferenceFailed, InvalidInput, LoadFailed, OutOfMemory
from backends.torch.framework import torch

_MAX_LENGTH: Final = 600
#: How errors begin, or what they hold, that a request's shapes or values cause.
_REQUEST_FAULTS: Final = re.compile(
    r"shapes cannot be multiplied|size of tensor .* must match|[Ss]izes? .* must match|index out of range"
    r"|is out of bounds|out of range \(expected|must be a matrix|is invalid for input of size|cannot reshape"
    r"|[Ee]xpected .*(?:input|tensor|[Dd]im|size|index|weight).* (?:but got|got)|Expected (?:input|\d+D)"
    r"|Expected tensor for argument .* scalar types|[Gg]iven groups|[Kk]ernel size can't be greater"
    r"|but got \d+D|dimensions? of size|doesn't match|unmatched (?:dim|dtype|stride)|dim value is too"
    r"|Calculated padded input size|must be broadcastable|not broadcastable|inconsistent tensor size|expected m[12]"
    r"|size mismatch|not divisible|must have the same dtype|expected size \d+"
)
#: A model's own complaint about its input.
_VALUE_ERROR: Final = re.compile(r"builtins\.ValueError: (.*)", re.DOTALL)
_CPU_MEMORY: Final = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
#: Where torch's C++ tells where it stood.
_TRACES: Final = ("\nException raised from", "\nC++ CapturedTraceback", "\nError in op")


def text_of(error: BaseException) -> str:
    """An error of torch in a line or two, without its traces."""
    text = str(error)
    if "Traceback of TorchScript" in text:  # what went wrong comes last
        text = text.strip().rpartition("\n")[2].removeprefix("RuntimeError: ").removeprefix("Error: ")
    for trace in _TRACES:
        text = text.partition(trace)[0]
    text = text.strip() or type(error).__name__
    return text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + " ..."


def at_run(error: BaseException) -> BackendError:
    """What a failed run means for its request."""
    if isinstance(error, BackendError):
        return error
    text = text_of(error)
    complaint = _VALUE_ERROR.search(str(error))
    if complaint:
        return InvalidInput(f"the model refuses its input: {complaint[1].strip()}")
    if is_out_of_memory(error):
        release_memory()
        return InferenceFailed(f"out of memory: {text}; send smaller batches, or place fewer models on the device")
    if isinstance(error, IndexError) or _REQUEST_FAULTS.search(text):
        return InvalidInput(f"torch: {text}")
    return InferenceFailed(f"torch: {text}")


def at_load(error: BaseException, path: Path, device: Any) -> LoadFailed:
    """What a failed load means for the model."""
    if isinstance(error, LoadFailed):
        return error
    if is_out_of_memory(error):
        release_memory()
        size = _size(path)
        return OutOfMemory(
            f"{path.name} ({size} bytes on disk) does not fit: {text_of(error)}; {_free_memory(device)}. Place it on "
            "another device, load fewer models, or set the option dtype = bfloat16"
        )
    return LoadFailed(f"{path.name} cannot be loaded: {text_of(error)}")


def is_out_of_memory(error: BaseException) -> bool:
    """On a device or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(_CPU_MEMORY.search(str(error)))


def release_memory() -> None:
    """Give cached device memory back."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _free_memory(device: Any) -> str:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return f"device {device} has {free} of {total} bytes free"
    lines = Path("/proc/meminfo").read_text().splitlines()
    values = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return f"the machine has {values.get('MemAvailable', 0)} of {values.get('MemTotal', 0)} bytes free"


def _size(path: Path) -> int:
    files: Any = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
