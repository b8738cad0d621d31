"""Requests of different lengths in one batch: inputs are padded to the longest, outputs are cropped again. Pure.

A length is the size of a variable axis past the batch dimension. What a client gets is what it would have got alone, as
far as the model heeds its mask:

* a batch of one, or of equal lengths, is not padded;
* requests share a batch only if their lengths stand in the same order of size, which the longest of a batch keep. So a
  request that contradicts itself (three ids, a mask of four) fails in a batch as it fails alone;
* an output that is cropped has to have the lengths of its input, in every batch. Where it has others the configuration
  is wrong, and nobody could say which part of the output is real.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from backends.batching import Batch, Pending, batch_key
from backends.contract import Arrays
from backends.errors import InferenceFailed, LoadFailed
from backends.rows import array_of, split
from backends.spec import ModelSpec, PaddingSpec, Signature, TensorSpec
from backends.tensor import NUMPY_DTYPE, Tensor

#: Where a model's configuration says it: ``FIELD.value.<input>``, and so on.
FIELD: Final = "parameters.padding"

_Array = npt.NDArray[Any]
_Shape = tuple[int, ...]


def offered(spec: ModelSpec, signature: Signature) -> Signature:
    """A loaded model's signature for its clients: where requests are padded, they may leave the masks out.

    Raises ``LoadFailed`` if the padding that ``spec`` asks for does not suit the model.
    """
    padding = spec.batching.padding if spec.batching is not None else None
    if padding is None:
        return signature
    try:
        Padding(padding, signature)
    except ValueError as error:
        raise LoadFailed(str(error)) from error
    inputs = [
        msgspec.structs.replace(tensor, optional=True) if tensor.name in padding.masks else tensor
        for tensor in signature.inputs
    ]
    return msgspec.structs.replace(signature, inputs=tuple(inputs))


def check(spec: PaddingSpec, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Compare with the tensors that are known so far; where there are none, all may still turn out to exist.

    Raises ``ValueError`` for an unknown name, a tensor without a variable axis, and a value that the datatype has not.
    """
    if inputs:
        values = {f"{FIELD}.value.{name}": (name, value) for name, value in spec.values.items()}
        masks = {f"{FIELD}.mask.{name}": (name, 1) for name in spec.masks}
        for field, (name, value) in {**values, **masks}.items():
            tensor = _variable(field, "input", name, inputs)
            try:
                element(value, tensor.datatype)
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from error
        for name, source in spec.crops.items():
            _variable(f"{FIELD}.crop.{name}", "input", source, inputs)
    if outputs:
        for name in spec.crops:
            _variable(f"{FIELD}.crop.{name}", "output", name, outputs)


def element(value: float, datatype: str) -> Any:
    """The number as numpy's scalar of a datatype. Raises ``ValueError`` with the limits if that has no such number."""
    if datatype == "BYTES":
        raise ValueError("a BYTES input cannot be padded with a number: take it out")
    least, most = _limits(datatype)
    is_whole = isinstance(most, int)
    if not least <= value <= most or (is_whole and value != int(value)):
        kind = "a whole number" if is_whole else "a number"
        raise ValueError(f"{value} is no {datatype}: give {kind} from {least} to {most}")
    if datatype == "BF16":  # the upper half of a float of 32 bits
        return (np.array(value, np.float32).view(np.uint32) >> 16).astype(np.uint16)[()]
    return NUMPY_DTYPE[datatype].type(value)


def _limits(datatype: str) -> tuple[int | float, int | float]:
    if datatype == "BOOL":
        return 0, 1
    dtype: np.dtype[Any] = np.dtype(np.float32) if datatype == "BF16" else NUMPY_DTYPE[datatype]
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


class Padding:
    """What a ``PaddingSpec`` means for one loaded model. Raises ``ValueError`` if it does not suit it."""

    def __init__(self, spec: PaddingSpec, signature: Signature) -> None:
        if signature.max_batch_size < 2:
            raise ValueError(
                f"{FIELD} is set, but each request runs alone (max_batch_size is {signature.max_batch_size}): set "
                "max_batch_size to 2 or more, or leave the padding out"
            )
        check(spec, signature.inputs, signature.outputs)
        inputs = {tensor.name: tensor for tensor in signature.inputs}
        for source in {*spec.masks.values(), *spec.crops.values()}.difference(spec.masks):
            if inputs[source].optional:
                raise ValueError(
                    f"{FIELD}: input {source!r} may be left out of a request, so that no mask and no output can have "
                    "its lengths: name an input that is always there"
                )
        values = {**spec.values, **dict.fromkeys(spec.masks, 0)}
        self._values = {name: element(value, inputs[name].datatype) for name, value in values.items()}
        self._padded = {name: inputs[name] for name in values}
        self._axes = {name: _axes(inputs[name]) for name in values}
        self._masks = {
            name: _follower(f"{FIELD}.mask.{name}", inputs[name], inputs[source]) for name, source in spec.masks.items()
        }
        self._crops = {
            tensor.name: _follower(f"{FIELD}.crop.{tensor.name}", tensor, _source(spec, tensor, inputs))
            for tensor in signature.outputs
            if _axes(tensor)
        }
        self._outputs = {tensor.name: tensor for tensor in signature.outputs}
        self._max_ratio = spec.max_ratio

    def key(self, tensors: Sequence[Tensor], parameters: dict[str, Any] | None) -> Hashable:
        """What two requests must have in common to share a batch: as ``batch_key``, but for their lengths."""
        given = {tensor.name: tensor.datatype for tensor in tensors}
        lengths: list[int] = []
        unsized = []
        for name, shape in sorted(self._shapes(tensors).items()):
            padded = self._padded.get(name)
            axes = self._axes[name] if padded is not None and len(shape) == len(padded.shape) else ()
            lengths += [shape[axis] for axis in axes]
            datatype = given.get(name) or self._padded[name].datatype
            unsized.append(Tensor(name, datatype, _with(shape, dict.fromkeys(axes, -1)), b""))
        order = tuple(map(sorted(set(lengths)).index, lengths))
        return batch_key(unsized, parameters, batched=True), order, tuple(map(self._class_of, lengths))

    def join(self, batch: Batch) -> Arrays:
        """The batch's inputs, each as one array, masks that were left out included; a batch of one is not padded.

        All members have equal keys. Raises ``InvalidInput`` that names the tensor whose bytes do not fit its shape.
        """
        members = [self._arrays(request) for request in batch]
        return {name: self._joined(name, [member[name] for member in members]) for name in members[0]}

    def split(self, batch: Batch, inputs: Arrays, outputs: Arrays) -> list[Arrays]:
        """Each member's share of the outputs, as views: its own rows, as long as they would be without the others.

        ``inputs`` are those that ``join`` gave. Raises ``InferenceFailed`` for an output that has not one row for each
        row, or not the lengths of the input that it is cropped to.
        """
        self._check(inputs, outputs)
        shares = split(outputs, [request.rows for request in batch]) if len(batch) > 1 else [outputs]
        return [self._cropped(request, share) for request, share in zip(batch, shares, strict=True)]

    def _check(self, inputs: Arrays, outputs: Arrays) -> None:
        for name, tensor in self._outputs.items():
            array = outputs.get(name)
            if array is None:  # nobody asked for it
                continue
            if array.ndim != len(tensor.shape):
                raise InferenceFailed(
                    f"output {name!r} has shape {list(array.shape)}, the signature says {list(tensor.shape)}: nobody "
                    "knows what of it is padding; declare the output with its dims in the model's configuration"
                )
            crop = self._crops.get(name)
            if crop is None:
                continue
            given = inputs[crop.source].shape
            if any(array.shape[own] != given[other] for own, other in crop.axes):
                raise InferenceFailed(
                    f"output {name!r} has shape {list(array.shape)} for input {crop.source!r} of shape {list(given)}: "
                    f"its variable axes have other lengths, so {FIELD}.crop.{name} has to name another input, or "
                    "the output has to be declared with the dims that are fixed"
                )

    def _cropped(self, request: Pending, share: Arrays) -> Arrays:
        shapes = self._shapes(request.tensors)
        return {name: self._real(name, array, shapes) for name, array in share.items()}

    def _real(self, name: str, array: _Array, shapes: Mapping[str, _Shape]) -> _Array:
        crop = self._crops.get(name)
        if crop is None:
            return array
        ends = dict(enumerate(array.shape)) | {own: shapes[crop.source][other] for own, other in crop.axes}
        return array[tuple(map(slice, ends.values()))]

    def _shapes(self, tensors: Sequence[Tensor]) -> dict[str, _Shape]:
        """The shapes of a request's inputs by name, with those of the masks that it leaves out."""
        shapes = {tensor.name: tensor.shape for tensor in tensors}
        for name, mask in self._masks.items():
            source = shapes.get(mask.source)
            if name not in shapes and source is not None and len(source) == len(self._padded[mask.source].shape):
                sizes = {own: source[other] for own, other in mask.axes}
                shapes[name] = _with(self._padded[name].shape, {0: source[0], **sizes})
        return shapes

    def _arrays(self, request: Pending) -> Arrays:
        arrays = {tensor.name: array_of(tensor) for tensor in request.tensors}
        for name, shape in self._shapes(request.tensors).items():
            if name not in arrays:  # one element, seen as many
                arrays[name] = np.broadcast_to(element(1, self._padded[name].datatype), shape)
        return arrays

    def _joined(self, name: str, parts: list[_Array]) -> _Array:
        if len(parts) == 1:
            return np.asarray(parts[0], order="C")
        longest = tuple(map(max, zip(*(part.shape[1:] for part in parts), strict=True)))
        if all(part.shape[1:] == longest for part in parts):
            return np.concatenate(parts)
        joined = np.full((sum(map(len, parts)), *longest), self._values[name])
        start = 0
        for part in parts:
            joined[(slice(start, start + len(part)), *map(slice, part.shape[1:]))] = part
            start += len(part)
        return joined

    def _class_of(self, length: int) -> int:
        """Lengths of one class are at most ``max_ratio`` times as long as each other."""
        if not self._max_ratio:
            return 0
        return int(math.log(length) / math.log(self._max_ratio)) if length > 0 else -1


class _Follower(NamedTuple):
    """A tensor that is as long as the input ``source``: pairs of an axis of its own and one of that input."""

    source: str
    axes: tuple[tuple[int, int], ...]


def _follower(field: str, tensor: TensorSpec, source: TensorSpec) -> _Follower:
    """Variable axes in their order; the only one of an input gives its length to all."""
    own, others = _axes(tensor), _axes(source)
    if len(others) == 1:
        others *= len(own)
    if len(own) != len(others):
        raise ValueError(
            f"{field} is {source.name!r} of shape {list(source.shape)}, {tensor.name!r} has shape "
            f"{list(tensor.shape)}: name an input with one variable axis past the batch dimension, or with {len(own)}"
        )
    return _Follower(source.name, tuple(zip(own, others, strict=True)))


def _source(spec: PaddingSpec, output: TensorSpec, inputs: Mapping[str, TensorSpec]) -> TensorSpec:
    if output.name not in spec.crops:
        raise ValueError(
            f"output {output.name!r} of shape {list(output.shape)} has variable axes, and {FIELD}.crop.{output.name} "
            "is not set: set it to the input that it is as long as, or declare the output with fixed dims"
        )
    return inputs[spec.crops[output.name]]


def _variable(field: str, what: str, name: str, known: Sequence[TensorSpec]) -> TensorSpec:
    """The tensor of that name. Raises ``ValueError`` if it is unknown, or cannot be longer or shorter."""
    tensor = next((tensor for tensor in known if tensor.name == name), None)
    if tensor is None:
        names = ", ".join(repr(tensor.name) for tensor in known)
        raise ValueError(f"{field}: the model has no {what} {name!r}; use one of {names}")
    if not _axes(tensor):
        raise ValueError(
            f"{field}: {what} {name!r} of shape {list(tensor.shape)} has no variable axis (-1) past the batch "
            "dimension: take it out"
        )
    return tensor


def _axes(tensor: TensorSpec) -> tuple[int, ...]:
    """The variable axes past the batch dimension."""
    return tuple(axis for axis, size in enumerate(tensor.shape) if axis and size == -1)


def _with(shape: _Shape, sizes: Mapping[int, int]) -> _Shape:
    """The shape with other sizes in some axes."""
    return tuple(sizes.get(axis, size) for axis, size in enumerate(shape))
