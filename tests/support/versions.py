"""Versions to register, for the tests of the registry."""

from __future__ import annotations

from typing import Any

from backends.spec import BatchingSpec, QueuePolicy, Signature, TensorSpec
from registry.record import NewVersion, Source
from registry.store import ModelStore

SIGNATURE = Signature(
    platform="onnxruntime_onnx",
    inputs=(TensorSpec("x", "FP32", (-1, 3)), TensorSpec("text", "BYTES", (-1,), optional=True)),
    outputs=(TensorSpec("y", "INT64", (-1,)),),
    max_batch_size=8,
    batching=BatchingSpec((4, 8), 100, priority_levels=2, default_priority=1, policies={2: QueuePolicy(5, True, 3)}),
)


def new(model: str = "resnet", number: int | None = None, content: str = "a", **fields: Any) -> NewVersion:
    """A version whose content is told by one letter."""
    given = {"framework": "onnx", "artifact": f"/models/{content}", "path": f"/models/{content}", "size_bytes": 7}
    return NewVersion(model=model, number=number, digest=f"sha256:{content * 8}", **{**given, **fields})


def folder(model: str, number: int, content: str = "a", **fields: Any) -> NewVersion:
    """A version of a model repository."""
    return new(model, number, content, source=Source.REPOSITORY, **fields)


async def numbers(store: ModelStore) -> dict[str, list[int]]:
    return {model.name: [version.number for version in model.versions] for model in await store.models()}
