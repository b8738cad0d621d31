"""Samples that a model runs before it is ready; one that fails keeps the version out of service, and says why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from support import onnx_models
from support.clients import infer
from support.repository import add_echo, add_onnx
from support.rest import http_call, index
from support.server import Server, running

SAMPLE = 'model_warmup {{ name: "{}" inputs {{ key: "{}" value {{ data_type: TYPE_{} dims: [ {} ] {} }} }} }}'
#: Model -> its sample, and the reason why it is not served.
TABLE = {
    "fine": (SAMPLE.format("zeros", "x", "INT64", 1, "zero_data: true"), ""),
    "failing": (SAMPLE.format("out of range", "x", "INT64", 1, "random_data: true"), "sample 'out of range': "),
    "misnamed": (SAMPLE.format("odd", "z", "INT64", 1, "zero_data: true"), "sample 'odd': "),
    "other_type": (SAMPLE.format("typed", "x", "FP32", 1, "zero_data: true"), "sample 'typed': "),
    "from_file": (SAMPLE.format("file", "x", "INT64", 1, 'input_data_file: "x.bin"'), ""),
    "no_file": (SAMPLE.format("lost", "x", "INT64", 1, 'input_data_file: "y.bin"'), "sample 'lost': "),
    "not_said": (SAMPLE.format("empty", "x", "INT64", 1, ""), "say zero_data: true"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, with models that are served and such that are not."""
    repository = tmp_path_factory.mktemp("repository")
    for name, (sample, _) in TABLE.items():
        version = add_onnx(repository, name, onnx_models.picks_from_table(), config=f"max_batch_size: 8 {sample}")
        folder = next(path for path in (version, *version.parents) if path.name == name) / "warmup"
        folder.mkdir()
        (folder / "x.bin").write_bytes(np.array([3], "<i8").tobytes())
    add_echo(repository, "echo", config=SAMPLE.format("s", "x", "FP32", 1, "zero_data: true"))
    with running(tmp_path_factory.mktemp("server"), repository, ready=False) as started:
        started.wait(lambda: all(entry["state"] != "LOADING" for entry in settled(started)), "all models to settle")
        yield started


def settled(server: Server) -> list[dict[str, str]]:
    entries = index(server)
    return entries if {entry["name"] for entry in entries} >= {*TABLE, "echo"} else [{"state": "LOADING"}]


@pytest.mark.parametrize("model", TABLE)
def test_a_sample_that_runs_is_no_request_and_one_that_fails_has_a_reason(server: Server, model: str) -> None:
    _, reason = TABLE[model]
    assert server.is_ready(model) is not bool(reason)
    if reason:
        (entry,) = (entry for entry in index(server) if entry["name"] == model)
        assert reason in entry["reason"]
    else:
        assert infer("grpc", server, model, {"x": np.array([[2]], np.int64)}).outputs["y"].tolist() == [[20]]
        counters = http_call(server, "GET", f"/v2/models/{model}/stats").json["model_stats"][0]
        assert counters["inference_count"] == 1


def test_a_model_without_a_batch_dimension_takes_the_dims_as_they_are(server: Server) -> None:
    assert server.is_ready("echo")


def test_the_configuration_shows_the_samples(server: Server) -> None:
    (shown,) = http_call(server, "GET", "/v2/models/fine/config").json["model_warmup"]
    assert (shown["name"], shown["inputs"]["x"]["zero_data"]) == ("zeros", True)
