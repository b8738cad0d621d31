"""Loading models with one framework's backend, in the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import loader
from backends.contract import Arrays, Backend
from backends.errors import LoadFailed
from backends.spec import ModelSpec, Signature, TensorSpec


class Loading:
    """One framework. ``fields`` are those of a ``ModelSpec``."""

    def __init__(self, framework: str) -> None:
        self.framework = framework

    def spec(self, path: Path, **fields: Any) -> ModelSpec:
        """What is to be loaded."""
        return ModelSpec("model", 1, self.framework, str(path), **fields)

    def load(self, path: Path, **fields: Any) -> tuple[Backend, Signature]:
        """A backend that has loaded the model, and what it says about it."""
        backend = loader.create(self.framework)
        return backend, backend.load(self.spec(path, **fields))

    def refusal(self, path: Path, **fields: Any) -> str:
        """The text with which loading fails."""
        with pytest.raises(LoadFailed) as failure:
            self.load(path, **fields)
        return str(failure.value)


def run(backend: Backend, **inputs: Any) -> Arrays:
    """All outputs for these inputs."""
    return backend.infer({name: np.asarray(array) for name, array in inputs.items()}, (), {})


def tensor(name: str, datatype: str, *shape: int) -> tuple[TensorSpec, ...]:
    """A declaration of one tensor."""
    return (TensorSpec(name, datatype, shape),)


def tensors(*declared: tuple[Any, ...]) -> tuple[TensorSpec, ...]:
    """Declarations: (name, datatype, dims ...)."""
    return tuple(TensorSpec(name, datatype, tuple(dims)) for name, datatype, *dims in declared)
