"""One run: arrays in, tensors through the program, arrays out."""

from __future__ import annotations

import gc
from typing import Any

from backends.contract import Arrays
from backends.errors import InvalidInput
from backends.torch import faults
from backends.torch.devices import Stream
from backends.torch.framework import torch
from backends.torch.loading import Loaded
from backends.torch.tensors import to_array, to_tensor

_IMAGE_DIMENSIONS = 4


class Engine:
    """Runs a loaded program; from several threads at once unless it keeps state."""

    def __init__(self, loaded: Loaded) -> None:
        self._program = loaded.program
        self._device = loaded.device
        self._channels_last = loaded.channels_last
        self._stream = Stream(loaded.device)
        self._inputs = {tensor.name: tensor.datatype for tensor in loaded.signature.inputs}
        self._outputs = {tensor.name: tensor.datatype for tensor in loaded.signature.outputs}
        # on a device everything is a copy already; a model that keeps state may write to what it gave
        self._copies = loaded.program.writes_inputs and loaded.device.type == "cpu"
        self._keeps = loaded.program.keeps_state

    def run(self, inputs: Arrays, names: tuple[str, ...]) -> Arrays:
        """Raises ``InvalidInput`` or ``InferenceFailed``."""
        program = self._program
        if program.check is not None:
            program.check(inputs)
        # inference_mode holds for a thread and not for the process
        with torch.inference_mode(), self._stream():
            feeds = {name: self._feed(name, array) for name, array in inputs.items()}
            borrowed = () if self._copies else tuple(map(_memory, feeds.values()))
            try:
                answers = program.run(feeds, names)
            except Exception as error:  # torch raises many classes, a model's own code any
                raise faults.at_run(error) from error
            return {name: self._array(name, answers[name], borrowed) for name in names}

    def close(self) -> None:
        """Let go of the program and of cached memory."""
        del self._program
        gc.collect()  # modules refer to themselves
        faults.release_memory()

    def _feed(self, name: str, array: Any) -> Any:
        program, datatype = self._program, self._inputs[name]
        if name in program.numbers:
            if array.size != 1:
                raise InvalidInput(f"input {name!r} has shape {list(array.shape)}, the model takes one number")
            return array.item()
        tensor = to_tensor(array, datatype, copy=self._copies)
        dtype = program.dtype if program.dtype is not None and tensor.is_floating_point() else tensor.dtype
        if dtype is not tensor.dtype or self._device.type != "cpu":
            tensor = tensor.to(self._device, dtype)
        if self._channels_last and tensor.dim() == _IMAGE_DIMENSIONS:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _array(self, name: str, value: Any, borrowed: tuple[int, ...]) -> Any:
        """The output, in memory that is neither the request's nor the model's to write to."""
        array = to_array(name, value, self._outputs[name])
        if self._keeps or (borrowed and _memory(value) in borrowed):
            return array.copy()
        return array


def _memory(value: Any) -> int:
    """Where a tensor's memory begins; views of one tensor have one memory."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0
