"""The fixed request of each point, in every encoding that a load generator sends."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype

Feeds = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Point:
    """One request to one model."""

    name: str
    model: str
    feeds: Feeds
    protocols: tuple[str, ...]


@dataclass(frozen=True)
class Body:
    """A request body on disk; ``header_length`` is set for the binary-tensor extension only."""

    path: Path
    header_length: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        if self.header_length is None:
            return {"Content-Type": "application/json"}
        return {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(self.header_length),
        }


def points() -> dict[str, Point]:
    """All points, cheapest request first."""
    every = ("json", "binary", "grpc")
    found = (
        Point("add64", "add", add_feeds(16), every),
        Point("add64k", "add", add_feeds(16 * 1024), every),
        Point("magika", "magika", magika_feeds(1), ("binary", "grpc")),
        Point("minilm", "minilm", minilm_feeds(1), ("binary", "grpc")),
    )
    return {point.name: point for point in found}


def add_feeds(floats: int) -> Feeds:
    return {"x": np.random.default_rng(0).random((1, floats), np.float32)}


def magika_feeds(batch: int) -> Feeds:
    return {"bytes": np.random.default_rng(0).integers(0, 256, (batch, 2048)).astype(np.int32)}


def minilm_feeds(batch: int) -> Feeds:
    ids = np.random.default_rng(0).integers(1000, 20000, (batch, 32)).astype(np.int64)
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def json_body(point: Point, path: Path) -> Body:
    inputs = [description(name, array) | {"data": array.ravel().tolist()} for name, array in point.feeds.items()]
    path.write_text(json.dumps({"inputs": inputs}))
    return Body(path)


def binary_body(point: Point, path: Path) -> Body:
    inputs = [
        description(name, array) | {"parameters": {"binary_data_size": array.nbytes}}
        for name, array in point.feeds.items()
    ]
    parameters = {"binary_data_output": True}
    header = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    path.write_bytes(header + b"".join(array.tobytes() for array in point.feeds.values()))
    return Body(path, len(header))


def grpc_body(point: Point, path: Path) -> Body:
    """A length-prefixed ``ModelInferRequest``: what one gRPC call puts into HTTP/2 DATA frames."""
    request = service_pb2.ModelInferRequest(model_name=point.model)
    for name, array in point.feeds.items():
        datatype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    message = request.SerializeToString()
    path.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    return Body(path)


def perf_analyzer_data(point: Point, path: Path, batched: bool) -> Path:
    """``--input-data`` of perf_analyzer, which adds the batch dimension itself if the model batches."""
    first = 1 if batched else 0
    tensors = {
        name: {"content": array.ravel().tolist(), "shape": list(array.shape[first:])}
        for name, array in point.feeds.items()
    }
    path.write_text(json.dumps({"data": [tensors]}))
    return path


def description(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    datatype = np_to_triton_dtype(array.dtype)
    return {"name": name, "shape": list(array.shape), "datatype": datatype}


ENCODERS: dict[str, Callable[[Point, Path], Body]] = {
    "json": json_body,
    "binary": binary_body,
    "grpc": grpc_body,
}


def write_bodies(point: Point, folder: Path) -> dict[str, Body]:
    """Encoding -> body, all three, in ``folder``."""
    return {encoding: encode(point, folder / f"{point.name}.{encoding}") for encoding, encode in ENCODERS.items()}
