"""What every kind of TensorFlow model is to the backend: facts about it, and a way to run it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backends.spec import TensorSpec
from backends.tf.tensors import Array

#: Arrays in the order of the prepared inputs -> arrays in the order of the prepared outputs. Several threads may call
#: it at once. Raises ``InvalidInput`` if the request is at fault and ``InferenceFailed`` for the rest.
Run = Callable[[Sequence[Array]], list[Array]]


class Facts(msgspec.Struct):
    """What an artifact says about itself.

    ``unranked``: names of inputs and outputs whose shape it leaves open. ``operators``: those that compute the outputs,
    as far as they can be known.
    """

    platform: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    unranked: set[str]
    operators: set[str]


class Model(abc.ABC):
    """A loaded artifact."""

    facts: Facts
    #: Version of what runs it.
    runtime: str
    #: The numpy type of BF16 tensors; None where the model cannot have any.
    bfloat16: Any = None

    @abc.abstractmethod
    def prepare(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Run:
        """A function for exactly these tensors. Raises ``LoadFailed`` if the model cannot give them."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the memory back."""


def places(tensors: Sequence[TensorSpec], among: Sequence[TensorSpec]) -> list[int]:
    """For each tensor its place among the others, by its name."""
    by_name = {tensor.name: place for place, tensor in enumerate(among)}
    return [by_name[tensor.name] for tensor in tensors]
