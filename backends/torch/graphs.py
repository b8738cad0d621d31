"""CUDA graphs: a run of fixed shapes is recorded once and replayed, which saves the launch of each operator."""

from __future__ import annotations

import threading
from typing import Any, Final

from backends.errors import InvalidInput, LoadFailed
from backends.torch import trial
from backends.torch.framework import torch
from backends.torch.program import Program, Run

#: Runs before the recording, in which libraries choose their kernels and allocate their workspaces.
_WARM_UPS: Final = 3


def record(program: Program, device: Any) -> Run:
    """A ``run`` that replays. Raises ``LoadFailed``: not on a CUDA device, shapes that vary, Python numbers."""
    if device.type != "cuda":
        raise LoadFailed(f"option cuda_graphs needs a CUDA device, the model is placed on {device}: leave it out")
    if program.numbers or program.keeps_state:
        raise LoadFailed(
            "option cuda_graphs: the model takes Python numbers or keeps state, which a replay would not see"
        )
    varying = next((tensor for tensor in program.inputs if -1 in tensor.shape), None)
    if varying is not None:
        raise LoadFailed(
            f"option cuda_graphs needs fixed shapes, input {varying.name!r} has {list(varying.shape)}: declare it with "
            "the one shape that you send, and max_batch_size 0"
        )
    return _Replay(program, device).run


class _Replay:
    """Inputs are copied to where the recording reads them, outputs copied from where it writes: one run at a time."""

    def __init__(self, program: Program, device: Any) -> None:
        names = tuple(tensor.name for tensor in program.outputs)
        self._lock = threading.Lock()
        self._inputs = trial.feeds(program, device)
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                program.run(dict(self._inputs), names)
            stream.synchronize()
            with torch.cuda.graph(self._graph, stream=stream):
                self._outputs = program.run(dict(self._inputs), names)
        stream.synchronize()

    def run(self, feeds: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
        """Raises ``InvalidInput`` for another shape than the recorded one."""
        with self._lock:
            for name, recorded in self._inputs.items():
                given = feeds[name]
                if given.shape != recorded.shape:
                    raise InvalidInput(
                        f"input {name!r} has shape {list(given.shape)}, the model takes {list(recorded.shape)} only"
                    )
                recorded.copy_(given)
            self._graph.replay()
            answers = {name: self._outputs[name].clone() for name in wanted}
            torch.cuda.current_stream().synchronize()
            return answers
