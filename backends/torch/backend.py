"""``TorchBackend``: models of torch that answer a request in one run.

Kinds of models: ``backends.torch.kinds``. Options: ``backends.torch.options``. What is loaded and what is refused, and
how it is told apart: ``backends.torch.artifact``. Models that generate text are not this backend's.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from backends.contract import Arrays, Backend
from backends.errors import InvalidInput
from backends.spec import ModelSpec, Signature
from backends.tensor import NUMPY_DTYPE


class TorchBackend(Backend):
    """Runs one torch model."""

    def __init__(self) -> None:
        self._inputs: dict[str, tuple[str, np.dtype[Any]]] = {}
        self._outputs: dict[str, str] = {}
        self._required: frozenset[str] = frozenset()
        self._rowwise = False
        self._engine: Any = None
        self._turn: AbstractContextManager[Any] = contextlib.nullcontext()

    def import_framework(self, spec: ModelSpec) -> None:
        """Import torch."""
        importlib.import_module("backends.torch.framework")

    def load(self, spec: ModelSpec) -> Signature:
        """Raises ``LoadFailed``: what is no model, would run code of its author, or is declared wrongly."""
        from backends.torch import loading
        from backends.torch.engine import Engine

        loaded = loading.load(spec)
        self._remember(loaded.signature)
        self._turn = threading.Lock() if loaded.program.keeps_state else contextlib.nullcontext()
        self._engine = Engine(loaded)
        self.runtime = loaded.runtime
        return loaded.signature

    def infer(self, inputs: Arrays, outputs: tuple[str, ...], parameters: dict[str, Any]) -> Arrays:
        """Raises ``InvalidInput`` for what the model does not take, ``InferenceFailed`` for every other failure."""
        names = outputs or tuple(self._outputs)
        self._check(inputs, names)
        with self._turn:
            answers: Arrays = self._engine.run(inputs, names)
        return answers

    def trim(self) -> None:
        """Give back device memory that torch keeps."""
        from backends.torch import faults

        faults.release_memory()

    def unload(self) -> None:
        """Give the model and its memory back."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _remember(self, signature: Signature) -> None:
        """What ``infer`` looks up on every call."""
        self._inputs = {tensor.name: (tensor.datatype, NUMPY_DTYPE[tensor.datatype]) for tensor in signature.inputs}
        self._outputs = {tensor.name: tensor.datatype for tensor in signature.outputs}
        self._required = frozenset(tensor.name for tensor in signature.inputs if not tensor.optional)
        self._rowwise = signature.max_batch_size > 0 and len(signature.inputs) > 1

    def _check(self, inputs: Arrays, names: tuple[str, ...]) -> None:
        if not self._required <= inputs.keys():
            raise InvalidInput(f"input(s) missing: {', '.join(sorted(self._required - inputs.keys()))}")
        for name, array in inputs.items():
            known = self._inputs.get(name)
            if known is None:
                raise InvalidInput(self._unknown(name))
            if array.dtype != known[1]:
                raise InvalidInput(f"input {name!r} is an array of {array.dtype}, the model takes {known[0]}")
        for name in names:
            if name not in self._outputs:
                raise InvalidInput(self._unknown(name))
        if self._rowwise:
            rows = {name: array.shape[0] if array.ndim else None for name, array in inputs.items()}
            if len(set(rows.values())) > 1:
                listed = ", ".join(f"{name} {count}" for name, count in rows.items())
                raise InvalidInput(f"inputs have different numbers of rows ({listed}); all need the same")

    def _unknown(self, name: str) -> str:
        return f"the model has no tensor {name!r}; it has {', '.join((*self._inputs, *self._outputs))}"
