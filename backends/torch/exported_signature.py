"""Names, types and shapes of an exported program, from its graph and its constraints; and the check of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from backends.errors import InvalidInput, LoadFailed
from backends.spec import TensorSpec
from backends.torch.exported_check import Checked, Trees
from backends.torch.framework import import_part, torch
from backends.torch.tensors import DATATYPE

_SYMBOL: Final = re.compile(r"Symbol\('(\w+)'[^()]*\)|([a-z_]+\d+)")
#: torch's bound of a dimension that has none.
_NO_MINIMUM: Final = 0
#: torch writes 2 for a dimension of any size, and lets programs run with 0 and 1.
_ASSUMED_MINIMUM: Final = 2
_NAME: Final = re.compile(r"\w+(\.\w+)*")
_TAKEN: Final = ("user_input", "constant_input")


class Size(msgspec.Struct, frozen=True):
    """A dimension: a number, or an expression that varies, with the limits that the export gave it."""

    fixed: int | None
    expression: str = ""
    smallest: int = _NO_MINIMUM
    largest: int | None = None


class Value(msgspec.Struct, frozen=True):
    """An input or output: a tensor, or a number (``sizes`` empty, ``is_number``)."""

    name: str
    datatype: str
    sizes: tuple[Size, ...]
    is_number: bool = False

    def spec(self) -> TensorSpec:
        """As the protocol describes it."""
        shape = tuple(-1 if size.fixed is None else size.fixed for size in self.sizes)
        return TensorSpec(self.name, self.datatype, shape)


class Described(msgspec.Struct):
    """``places``: for every argument of the flat program the name of its input, or its constant in a tuple.

    ``output_places``: output -> its place in the flat answer.
    """

    inputs: list[Value]
    outputs: list[Value]
    places: list[str | tuple[Any]]
    output_places: dict[str, int]


def describe(checked: Checked, name: str) -> Described:
    """What the program takes and gives. Raises ``LoadFailed`` for types that the protocol lacks."""
    program, trees = checked
    reader = _Reader(program, name)
    inputs: list[Value] = []
    places: list[str | tuple[Any]] = []
    taken = [each for each in program.graph_module.signature.input_specs if each.type in _TAKEN]
    for spec, called in zip(taken, input_names(trees, len(taken)), strict=True):
        argument = spec.user_input.arg if spec.type == "user_input" else spec.constant_input.value
        value = reader.value(argument, called) if spec.type == "user_input" else None
        if value is None:
            places.append((None if argument.type == "as_none" else argument.value,))
        else:
            inputs.append(value)
            places.append(value.name)
    given = [spec.user_output.arg for spec in program.graph_module.signature.output_specs if spec.type == "user_output"]
    outputs, output_places = [], {}
    for place, (argument, called) in enumerate(zip(given, output_names(trees.outputs, len(given)), strict=True)):
        value = reader.value(argument, called)
        if value is not None:
            outputs.append(value)
            output_places[called] = place
    if not outputs:
        raise LoadFailed(f"{name} gives no tensor; have the model return one, and export it again")
    return Described(inputs, outputs, places, output_places)


def input_names(trees: Trees, count: int) -> list[str]:
    """The names of the arguments; "" each where the program does not tell them: torch knows them in small letters."""
    unknown = [""] * count
    try:
        positional, keywords = json.loads(trees.inputs)[1]["children_spec"]
        arguments = trees.arguments[: len(positional["children_spec"])]
        children = [*zip(arguments, positional["children_spec"], strict=True), *_children("", keywords)]
        names = [leaf for argument, child in children for leaf in _leaves(argument, child)]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return unknown  # a tree that is not as torch writes it names nothing
    return names if _are_names(names, count) else unknown


def output_names(tree: str, count: int) -> list[str]:
    """The keys of a program that gives a dict (or a data class), else ``OUTPUT__0``, ``OUTPUT__1``, ..."""
    numbered = [f"OUTPUT__{number}" for number in range(count)]
    try:
        root = json.loads(tree)[1]
        if _keys(root) is None:
            return numbered
        names = list(_leaves("", root))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return numbered  # as above
    return names if _are_names(names, count) else numbered


def _are_names(names: list[str], count: int) -> bool:
    return len(names) == count == len(set(names)) and all(_NAME.fullmatch(name) for name in names)


def _leaves(name: str, node: Any) -> Iterator[str]:
    if node["type"] is None:
        yield name
    for called, child in _children(f"{name}_" if name else "", node):
        yield from _leaves(called, child)


def _children(prefix: str, node: Any) -> list[tuple[str, Any]]:
    """What a tree's node holds: by its keys, or by number."""
    children = node["children_spec"]
    keys = _keys(node) or range(len(children))
    return [(f"{prefix}{key}", child) for key, child in zip(keys, children, strict=True)]


def _keys(node: Any) -> list[Any] | None:
    keys = json.loads(node["context"]) if node["context"] else None
    return keys if isinstance(keys, list) and keys and len(keys) == len(node["children_spec"]) else None


class _Reader:
    def __init__(self, program: Any, name: str) -> None:
        self._graph = program.graph_module.graph
        self._ranges = program.range_constraints
        self._name = name
        self._dtypes = import_part("torch._export.serde.serialize")._SERIALIZE_TO_TORCH_DTYPE

    def value(self, argument: Any, called: str) -> Value | None:
        """An input or output under the name ``called``, or its own; None for a constant."""
        if argument.type == "as_tensor":
            own = argument.value.name
            meta = self._graph.tensor_values[own]
            dtype = self._dtypes[meta.dtype]
            if dtype not in DATATYPE:
                raise LoadFailed(
                    f"{self._name}: tensor {called or own!r} is of type {dtype}, which the Open Inference Protocol "
                    f"does not have; export the model with one of {', '.join(DATATYPE.values())}"
                )
            return Value(called or own, DATATYPE[dtype], tuple(self._size(size) for size in meta.sizes))
        kinds = {"as_sym_int": "INT64", "as_sym_float": "FP64", "as_sym_bool": "BOOL"}
        if argument.type in kinds and argument.value.type == "as_name":
            return Value(called or argument.value.as_name, kinds[argument.type], (), is_number=True)
        return None

    def _size(self, size: Any) -> Size:
        if size.type == "as_int":
            return Size(int(size.value))
        text = size.value.expr_str
        symbol = _SYMBOL.fullmatch(text)
        limits = self._ranges.get(symbol[1] or symbol[2]) if symbol else None
        if limits is None:
            return Size(None, text)
        smallest = limits.min_val or _NO_MINIMUM
        return Size(None, text, smallest if smallest > _ASSUMED_MINIMUM else _NO_MINIMUM, limits.max_val)


# --- requests ------------------------------------------------------------------------------------------------------


def checker(inputs: Sequence[Value], names: Mapping[str, str]) -> Any:
    """A check of a request's shapes against the program's: equal sizes where it has one symbol, and its limits.

    ``names``: the program's name of an input -> its name in requests. None where there is nothing to check.
    """
    varying: list[tuple[str, int, Size]] = [
        (names.get(value.name, value.name), axis, size)
        for value in inputs
        for axis, size in enumerate(value.sizes)
        if size.expression
    ]
    counts: dict[str, int] = {}
    for _, _, size in varying:
        counts[size.expression] = counts.get(size.expression, 0) + 1
    watched = [
        (name, axis, size)
        for name, axis, size in varying
        if counts[size.expression] > 1 or size.smallest > _NO_MINIMUM or size.largest is not None
    ]
    return (lambda arrays: _check(arrays, watched)) if watched else None


def _check(arrays: Mapping[str, Any], watched: Sequence[tuple[str, int, Size]]) -> None:
    seen: dict[str, tuple[str, int, int]] = {}
    for name, axis, size in watched:
        array = arrays[name]
        if axis >= array.ndim:
            raise InvalidInput(f"input {name!r} has shape {list(array.shape)}, the model takes more dimensions")
        length = array.shape[axis]
        if length < size.smallest or (size.largest is not None and length > size.largest):
            raise InvalidInput(
                f"input {name!r} has {length} in dimension {axis}, the model takes {size.smallest} to "
                f"{'any number' if size.largest is None else size.largest}"
            )
        first = seen.setdefault(size.expression, (name, axis, length))
        if first[2] != length:
            raise InvalidInput(
                f"input {name!r} has {length} in dimension {axis}, and input {first[0]!r} has {first[2]} in dimension "
                f"{first[1]}: the model takes the same size in both"
            )


def trial_shapes(values: Sequence[Value]) -> dict[str, tuple[int, ...]]:
    """A shape that the program takes for each input: what varies apart gets sizes apart, as far as its limits allow."""
    varying = dict.fromkeys(size.expression for value in values for size in value.sizes if size.fixed is None)
    wanted = {expression: 3 + 2 * number for number, expression in enumerate(varying)}
    return {value.name: tuple(_trial(size, wanted) for size in value.sizes) for value in values}


def _trial(size: Size, wanted: Mapping[str, int]) -> int:
    if size.fixed is not None:
        return size.fixed
    length = wanted[size.expression]
    return max(size.smallest, length if size.largest is None else min(length, size.largest))


def devices(program: Any) -> set[str]:
    """The devices that the program was exported for."""
    return {meta.device.type for meta in program.graph_module.graph.tensor_values.values()} or {
        str(torch.device("cpu"))
    }
