"""Runs a loaded model on samples before any request does: what frameworks put off until the first run is then done."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from backends.contract import Arrays, Backend
from backends.errors import BackendError, InferenceFailed, LoadFailed
from backends.spec import ModelSpec, Signature, Warmup, WarmupInput
from backends.tensor import NUMPY_DTYPE, Tensor, element_count

#: The folder with the samples' files.
FOLDER: Final = "warmup"

#: Random whole numbers are below this: they may be indices, of bytes or tokens.
_RANDOM_BELOW: Final = 128


def warm_up(backend: Backend, spec: ModelSpec, signature: Signature) -> None:
    """Run every sample as often as it says. Raises ``LoadFailed`` that names the sample that failed, and why."""
    outputs = tuple(output.name for output in signature.outputs)
    for sample in spec.warmup:
        try:
            inputs = arrays(sample, Path(spec.path))
            for _ in range(sample.count):
                backend.infer(inputs, outputs, {})
        except (BackendError, InferenceFailed, MemoryError, OSError, ValueError) as error:
            raise LoadFailed(f"failed to run warmup sample {sample.name!r}: {error}") from error


def arrays(sample: Warmup, artifact: Path) -> Arrays:
    """The sample's inputs. Raises ``OSError`` for a file that cannot be read, ``ValueError`` if it has another size."""
    random = np.random.default_rng(0)
    return {each.name: _array(each, artifact, random) for each in sample.inputs}


def _array(each: WarmupInput, artifact: Path, random: np.random.Generator) -> npt.NDArray[Any]:
    if each.file:
        return _from_file(each, artifact)
    if each.datatype == "BYTES":
        array = np.empty(each.shape, object)
        array[...] = b"warmup" if each.random else b""
        return array
    dtype = NUMPY_DTYPE[each.datatype]
    if not each.random:
        return np.zeros(each.shape, dtype)
    if each.datatype == "BF16":  # the upper half of a float of 32 bits
        return (random.random(each.shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.kind == "f":
        return random.random(each.shape, np.float32).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else _RANDOM_BELOW, each.shape).astype(dtype)


def _from_file(each: WarmupInput, artifact: Path) -> npt.NDArray[Any]:
    """From the folder ``warmup`` beside the artifact, or (Triton's place) beside the folder of its version."""
    folders = [folder / FOLDER for folder in (artifact.parent, artifact.parent.parent)]
    file = next((folder / each.file for folder in folders if (folder / each.file).is_file()), folders[-1] / each.file)
    data = file.read_bytes()
    wanted = element_count(each.shape) * NUMPY_DTYPE[each.datatype].itemsize
    if each.datatype != "BYTES" and len(data) != wanted:
        raise ValueError(
            f"{file} has {len(data)} bytes; input {each.name!r} of {each.datatype} and shape "
            f"{list(each.shape)} takes {wanted}"
        )
    return Tensor(each.name, each.datatype, each.shape, data).numpy()
