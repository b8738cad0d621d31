"""LiteRT models (``.tflite``), run by one interpreter for every instance."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from backends.errors import InferenceFailed, LoadFailed
from backends.spec import TensorSpec
from backends.tf.library import import_interpreter, quiet, text_of
from backends.tf.model import Facts, Model, Run
from backends.tf.options import Options
from backends.tf.tensors import Array, tensor_spec

_PLATFORM: Final = "tensorflow_lite"
_DEFAULT_SIGNATURE: Final = "serving_default"
_WHO: Final = "litert"

#: Arrays by the names of the inputs -> arrays by the names of the outputs.
_Call = Callable[[dict[str, Array]], Mapping[str, Array]]


class LiteModel(Model):
    """One signature of a ``.tflite`` file, or all of a file without signatures."""

    def __init__(self, file: Path, chosen: Options) -> None:
        """Raises ``LoadFailed``: no model or half of one, no such signature, operators that the interpreter lacks."""
        interpreter, self.runtime = import_interpreter()
        content = _read(file)
        self._make = partial(_make, interpreter, content, chosen.intra_op_threads)
        made = _make_all(self._make, chosen.instances, file)
        self._signature = _choose_signature(made[0], chosen.signature)
        inputs, outputs = _details(made[0], self._signature)
        operators = {operator["op_name"] for operator in made[0]._get_ops_details()}
        self.facts = Facts(_PLATFORM, _specs("input", inputs), _specs("output", outputs), set(), operators)
        self._idle: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        for each in made:
            self._idle.put(_callable(each, self._signature))

    def prepare(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Run:
        """Computes all outputs and picks these."""
        names = [tensor.name for tensor in inputs]
        picked = [tensor.name for tensor in outputs]

        def run(arrays: Sequence[Array]) -> list[Array]:
            call = self._idle.get()
            try:
                answers = call(dict(zip(names, arrays, strict=True)))
            except (RuntimeError, ValueError) as error:
                # one that has failed half-way may fail from then on
                call = _callable(self._make(), self._signature)
                raise InferenceFailed(text_of(error, _WHO)) from error
            finally:
                self._idle.put(call)
            return [np.asarray(answers[name]) for name in picked]

        return run

    def close(self) -> None:
        """Let the interpreters go, and the model with them."""
        self._idle = queue.SimpleQueue()
        self._make = partial(_make, None, b"", 0)


def _read(file: Path) -> bytes:
    # as content and not by its path: only so does the interpreter verify a model before it believes it
    try:
        return file.read_bytes()
    except OSError as error:
        raise LoadFailed(f"{file} cannot be read: {error.strerror}") from error


def _make_all(make: Callable[[], Any], count: int, file: Path) -> list[Any]:
    try:
        with quiet():
            return [make() for _ in range(count)]
    except ValueError as error:
        raise LoadFailed(
            f"{file.name} is no .tflite model, or only a part of one ({text_of(error, _WHO)}); copy the whole file, or "
            "convert the model again"
        ) from error
    except RuntimeError as error:
        text = text_of(error, _WHO).rstrip(".")
        raise LoadFailed(f"{file.name} cannot be loaded: {text}{_mend(text)}") from error


def _make(interpreter: Any, content: bytes, threads: int) -> Any:
    made = interpreter(model_content=content, num_threads=threads)
    made.allocate_tensors()
    return made


def _callable(interpreter: Any, signature: str) -> _Call:
    if signature:
        runner = interpreter.get_signature_runner(signature)
        return lambda arrays: runner(**arrays)
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    places = {tensor["name"]: tensor["index"] for tensor in inputs}

    def call(arrays: dict[str, Array]) -> Mapping[str, Array]:
        for name, array in arrays.items():
            interpreter.resize_tensor_input(places[name], array.shape)
        interpreter.allocate_tensors()
        for name, array in arrays.items():
            interpreter.set_tensor(places[name], array)
        interpreter.invoke()
        return {tensor["name"]: interpreter.get_tensor(tensor["index"]) for tensor in outputs}

    return call


def _choose_signature(interpreter: Any, name: str) -> str:
    """The signature to serve; "" for a model that has none."""
    offered = interpreter.get_signature_list()
    if name in offered:
        return name
    if not name and (not offered or _DEFAULT_SIGNATURE in offered or len(offered) == 1):
        return _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in offered else next(iter(offered), "")
    known = "; ".join(
        f"{key} ({', '.join(tensors['inputs'])} -> {', '.join(tensors['outputs'])})"
        for key, tensors in sorted(offered.items())
    )
    raise LoadFailed(
        f"the model has no signature {name or _DEFAULT_SIGNATURE!r}; it has: {known or 'none'} (option signature)"
    )


def _details(interpreter: Any, signature: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if signature:
        runner = interpreter.get_signature_runner(signature)
        return runner.get_input_details(), runner.get_output_details()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    return {tensor["name"]: tensor for tensor in inputs}, {tensor["name"]: tensor for tensor in outputs}


def _specs(what: str, details: Mapping[str, Any]) -> list[TensorSpec]:
    specs = []
    for name, tensor in details.items():
        dtype = "string" if tensor["dtype"] is np.bytes_ else np.dtype(tensor["dtype"]).name
        # a tensor whose shape is all known has no other, and one of unknown sizes has the sizes that they begin with
        shape = tensor["shape_signature"] if len(tensor["shape_signature"]) else tensor["shape"]
        specs.append(tensor_spec(what, name, dtype, [int(size) for size in shape]))
    return specs


def _mend(text: str) -> str:
    if "Select TensorFlow op" in text or "Flex" in text:
        return ": convert the model with LiteRT's own operators only, or serve it as a SavedModel"
    return ": the operator is of another package: convert the model without it" if "custom op" in text else ""
