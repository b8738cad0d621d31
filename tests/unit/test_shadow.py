"""When two answers say the same."""

from __future__ import annotations

import numpy as np
import pytest

from backends.tensor import Tensor, from_numpy
from gateway.serving.shadow import same


def floats(*values: float, name: str = "y", dtype: str = "float32") -> Tensor:
    return from_numpy(name, np.array(values, dtype))


@pytest.mark.parametrize(
    ("one", "other"),
    [([], []), ([floats(1, 2)], [floats(1, 2)]), ([floats(1)], [floats(1.0001)]),
     ([floats(float("nan"))], [floats(float("nan"))]), ([floats(0)], [floats(1e-6)]),
     ([floats(1, name="a"), floats(2, name="b")], [floats(2, name="b"), floats(1, name="a")]),
     ([floats(1, dtype="float16")], [floats(1, dtype="float16")]),
     ([Tensor("y", "BF16", (1,), b"\x80\x3f")], [Tensor("y", "BF16", (1,), memoryview(b"\x80\x3f"))])],
)  # fmt: skip
def test_the_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [([floats(1)], []), ([floats(1)], [floats(1.01)]), ([floats(1)], [floats(1, 1)]),
     ([floats(1)], [floats(1, name="x")]),
     ([floats(1)], [floats(1, dtype="float64")]), ([floats(float("inf"))], [floats(1)]),
     ([from_numpy("y", np.array([1]))], [from_numpy("y", np.array([2]))]),
     ([Tensor("y", "BF16", (1,), b"\x80\x3f")], [Tensor("y", "BF16", (1,), b"\x00\x40")]),
     ([from_numpy("y", np.array([b"a"], object))], [from_numpy("y", np.array([b"b"], object))])],
)  # fmt: skip
def test_not_the_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert not same(one, other)
