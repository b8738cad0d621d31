"""The signature of a torch model: what the program knows, what the spec declares, what to write where neither does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from backends.errors import LoadFailed
from backends.spec import TensorSpec
from backends.torch.program import CONVENTION
from backends.torch.tensors import DTYPE

_INTEGER: Final = re.compile(r"U?INT\d+")


def check_types(tensors: Iterable[TensorSpec]) -> None:
    """Raises ``LoadFailed`` for a declared BYTES tensor: torch has no strings."""
    for tensor in tensors:
        if tensor.datatype not in DTYPE:
            raise LoadFailed(
                f"{tensor.name!r} is declared as {tensor.datatype}, which torch does not have; declare it as one of "
                f"{', '.join(DTYPE)} (text as UINT8 or as token ids)"
            )


def assign(declared: Sequence[TensorSpec], arguments: Sequence[str]) -> dict[str, str]:
    """Declared input -> argument of the model: by name, or all of them by number (``INPUT__0``).

    Raises ``LoadFailed`` that lists the arguments.
    """
    names = [tensor.name for tensor in declared]
    if all(name in arguments for name in names):
        return {name: name for name in names}
    matches = {name: CONVENTION.fullmatch(name) for name in names}
    numbers = {name: int(match[1]) for name, match in matches.items() if match}
    if len(numbers) == len(names) and all(number < len(arguments) for number in numbers.values()):
        if len(set(numbers.values())) < len(names):
            raise LoadFailed(f"inputs {', '.join(map(repr, names))} share a number; each argument takes one input")
        return {name: arguments[number] for name, number in numbers.items()}
    wrong = next((name for name in names if name not in arguments and name not in numbers), names[0])
    listed = ", ".join(f"{name} (INPUT__{number})" for number, name in enumerate(arguments))
    raise LoadFailed(
        f"input {wrong!r} is no argument of the model, which has {listed or 'none'}: name every input after its "
        "argument, or every input by its number"
    )


def check_number(tensor: TensorSpec, kind: str) -> None:
    """Raises ``LoadFailed`` if an input for a Python number is declared in another type, or as many."""
    accepted = {"int": _INTEGER.fullmatch(tensor.datatype), "bool": tensor.datatype == "BOOL"}.get(kind)
    if kind == "float":
        accepted = tensor.datatype in ("FP16", "FP32", "FP64")
    if not accepted or any(size not in (1, -1) for size in tensor.shape):
        raise LoadFailed(
            f"input {tensor.name!r} is declared as {tensor.datatype} {list(tensor.shape)}, the model takes one number "
            f"of type {kind}: declare it with dims [ 1 ] and the type {_NUMBERS[kind]}"
        )


_NUMBERS: Final = {"int": "INT64", "float": "FP32", "bool": "BOOL"}


def undeclared(what: str, arguments: Mapping[str, str], inputs: bool, outputs: Sequence[str]) -> str:
    """The text for a model that does not know its tensors: the configuration to write, ready to be filled in.

    ``arguments``: argument -> its kind (``Tensor``, ``int``, ...); ``inputs``: whether inputs are missing;
    ``outputs``: names for the missing outputs.
    """
    lines = []
    if inputs:
        entries = [
            f'  {{ name: "{name}"  data_type: TYPE_{_NUMBERS.get(kind, "FP32")}  dims: [ '
            f"{'1' if kind in _NUMBERS else '-1, -1'} ] }}"
            for name, kind in arguments.items()
        ]
        lines += ["input [", ",\n".join(entries), "]"]
    if outputs:
        entries = [f'  {{ name: "{name}"  data_type: TYPE_FP32  dims: [ -1, -1 ] }}' for name in outputs]
        lines += ["output [", ",\n".join(entries), "]"]
    snippet = "\n".join(lines)
    return (
        f"{what} does not say which types and shapes its tensors have: declare them in its configuration "
        "(config.pbtxt), with -1 for every dimension that varies. Begin with this, and correct types and "
        f"dims:\n{snippet}"
    )
