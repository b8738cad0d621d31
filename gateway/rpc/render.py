"""The gateway's metadata and statistics as protobuf messages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.proto import inference_pb2 as pb
from gateway.telemetry.statistics import Duration, ModelStatistics

if TYPE_CHECKING:
    from gateway.serving.dataplane import ModelMetadata


def metadata_message(model: ModelMetadata) -> pb.ModelMetadataResponse:
    """What a client may know of a model; shapes include the batch dimension."""
    message = pb.ModelMetadataResponse(name=model.name, versions=model.versions, platform=model.platform)
    for tensor in model.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for tensor in model.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return message


def statistics_message(statistics: ModelStatistics) -> pb.ModelStatistics:
    """The counters of one version; every duration is present, also those that are 0."""
    message = pb.ModelStatistics(
        name=statistics.name,
        version=statistics.version,
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
    )
    for name in ModelStatistics.DURATIONS:
        _set(getattr(message.inference_stats, name), getattr(statistics, name))
    for size in sorted(statistics.batches):
        batch = statistics.batches[size]
        entry = message.batch_stats.add(batch_size=size)
        _set(entry.compute_input, batch.compute_input)
        _set(entry.compute_infer, batch.compute_infer)
        _set(entry.compute_output, batch.compute_output)
    return message


def _set(message: pb.StatisticDuration, duration: Duration) -> None:
    message.SetInParent()
    message.count = duration.count
    message.ns = duration.ns
