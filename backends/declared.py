"""What a model's configuration declares about its tensors, against what the artifact says itself. Pure: no framework.

A declaration narrows: it chooses among the artifact's tensors, fixes sizes that vary there, and gives a shape where the
artifact has none. The artifact wins where it knows better, and a contradiction is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from backends.errors import LoadFailed
from backends.spec import TensorSpec

_Shape = tuple[int, ...]


def narrow(
    what: str,
    declared: Sequence[TensorSpec],
    found: Sequence[TensorSpec],
    *,
    unranked: AbstractSet[str] = frozenset(),
    own_names: Mapping[str, str] | None = None,
) -> tuple[TensorSpec, ...]:
    """The tensors to offer: the declared ones in their order, or all of the artifact's if none are declared.

    ``what`` they are: ``input`` or ``output``. ``found`` are the artifact's, ``unranked`` those of them whose shape it
    leaves open, and ``own_names`` maps declared names to the artifact's where they differ. Whether a tensor is optional
    is the artifact's word.

    Raises ``LoadFailed`` for a tensor that the artifact lacks, another datatype, a shape that does not fit, and an
    input of open shape that is not declared.
    """
    if not declared:
        return tuple(_undeclared(what, tensor) if tensor.name in unranked else tensor for tensor in found)
    by_name = {tensor.name: tensor for tensor in found}
    narrowed = []
    for tensor in declared:
        name = (own_names or {}).get(tensor.name, tensor.name)
        if name not in by_name:
            raise LoadFailed(
                f"the model has no {what} {name!r}; it has {', '.join(map(repr, by_name)) or 'none'}: declare it under "
                "a name that the model has, or leave it out"
            )
        narrowed.append(_merge(what, tensor, by_name[name], is_open=name in unranked))
    return tuple(narrowed)


def check_complete(required: Iterable[str], offered: Iterable[str]) -> None:
    """Raises ``LoadFailed`` for an input that the model requires and nobody could send. Names are the artifact's."""
    known = set(offered)
    missing = [repr(name) for name in required if name not in known]
    if missing:
        raise LoadFailed(
            f"the model needs input(s) {', '.join(missing)}, which the declared inputs lack: declare every input, or "
            "none"
        )


def _undeclared(what: str, tensor: TensorSpec) -> TensorSpec:
    """A tensor of open shape: requests could not be checked, while answers can be given all the same."""
    if what == "input":
        raise LoadFailed(f"input {tensor.name!r} has no shape in the model: declare the model's inputs with their dims")
    return msgspec.structs.replace(tensor, shape=(-1,))


def _merge(what: str, declared: TensorSpec, model: TensorSpec, *, is_open: bool) -> TensorSpec:
    """The declared name, the model's datatype, and the shape that satisfies both."""
    if declared.datatype != model.datatype:
        raise LoadFailed(
            f"{what} {declared.name!r} is declared as {declared.datatype}, in the model it is {model.datatype}: "
            f"declare it as {model.datatype}"
        )
    shape = declared.shape if is_open else _common(declared.shape, model.shape)
    if shape is None:
        raise LoadFailed(
            f"{what} {declared.name!r} is declared with shape {list(declared.shape)} (batch dimension included), in "
            f"the model it has {list(model.shape)}: declare the model's sizes, or -1"
        )
    return msgspec.structs.replace(model, name=declared.name, shape=shape)


def _common(one: _Shape, other: _Shape) -> _Shape | None:
    """The shape that is as narrow as both; None if there is none. -1 is any size."""
    if len(one) != len(other):
        return None
    sizes = tuple(zip(one, other, strict=True))
    return tuple(map(max, sizes)) if all(a == b or -1 in (a, b) for a, b in sizes) else None
