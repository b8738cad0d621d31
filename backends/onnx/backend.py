"""``OnnxBackend``: ONNX models on onnxruntime.

All instances share one session: its ``run`` is thread-safe and releases the interpreter lock. Options: see
``backends.onnx.options``; what is offered to clients and how it batches: ``backends.onnx.signature``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from backends.contract import Arrays, Backend
from backends.errors import InferenceFailed, InvalidInput
from backends.onnx import artifact, external, options
from backends.onnx.session import check_device, import_onnxruntime, open_session, run_options, text_of
from backends.onnx.signature import describe
from backends.onnx.tensors import bf16_from_ort, bf16_to_ort, decode_strings, encode_strings
from backends.options import usable_cores
from backends.spec import ModelSpec, Signature

#: How onnxruntime's errors about a request begin; a run with IO binding raises them without their class.
_REQUEST_FAULTS: Final = ("Invalid rank for input", "Got invalid dimensions for input", "Unexpected input data type")


class OnnxBackend(Backend):
    """Runs one ONNX model."""

    def __init__(self) -> None:
        self._ort: Any = None
        self._session: Any = None
        self._run_options: Any = None
        self._invalid_argument: type[Exception] = Exception
        self._inputs: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._required: frozenset[str] = frozenset()
        self._has_bf16_outputs = False
        self._is_plain = False

    def import_framework(self, spec: ModelSpec) -> None:
        """Import onnxruntime."""
        import_onnxruntime()

    def load(self, spec: ModelSpec) -> Signature:
        """Raises ``LoadFailed``: no model or half of one, data outside its folder, a wrong option or declaration."""
        chosen = options.parse(spec, usable_cores())
        model = artifact.locate(Path(spec.path))
        facts = artifact.inspect(model)
        external.check(model, facts.external)
        self._ort = import_onnxruntime()
        check_device(self._ort, spec.device)
        providers = options.choose_providers(chosen.providers, spec.device, self._ort.get_available_providers())
        session = open_session(self._ort, model, chosen, providers)
        signature = describe(spec, session, facts)
        self._remember(signature)
        self._session = session
        self._run_options = run_options(self._ort, chosen)
        self._invalid_argument = self._ort.capi.onnxruntime_pybind11_state.InvalidArgument
        self.runtime = f"onnxruntime {self._ort.__version__} ({', '.join(session.get_providers())})"
        return signature

    def infer(self, inputs: Arrays, outputs: tuple[str, ...], parameters: dict[str, Any]) -> Arrays:
        """Raises ``InvalidInput`` for what onnxruntime calls an invalid argument, ``InferenceFailed`` for the rest."""
        names = outputs or tuple(self._outputs)
        self._check_names(inputs, names)
        if self._is_plain:
            return self._run(inputs, names)
        feeds = {name: self._feed(name, array) for name, array in inputs.items()}
        if self._has_bf16_outputs and any(self._outputs[name] == "BF16" for name in names):
            values = self._run_bound(feeds, names)
        else:
            values = self._run(feeds, names)
        return {name: encode_strings(array) if array.dtype.kind == "O" else array for name, array in values.items()}

    def unload(self) -> None:
        """Give the session and its memory back."""
        self._session = self._run_options = None

    def _remember(self, signature: Signature) -> None:
        """What ``infer`` looks up on every call."""
        self._inputs = {tensor.name: tensor.datatype for tensor in signature.inputs}
        self._outputs = {tensor.name: tensor.datatype for tensor in signature.outputs}
        self._required = frozenset(tensor.name for tensor in signature.inputs if not tensor.optional)
        self._has_bf16_outputs = "BF16" in self._outputs.values()
        self._is_plain = not {"BYTES", "BF16"} & {*self._inputs.values(), *self._outputs.values()}

    def _check_names(self, inputs: Arrays, names: tuple[str, ...]) -> None:
        if self._required <= inputs.keys() <= self._inputs.keys() and self._outputs.keys() >= {*names}:
            return
        missing = sorted(self._required - inputs.keys())
        if missing:
            raise InvalidInput(f"input {missing[0]!r} is missing; the model takes {', '.join(self._inputs)}")
        unknown = [*sorted(inputs.keys() - self._inputs.keys()), *sorted({*names} - self._outputs.keys())]
        known = ", ".join((*self._inputs, *self._outputs))
        raise InvalidInput(f"the model has no tensor {unknown[0]!r}; it has {known}")

    def _feed(self, name: str, array: Any) -> Any:
        match self._inputs[name]:
            case "BYTES":
                return decode_strings(name, array)
            case "BF16":
                return bf16_to_ort(self._ort, array)
            case _:
                return array

    def _run(self, feeds: dict[str, Any], names: tuple[str, ...]) -> Arrays:
        try:
            return dict(zip(names, self._session.run(names, feeds, self._run_options), strict=True))
        except self._invalid_argument as error:
            raise InvalidInput(text_of(error)) from error
        except UnicodeDecodeError as error:
            raise InferenceFailed(f"the model gave a string that is not UTF-8: {error}") from error
        except Exception as error:  # onnxruntime's errors have no common base class
            raise InferenceFailed(text_of(error)) from error

    def _run_bound(self, feeds: dict[str, Any], names: tuple[str, ...]) -> Arrays:
        """A run with IO binding: the way to outputs that numpy has no type for.

        Other models do better without: a plain run on the CPU hands its outputs over without a copy as well, costs
        half as much for small tensors, takes strings, and keeps the class of an error.
        """
        binding = self._session.io_binding()
        try:
            for name, value in feeds.items():
                bind = binding.bind_ortvalue_input if self._inputs[name] == "BF16" else binding.bind_cpu_input
                bind(name, value)
            for name in names:
                binding.bind_output(name)
            self._session.run_with_iobinding(binding, self._run_options)
        except Exception as error:  # as above
            text = text_of(error)
            raise (InvalidInput if any(fault in text for fault in _REQUEST_FAULTS) else InferenceFailed)(
                text
            ) from error
        values = zip(names, binding.get_outputs(), strict=True)
        return {
            name: bf16_from_ort(value) if self._outputs[name] == "BF16" else value.numpy() for name, value in values
        }
