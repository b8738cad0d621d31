"""Triton's Python-backend model for an ONNX file; runs in Triton's stub process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from benchmarks.peers.session import OnnxModel

Feeds = dict[str, np.ndarray[Any, Any]]


class TritonPythonModel:
    """Loads ``model.onnx`` of its version folder; runs requests that came as a batch as one call."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        config = json.loads(args["model_config"])
        self.model = OnnxModel(folder / "model.onnx")
        self.inputs = [entry["name"] for entry in config["input"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        feeds = [self.feeds(request) for request in requests]
        if len(feeds) == 1:
            return [response(self.model.run(feeds[0]))]
        return self.run_batch(feeds)

    def feeds(self, request: Any) -> Feeds:
        tensors = {name: triton.get_input_tensor_by_name(request, name) for name in self.inputs}
        return {name: tensor.as_numpy() for name, tensor in tensors.items()}

    def run_batch(self, feeds: list[Feeds]) -> list[Any]:
        ends = np.cumsum([len(one[self.inputs[0]]) for one in feeds])[:-1]
        batch = {name: np.concatenate([one[name] for one in feeds]) for name in self.inputs}
        parts = {name: np.split(array, ends) for name, array in self.model.run(batch).items()}
        return [response({n: p[i] for n, p in parts.items()}) for i in range(len(feeds))]


def response(outputs: Feeds) -> Any:
    return triton.InferenceResponse([triton.Tensor(name, a) for name, a in outputs.items()])
