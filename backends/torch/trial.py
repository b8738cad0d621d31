"""Runs before there are requests: are the rows of a batch apart, and what is compiled at the first run of a shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from backends.spec import TensorSpec
from backends.torch.framework import torch
from backends.torch.program import Program
from backends.torch.tensors import DTYPE

#: Wide enough for what the order of additions changes, in any precision; a row that saw another differs by far more.
_RELATIVE, _ABSOLUTE = 2e-2, 1e-3
_SIZE: Final = 3


def rows_are_apart(program: Program, device: Any) -> bool:
    """Whether a batch of two rows gives what each row gives alone; no if the trial fails.

    An exported program does not say which dimension is the batch: one that varies may be a sequence as well. Without
    this, rows of different clients could be mixed.
    """
    names = tuple(tensor.name for tensor in program.outputs)
    generator = torch.Generator().manual_seed(0)
    singles = [feeds(program, device, rows=1, generator=generator) for _ in range(2)]
    joined = {
        name: value if name in program.numbers else torch.cat([value, singles[1][name]])
        for name, value in singles[0].items()
    }
    try:
        first, second, both = (program.run(each, names) for each in (*singles, joined))
        return all(_is_joined(both[name], first[name], second[name]) for name in names)
    except Exception:  # noqa: BLE001 - torch raises anything; zeros and ones may be no input that the model takes
        return False


def _is_joined(both: Any, first: Any, second: Any) -> bool:
    alone = torch.cat([first, second])
    if both.shape != alone.shape:
        return False
    return bool(torch.allclose(both.double(), alone.double(), rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True))


def warm_up(program: Program, device: Any, *, batched: bool) -> None:
    """Run a compiled program, for several rows and for one, which torch compiles apart."""
    names = tuple(tensor.name for tensor in program.outputs)
    for rows in (None, 1) if batched else (None,):
        program.run(feeds(program, device, rows=rows), names)


def feeds(program: Program, device: Any, *, rows: int | None = None, generator: Any = None) -> dict[str, Any]:
    """Inputs for a run: zeros, or with a ``generator`` random numbers. ``rows`` is their first dimension."""
    return {
        tensor.name: _feed(program, tensor, shape_of(tensor, program.trial_shapes, rows), device, generator)
        for tensor in program.inputs
    }


def shape_of(tensor: TensorSpec, known: Mapping[str, tuple[int, ...]], rows: int | None) -> tuple[int, ...]:
    """A shape of the tensor in which nothing varies any more; no two dimensions look as if they were one."""
    sizes = known.get(tensor.name, tuple(_SIZE + 2 * axis for axis in range(len(tensor.shape))))
    shape = [given if size == -1 else size for size, given in zip(tensor.shape, sizes, strict=True)]
    if rows is not None and shape:
        shape[0] = rows
    return tuple(shape)


def _feed(program: Program, tensor: TensorSpec, shape: tuple[int, ...], device: Any, generator: Any) -> Any:
    dtype = DTYPE[tensor.datatype]
    if tensor.name in program.numbers:
        return torch.ones((), dtype=dtype).item()
    if generator is None:
        value = torch.zeros(shape, dtype=dtype)
    elif dtype.is_floating_point:
        value = torch.randn(shape, generator=generator).to(dtype)
    else:
        value = torch.randint(0, 2, shape, generator=generator).to(dtype)
    if program.dtype is not None and dtype.is_floating_point:
        value = value.to(program.dtype)
    return value.to(device)
