"""One subject for each backend: what the suite of ``backends.contract`` needs of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import pytest

from backends import loader
from backends.contract import Backend
from backends.spec import ITEM_SIZE, ModelSpec, TensorSpec
from support import onnx_models, tf_models


class Subject(ABC):
    """One backend, and the models that the suite needs of it."""

    framework: str
    #: What may be imported, of the frameworks.
    package: str = ""
    datatypes: tuple[str, ...] = tuple(ITEM_SIZE)

    def create(self) -> Backend:
        """A backend that has loaded nothing."""
        return loader.create(self.framework)

    @abstractmethod
    def identity(self, folder: Path, datatypes: tuple[str, ...], shape: tuple[int, ...]) -> ModelSpec:
        """A model that answers input ``IN_<datatype>`` unchanged as ``OUT_<datatype>``, for each datatype."""

    @abstractmethod
    def broken(self, folder: Path) -> ModelSpec:
        """A model that cannot be loaded."""


class Echo(Subject):
    """Needs no framework and no artifact."""

    framework = "echo"

    def identity(self, folder: Path, datatypes: tuple[str, ...], shape: tuple[int, ...]) -> ModelSpec:
        return ModelSpec(
            "model", 1, "echo", "", inputs=_named("IN", datatypes, shape), outputs=_named("OUT", datatypes, shape)
        )

    def broken(self, folder: Path) -> ModelSpec:
        return ModelSpec("model", 1, "echo", "", options={"fault_injection": "true", "load_fail": "it is broken"})


class Onnx(Subject):
    """An ONNX file."""

    framework = "onnx"
    package = "onnxruntime"

    def identity(self, folder: Path, datatypes: tuple[str, ...], shape: tuple[int, ...]) -> ModelSpec:
        names = [("batch" if index == 0 else f"n{index}") if size == -1 else size for index, size in enumerate(shape)]
        onnx_models.save(onnx_models.identities(datatypes, names), folder)
        return ModelSpec("model", 1, "onnx", str(folder))

    def broken(self, folder: Path) -> ModelSpec:
        onnx_models.save(onnx_models.rubbish(), folder)
        return ModelSpec("model", 1, "onnx", str(folder))


class Torch(Subject):
    """A program of ``torch.export``. torch has no strings."""

    framework = "torch"
    package = "torch"
    datatypes = tuple(datatype for datatype in ITEM_SIZE if datatype != "BYTES")

    def identity(self, folder: Path, datatypes: tuple[str, ...], shape: tuple[int, ...]) -> ModelSpec:
        from support import torch_models

        torch_models.identities(datatypes, shape, folder)
        return ModelSpec("model", 1, "torch", str(folder))

    def broken(self, folder: Path) -> ModelSpec:
        (folder / "model.pt").write_bytes(b"rubbish")
        return ModelSpec("model", 1, "torch", str(folder))


class Tf(Subject):
    """A SavedModel, which does not keep the order of its tensors: hence declared."""

    framework = "tf"
    package = "tensorflow"

    def identity(self, folder: Path, datatypes: tuple[str, ...], shape: tuple[int, ...]) -> ModelSpec:
        sizes = [None if size == -1 else size for size in shape]
        tf_models.build("identities", folder, datatypes=datatypes, shape=sizes)
        inputs, outputs = _named("IN", datatypes, shape), _named("OUT", datatypes, shape)
        return ModelSpec("model", 1, "tf", str(folder), inputs=inputs, outputs=outputs)

    def broken(self, folder: Path) -> ModelSpec:
        (folder / "saved_model.pb").write_bytes(b"rubbish")
        return ModelSpec("model", 1, "tf", str(folder))


SUBJECTS: tuple[Subject, ...] = (Echo(), Onnx(), Torch(), Tf())


def every_subject_and(parameter: str, values: Iterable[str | tuple[str, ...]]) -> pytest.MarkDecorator:
    """The test for each subject with each value, a datatype or several: those that the subject has tensors of."""
    cases = [
        pytest.param(subject, value, id=f"{subject.framework}-{value}")
        for subject in SUBJECTS
        for value in values
        if {*((value,) if isinstance(value, str) else value)} <= {*subject.datatypes}
    ]
    return pytest.mark.parametrize(("subject", parameter), cases, indirect=["subject"])


def require(subject: Subject) -> Subject:
    """Skips the test where the subject's framework is not installed."""
    if not loader.is_installed(subject.framework):
        pytest.skip(f"{subject.package} is not installed: {loader.install_line(subject.framework)}")
    return subject


def _named(prefix: str, datatypes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"{prefix}_{datatype}", datatype, shape) for datatype in datatypes)
