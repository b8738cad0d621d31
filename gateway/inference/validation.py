"""A request's tensors against a model's signature, before a worker sees them. Pure."""

from __future__ import annotations

from typing import NoReturn

from backends.spec import ITEM_SIZE, Signature, TensorSpec
from backends.tensor import Tensor, element_bounds, element_count, is_addressable
from gateway.errors import InvalidRequest
from gateway.inference.slices import LARGE, SLICE_ELEMENTS, Slices, whole


class Validator:
    """What a signature allows, prepared for fast look-ups."""

    def __init__(self, model: str, signature: Signature) -> None:
        self.signature = signature
        self._model = model
        self._max_batch_size = signature.max_batch_size
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._required = frozenset(spec.name for spec in signature.inputs if not spec.optional)
        self._outputs = frozenset(spec.name for spec in signature.outputs)

    def check(self, inputs: list[Tensor], outputs: tuple[str, ...]) -> tuple[Tensor, ...]:
        """The tensors whose elements are still to be walked (``walk``): BYTES, and too many to do it here.

        Raises ``InvalidRequest`` that names the tensor, what was found, what is expected, and the mend.
        """
        specs = self._inputs
        seen = set()
        large: tuple[Tensor, ...] = ()
        for tensor in inputs:
            spec = specs.get(tensor.name)
            if spec is None:
                self._unknown_input(tensor.name)
            if tensor.name in seen:
                raise InvalidRequest(f"input '{tensor.name}' is given twice; give each input once")
            seen.add(tensor.name)
            if self._check_tensor(tensor, spec):
                large += (tensor,)
        if not self._required <= seen:
            self._missing_inputs(inputs)
        if self._max_batch_size:
            self._check_batch(inputs)
        if outputs:
            self._check_outputs(outputs)
        return large

    def _check_tensor(self, tensor: Tensor, spec: TensorSpec) -> bool:
        """Whether its elements are still to be walked."""
        if tensor.datatype != spec.datatype:
            raise InvalidRequest(
                f"input '{tensor.name}' has datatype {tensor.datatype}, model '{self._model}' expects {spec.datatype}"
            )
        shape, expected = tensor.shape, spec.shape
        if len(shape) != len(expected):
            self._wrong_shape(tensor, spec)
        count = 1
        for size, limit in zip(shape, expected, strict=True):
            if size < 0 or limit not in (size, -1):
                self._wrong_shape(tensor, spec)
            count *= size
        if not count and not is_addressable(shape):
            raise InvalidRequest(f"input '{tensor.name}' has shape {list(shape)}, larger than any memory; send less")
        if spec.datatype != "BYTES":
            _check_size(tensor, count)
            return False
        if len(tensor.data) > LARGE:
            return True
        whole(_walk(tensor, count))
        return False

    def _check_batch(self, inputs: list[Tensor]) -> None:
        if not inputs:  # all are optional, and nobody says how many rows the outputs shall have
            known = ", ".join(self._inputs)
            raise InvalidRequest(f"model '{self._model}' takes batches: give at least one of its inputs {known}")
        rows = inputs[0].shape[0]
        if rows > self._max_batch_size:
            raise InvalidRequest(
                f"inference request batch-size must be <= {self._max_batch_size} for model '{self._model}', "
                f"input '{inputs[0].name}' has {rows}; send several requests"
            )
        for tensor in inputs:
            if tensor.shape[0] != rows:
                raise InvalidRequest(
                    f"input '{tensor.name}' has batch size {tensor.shape[0]}, input '{inputs[0].name}' has {rows}; "
                    "all inputs of a request must have the same"
                )

    def _check_outputs(self, outputs: tuple[str, ...]) -> None:
        for name in outputs:
            if name not in self._outputs:
                known = ", ".join(sorted(self._outputs))
                raise InvalidRequest(
                    f"unexpected inference output '{name}' for model '{self._model}'; its outputs are {known}"
                )

    def _unknown_input(self, name: str) -> NoReturn:
        known = ", ".join(self._inputs)
        raise InvalidRequest(f"unexpected inference input '{name}' for model '{self._model}'; its inputs are {known}")

    def _missing_inputs(self, inputs: list[Tensor]) -> NoReturn:
        given = [tensor.name for tensor in inputs]
        missing = [name for name in self._inputs if name in self._required and name not in given]
        raise InvalidRequest(
            f"expected {len(self._inputs)} inputs but got {len(given)} inputs for model '{self._model}'. "
            f"Got input(s) {given}, but missing required input(s) {missing}. Please provide all required input(s)."
        )

    def _wrong_shape(self, tensor: Tensor, spec: TensorSpec) -> NoReturn:
        raise InvalidRequest(
            f"unexpected shape for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {list(spec.shape)}, got {list(tensor.shape)} (-1 stands for any size)"
        )


def walk(tensors: tuple[Tensor, ...]) -> Slices[None]:
    """Check the elements of BYTES tensors. Raises ``InvalidRequest``."""
    for tensor in tensors:
        yield from _walk(tensor, element_count(tensor.shape))


def _check_size(tensor: Tensor, count: int) -> None:
    """The buffer against the shape. Raises ``InvalidRequest``; Python's integers do not overflow."""
    size, expected = len(tensor.data), count * ITEM_SIZE[tensor.datatype]
    if size != expected:
        raise InvalidRequest(
            f"input byte size mismatch for input '{tensor.name}'. Expected {expected} bytes for shape "
            f"{list(tensor.shape)} of {tensor.datatype}, got {size}"
        )


def _walk(tensor: Tensor, count: int) -> Slices[None]:
    data, total = tensor.data, len(tensor.data)
    found = offset = 0
    while offset < total:
        try:
            bounds = element_bounds(data, offset, found, found + SLICE_ELEMENTS)
        except ValueError as error:
            raise InvalidRequest(
                f"input '{tensor.name}' of BYTES is malformed: {error}; each element is a 4-byte little-endian length "
                "and that many bytes"
            ) from error
        found += len(bounds) - 1
        offset = bounds[-1]
        if offset < total:
            yield
    if found != count:
        raise InvalidRequest(
            f"expected {count} string elements for inference input '{tensor.name}' of shape {list(tensor.shape)}, "
            f"got {found}"
        )
