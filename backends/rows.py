"""The rows of a batch: its members' inputs joined along axis 0, and the outputs split among them again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.batching import Batch
from backends.errors import InferenceFailed, InvalidInput
from backends.tensor import Tensor


def join(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """The batch's inputs, each as one array joined along axis 0; a batch of one passes its views unchanged.

    All members have equal keys. Raises ``InvalidInput`` that names the tensor whose bytes do not fit its shape.
    """
    if len(batch) == 1:
        return {tensor.name: array_of(tensor) for tensor in batch[0].tensors}
    parts: dict[str, list[npt.NDArray[Any]]] = {tensor.name: [] for tensor in batch[0].tensors}
    for request in batch:
        for tensor in request.tensors:
            parts[tensor.name].append(array_of(tensor))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """A view of the tensor. Raises ``InvalidInput`` that names it if its bytes do not fit its shape."""
    try:
        return tensor.numpy()
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"input {tensor.name!r}: {len(tensor.data)} bytes are no {tensor.datatype} tensor of shape "
            f"{list(tensor.shape)} ({error})"
        ) from error


def split(outputs: dict[str, npt.NDArray[Any]], rows: Sequence[int]) -> list[dict[str, npt.NDArray[Any]]]:
    """Each member's share of the outputs, as views; ``rows`` are the members' rows in the order of the batch.

    Only for models with a batch dimension. Raises ``InferenceFailed`` if an output does not have one row per input row:
    then nobody can say whose rows are whose.
    """
    total = sum(rows)
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != total:
            raise InferenceFailed(
                f"output {name!r} has shape {list(array.shape)} for {total} input row(s): the model does not keep the "
                "rows of a batch apart; set max_batch_size to 0 for it"
            )
    shares: list[dict[str, npt.NDArray[Any]]] = []
    start = 0
    for count in rows:
        shares.append({name: array[start : start + count] for name, array in outputs.items()})
        start += count
    return shares
