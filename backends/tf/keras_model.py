"""Keras 3 models (``.keras``), run as one TensorFlow function.

Their layers are made again from the file's description by Keras itself, in its safe mode, after ``archive`` has seen
that the description asks for no code. The function is traced once, for all shapes that the model takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from backends.errors import LoadFailed
from backends.options import usable_cores
from backends.spec import TensorSpec
from backends.tf import graph
from backends.tf.library import failure, load_failure, quiet
from backends.tf.model import Facts, Model, Run, places
from backends.tf.options import Options
from backends.tf.tensors import Array, tensor_spec

_PLATFORM: Final = "tensorflow_keras"


class KerasModel(Model):
    """One ``.keras`` file.

    Inputs have the names of their ``Input`` layers. Outputs have their keys where the model answers a dictionary, or
    else the names of the layers that they come from, a second one of the same layer with ``_1`` behind it.
    """

    def __init__(self, tensorflow: Any, file: Path, chosen: Options, written_by: str) -> None:
        """Raises ``LoadFailed`` with Keras' reason, or for inputs that cannot be served."""
        import keras

        self._tensorflow = tensorflow
        self.runtime = f"keras {keras.__version__} (tensorflow {tensorflow.__version__})"
        self.bfloat16 = tensorflow.bfloat16.as_numpy_dtype
        _configure(tensorflow, chosen)
        try:
            with quiet():
                model = keras.saving.load_model(file, compile=False, safe_mode=True)
        except Exception as error:  # of any class: Keras, h5py and TensorFlow raise their own
            versions = f" (saved with Keras {written_by}, this is {keras.__version__})" if written_by else ""
            raise load_failure(tensorflow, error, f"{file.name} cannot be loaded{versions}") from error
        if not getattr(model, "inputs", None):
            raise LoadFailed(f"{file.name} does not say what its inputs are: build the model with an Input and save it")
        inputs = _inputs(model)
        # a list in and a list out, whatever the structures are. The function itself does not keep its variables alive
        flat = self._layers = keras.Model(model.inputs, model.outputs)
        self._function = _trace(tensorflow, keras.tree.flatten, flat, chosen.xla)
        operators = {node.op for _, node in graph.nodes(self._function.graph.as_graph_def())}
        self.facts = Facts(_PLATFORM, inputs, _outputs(model, flat), set(), operators)

    def prepare(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Run:
        """Computes all outputs and picks these."""
        fed = places(self.facts.inputs, inputs)
        picked = places(outputs, self.facts.outputs)
        constant, function = self._tensorflow.constant, self._function

        def run(arrays: Sequence[Array]) -> list[Array]:
            try:
                # constant() copies, once; so does convert_to_tensor(), in more time
                answers = function(*[constant(arrays[place]) for place in fed])
                return [np.asarray(answers[place]) for place in picked]
            except self._tensorflow.errors.OpError as error:
                raise failure(self._tensorflow, error) from error

        return run

    def close(self) -> None:
        """Let the function go, and the variables with it."""
        self._function = self._layers = None


def _configure(tensorflow: Any, chosen: Options) -> None:
    """Threads and devices of the whole process, which TensorFlow takes only before it has run anything."""
    config = tensorflow.config
    threads = config.threading
    try:
        if threads.get_intra_op_parallelism_threads() != chosen.intra_op_threads:
            threads.set_intra_op_parallelism_threads(chosen.intra_op_threads)
        inter_op = chosen.inter_op_threads or usable_cores()
        if threads.get_inter_op_parallelism_threads() != inter_op:
            threads.set_inter_op_parallelism_threads(inter_op)
        for gpu in config.list_physical_devices("GPU"):
            if not chosen.gpu:
                config.set_visible_devices([], "GPU")
            elif chosen.memory_limit_mb:
                limit = config.LogicalDeviceConfiguration(memory_limit=chosen.memory_limit_mb)
                config.set_logical_device_configuration(gpu, [limit])
            else:
                config.experimental.set_memory_growth(gpu, chosen.memory_growth)
    except RuntimeError as error:
        raise LoadFailed(f"TensorFlow runs in this process already, with other settings: {error}") from error


def _inputs(model: Any) -> list[TensorSpec]:
    for tensor in model.inputs:
        if tensor.sparse or getattr(tensor, "ragged", False):
            raise LoadFailed(
                f"input {tensor.name!r} is a sparse or ragged tensor, which the Open Inference Protocol does not have; "
                "save the model with dense inputs"
            )
    return [tensor_spec("input", tensor.name, tensor.dtype, tensor.shape) for tensor in model.inputs]


def _outputs(model: Any, flat: Any) -> list[TensorSpec]:
    # a Sequential model has one output and no structure to tell about it
    structure = model.output if hasattr(model, "output_names") else None
    names = sorted(structure) if isinstance(structure, dict) else flat.output_names
    return [
        tensor_spec("output", name, tensor.dtype, tensor.shape)
        for name, tensor in zip(_distinct(names), flat.outputs, strict=True)
    ]


def _distinct(names: Sequence[str]) -> list[str]:
    taken: list[str] = []
    for name in names:
        count, free = 1, name
        while free in taken or (free != name and free in names):
            free, count = f"{name}_{count}", count + 1
        taken.append(free)
    return taken


def _trace(tensorflow: Any, flatten: Callable[[Any], list[Any]], flat: Any, xla: bool) -> Any:
    """The model as a function of its inputs in their order, that answers a list."""

    def call(*tensors: Any) -> list[Any]:
        # Keras unpacks a list of one
        return flatten(flat(list(tensors), training=False))

    specs = [tensorflow.TensorSpec(tensor.shape, tensor.dtype) for tensor in flat.inputs]
    try:
        with quiet():
            function = tensorflow.function(call, input_signature=specs, jit_compile=xla or None, autograph=False)
            return function.get_concrete_function()
    except Exception as error:  # as above
        raise load_failure(tensorflow, error, "the model cannot be traced") from error
