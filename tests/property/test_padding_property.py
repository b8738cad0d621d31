"""Whoever shares a padded batch gets what it would have got alone, from a model that heeds its mask."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backends.batching import Pending
from backends.contract import Arrays
from backends.padding import Padding
from backends.spec import BatchingSpec, PaddingSpec, Signature, TensorSpec
from backends.tensor import from_numpy

ANY = (-1, -1)
INPUTS = (TensorSpec("x", "INT64", ANY), TensorSpec("y", "INT32", ANY), TensorSpec("mask", "INT64", ANY))
OUTPUTS = (
    TensorSpec("sum", "INT64", (-1, 1)),
    TensorSpec("each", "INT64", ANY),
    TensorSpec("pairs", "INT64", (-1,) * 3),
)


class Disagreement(Exception):
    """The inputs of a request do not fit each other."""


def model(inputs: Arrays) -> Arrays:
    """What is masked counts for nothing, and all inputs have to be equally long."""
    if len({array.shape for array in inputs.values()}) > 1:
        raise Disagreement
    x, y, mask = inputs["x"], inputs["y"], inputs["mask"]
    return {
        "sum": (x * mask).sum(axis=1, keepdims=True),
        "each": x * 2 + y,
        "pairs": x[:, :, None] * y[:, None, :],
    }


@st.composite
def requests(draw: st.DrawFn, rules: Padding) -> Pending:
    rows, length = draw(st.integers(0, 3)), draw(st.integers(0, 6))
    other = length if draw(st.integers(0, 3)) else draw(st.integers(0, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays: dict[str, Any] = {
        "x": random.integers(1, 100, (rows, length)), "y": random.integers(1, 100, (rows, other), np.int32),
    }  # fmt: skip
    if draw(st.booleans()):
        arrays["mask"] = random.integers(0, 2, (rows, length))
    tensors = [from_numpy(name, arrays[name]) for name in draw(st.permutations(sorted(arrays)))]
    return Pending(
        id=0, tensors=tensors, outputs=(), parameters={}, priority=0, arrived_ns=0, deadline_ns=0, rows=rows,
        key=rules.key(tensors, None),
    )  # fmt: skip


def run(rules: Padding, batch: list[Pending]) -> list[Arrays] | None:
    """What each gets; None where the model fails."""
    inputs = rules.join(batch)
    try:
        outputs = model(inputs)
    except Disagreement:
        return None
    return rules.split(batch, inputs, outputs)


@given(st.data(), st.integers(-5, 5), st.integers(-5, 5), st.sampled_from([0.0, 1.5, 3.0]))
def test_answers_are_those_of_running_alone(data: st.DataObject, pad_x: int, pad_y: int, max_ratio: float) -> None:
    spec = PaddingSpec({"x": pad_x, "y": pad_y}, {"mask": "x"}, {"each": "x", "pairs": "y"}, max_ratio)
    rules = Padding(spec, Signature("test", INPUTS, OUTPUTS, 8, BatchingSpec(padding=spec)))
    batches: dict[Any, list[Pending]] = {}
    for request in data.draw(st.lists(requests(rules), min_size=1, max_size=8)):
        batches.setdefault(request.key, []).append(request)
    for batch in batches.values():
        shares = run(rules, batch)
        alone = [run(rules, [request]) for request in batch]
        if shares is None:
            assert all(answer is None for answer in alone), "nobody fails because of its company"
            continue
        for share, answer in zip(shares, alone, strict=True):
            assert answer is not None, "what fails alone fails in company"
            (mine,) = answer
            assert share.keys() == mine.keys()
            for name in share:
                np.testing.assert_array_equal(share[name], mine[name])
