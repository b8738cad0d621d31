"""``Program``: one loaded model of any kind, as ``TorchBackend`` runs it. ``Outputs`` names what it gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from backends.errors import InferenceFailed, LoadFailed
from backends.spec import TensorSpec
from backends.torch.framework import torch

#: Triton's names for tensors that a model does not name: ``INPUT__0``, ``OUTPUT__1``.
CONVENTION: Final = re.compile(r"\w+__(\d+)", re.ASCII)

#: Tensors on the model's device by input name, and the names of the outputs that are wanted -> tensors by output name.
Run = Callable[[dict[str, Any], tuple[str, ...]], dict[str, Any]]
#: Raises ``InvalidInput`` for arrays that the model must not see.
Check = Callable[[Mapping[str, Any]], None]


class Program(msgspec.Struct):
    """A loaded model.

    ``numbers`` are the inputs that it takes as Python numbers. ``writes_inputs``: it may write to the tensors that it
    gets, hence gets copies. ``keeps_state``: runs depend on earlier ones, hence one at a time. ``dtype``: floating
    inputs are converted to it, None leaves them. ``rows_apart``: the rows of a batch do not touch each other, as far as
    the kind can tell; ``try_rows`` has that tried before it is believed. ``max_rows``: what the model takes at most.
    """

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    run: Run
    numbers: frozenset[str] = frozenset()
    writes_inputs: bool = True
    keeps_state: bool = False
    dtype: Any = None
    rows_apart: bool = False
    try_rows: bool = True
    max_rows: int | None = None
    check: Check | None = None
    #: input -> a shape that it takes, if the program knows one; for runs before there are requests
    trial_shapes: dict[str, tuple[int, ...]] = {}


class Outputs:
    """Which value of a model's answer is which output.

    By key where the model answers with a dict or a named tuple; else by the number in names such as ``OUTPUT__1``, or
    in the order of declaration. Tuples and lists inside of the answer are flattened.
    """

    def __init__(self, names: Sequence[str]) -> None:
        numbers = [CONVENTION.fullmatch(name) for name in names]
        follows = all(numbers) and len(names) > 0
        self.places = {
            name: int(match[1]) if follows and match else place
            for place, (name, match) in enumerate(zip(names, numbers, strict=True))
        }

    def check(self, count: int) -> None:
        """Raises ``LoadFailed`` for an output beyond the ``count`` that the model gives."""
        beyond = next((name for name, place in self.places.items() if place >= count), None)
        if beyond is not None:
            raise LoadFailed(
                f"output {beyond!r} is declared as the model's number {self.places[beyond]}, it gives {count}, counted "
                "from 0: declare them in the model's order, or call them OUTPUT__0, OUTPUT__1, ..."
            )

    def pick(self, answer: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
        """The wanted values of an answer. Raises ``InferenceFailed`` if one is not there."""
        if isinstance(answer, torch.Tensor):
            return {name: self._at((answer,), name) for name in wanted}
        keyed = _keyed(answer)
        if keyed is not None and all(name in keyed for name in wanted):
            return {name: keyed[name] for name in wanted}
        flat = tuple(flatten(answer))
        if keyed is not None and not all(CONVENTION.fullmatch(name) for name in wanted):
            missing = next(name for name in wanted if name not in keyed)
            raise InferenceFailed(f"the model gave no output {missing!r}; it gave {', '.join(map(str, keyed))}")
        return {name: self._at(flat, name) for name in wanted}

    def _at(self, values: tuple[Any, ...], name: str) -> Any:
        place = self.places[name]
        if place >= len(values):
            raise InferenceFailed(f"the model gave {len(values)} output(s), {name!r} would be number {place}, from 0")
        return values[place]


def flatten(value: Any) -> Iterator[Any]:
    """What an answer holds, in order; without the Nones."""
    if isinstance(value, Mapping):
        for inside in value.values():
            yield from flatten(inside)
    elif isinstance(value, tuple | list):
        for inside in value:
            yield from flatten(inside)
    elif value is not None:
        yield value


def _keyed(answer: Any) -> Mapping[str, Any] | None:
    if isinstance(answer, Mapping):
        return answer
    fields = getattr(answer, "_fields", None)
    return dict(zip(fields, answer, strict=True)) if isinstance(answer, tuple) and fields else None
