"""``TfBackend``: SavedModels, Keras 3 models and LiteRT models.

Options: see ``backends.tf.options``; what is offered to clients and how it batches: ``backends.tf.signature``. All
outputs of the signature (or those that the spec declares) are computed for every request, whichever it asks for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from backends import devices
from backends.contract import Arrays, Backend
from backends.errors import BackendError, InferenceFailed, InvalidInput, LoadFailed
from backends.options import usable_cores
from backends.spec import ModelSpec, Signature, TensorSpec
from backends.tensor import NUMPY_DTYPE
from backends.tf import archive, artifact, options
from backends.tf.keras_model import KerasModel
from backends.tf.library import import_interpreter, import_tensorflow, text_of
from backends.tf.lite import LiteModel
from backends.tf.model import Model, Run
from backends.tf.saved_model import SavedModel
from backends.tf.signature import describe
from backends.tf.tensors import answer, feed

_NO_DEVICE: Final = (
    "nvidia-smi has to list the device, and TensorFlow has to be the build for it (pip install 'tensorflow[and-cuda]')"
)


class TfBackend(Backend):
    """Runs one TensorFlow model."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._run: Run | None = None
        self._inputs: tuple[TensorSpec, ...] = ()
        self._outputs: tuple[str, ...] = ()
        self._bfloat16: Any = None

    def import_framework(self, spec: ModelSpec) -> None:
        """Import TensorFlow, or for a .tflite model its interpreter alone."""
        is_lite = artifact.locate(Path(spec.path)).kind == artifact.LITE
        (import_interpreter if is_lite else import_tensorflow)()

    def load(self, spec: ModelSpec) -> Signature:
        """Raises ``LoadFailed``: no model, half a model, code in it, a wrong option or declaration, no such device."""
        chosen = options.parse(spec, usable_cores())
        found = artifact.locate(Path(spec.path))
        options.TABLE.check_kind(spec.options, found.kind)
        model = _open(found, chosen, spec.device)
        signature = describe(spec, model.facts)
        self._run = model.prepare(signature.inputs, signature.outputs)
        if chosen.xla:
            _compile(self._run, signature, model.bfloat16)
        self._model, self._bfloat16 = model, model.bfloat16
        self._inputs = signature.inputs
        self._outputs = tuple(tensor.name for tensor in signature.outputs)
        self.runtime = model.runtime
        return signature

    def infer(self, inputs: Arrays, outputs: tuple[str, ...], parameters: dict[str, Any]) -> Arrays:
        """Raises ``InvalidInput`` for what TensorFlow calls an invalid argument, ``InferenceFailed`` for the rest."""
        names = outputs or self._outputs
        self._check_names(inputs, names)
        assert self._run is not None, "infer before load"
        feeds = [feed(tensor, inputs[tensor.name], self._bfloat16) for tensor in self._inputs]
        try:
            values = dict(zip(self._outputs, self._run(feeds), strict=True))
        except (BackendError, MemoryError):
            raise
        except Exception as error:  # TensorFlow raises Python's own errors too
            raise InferenceFailed(text_of(error)) from error
        return {name: answer(values[name]) for name in names}

    def unload(self) -> None:
        """Give the model and its memory back."""
        if self._model is not None:
            self._model.close()
        self._model = self._run = None

    def _check_names(self, inputs: Arrays, names: tuple[str, ...]) -> None:
        missing = [tensor.name for tensor in self._inputs if tensor.name not in inputs]
        if missing:
            raise InvalidInput(f"input(s) missing: {', '.join(missing)}")
        known = [tensor.name for tensor in self._inputs]
        unknown = [
            *(name for name in inputs if name not in known),
            *(name for name in names if name not in self._outputs),
        ]
        if unknown:
            raise InvalidInput(f"the model has no tensor {unknown[0]!r}; it has {', '.join((*known, *self._outputs))}")


def _open(found: artifact.Artifact, chosen: options.Options, device: str) -> Model:
    if found.kind == artifact.LITE:
        if chosen.gpu:
            raise LoadFailed(
                f"device {device} was asked for (KIND_GPU), and .tflite models run on the CPU only: place the model "
                "on the CPU (KIND_CPU)"
            )
        return LiteModel(found.path, chosen)
    written_by = archive.check(found.path) if found.kind == artifact.KERAS else ""
    tensorflow = import_tensorflow()
    if chosen.gpu:
        seen = len(tensorflow.config.list_physical_devices("GPU"))
        devices.check_cuda(device, seen, f"tensorflow {tensorflow.__version__}", _NO_DEVICE)
    if found.kind == artifact.KERAS:
        return KerasModel(tensorflow, found.path, chosen, written_by)
    return SavedModel(tensorflow, found.path, chosen)


def _compile(run: Run, signature: Signature, bfloat16: Any) -> None:
    """Run a model with XLA once, so that one that XLA cannot compile is found out now. Zeros may not be its taste."""
    shapes = [tuple(max(size, 1) if size else 0 for size in tensor.shape) for tensor in signature.inputs]
    zeros = [
        np.zeros(shape, NUMPY_DTYPE[tensor.datatype]) for shape, tensor in zip(shapes, signature.inputs, strict=True)
    ]
    try:
        run([feed(tensor, array, bfloat16) for tensor, array in zip(signature.inputs, zeros, strict=True)])
    except InvalidInput:
        return  # compiled, and ran into values that make no sense
    except InferenceFailed as error:
        raise LoadFailed(f'option xla is "true", and the model cannot be compiled: {error}') from error
