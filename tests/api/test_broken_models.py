"""A repository with broken models in it: each says what is wrong with it, and the good ones are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from support import onnx_models
from support.clients import PROTOCOLS, TRANSPORTS, Refused, floats, infer
from support.repository import add_echo, add_onnx
from support.rest import http_call, index
from support.server import Server, running

IDENTITY: Final = onnx_models.identity("FP32", ("length",))


def _bytes_of(content: bytes) -> Callable[[Path, str], object]:
    return lambda repository, name: add_onnx(repository, name, content)


def _with_config(config: str) -> Callable[[Path, str], object]:
    return lambda repository, name: add_onnx(repository, name, IDENTITY, config=config)


def _external(location: str, link: str = "") -> Callable[[Path, str], object]:
    """A model whose weights are elsewhere; beside it lie ``data/weights`` and, in the model's folder, ``outside``."""

    def make(repository: Path, name: str) -> None:
        folder = add_onnx(repository, name, onnx_models.with_external_data(location))
        (folder / "data").mkdir()
        for path in (folder / "data" / "weights", repository / name / "outside"):
            path.write_bytes(onnx_models.EXTERNAL_WEIGHTS.tobytes())
        if link:
            (folder / link).symlink_to("../outside")

    return make


#: What is wrong -> (how to make it, words of the reason in the repository's index).
BROKEN: Final[dict[str, tuple[Callable[[Path, str], object], list[str]]]] = {
    "rubbish": (_bytes_of(onnx_models.rubbish()), ["model.onnx"]),
    "truncated": (_bytes_of(onnx_models.add_sub().SerializeToString()[:-30]), ["model.onnx"]),
    "not_begun": (_bytes_of(b""), ["model.onnx", "empty"]),
    "half_copied": (
        lambda repository, name: add_onnx(repository, name, IDENTITY).joinpath("model.onnx").rename(
            repository / name / "1" / "model.onnx.part"
        ),
        ["model.onnx"],
    ),
    "no_version": (lambda repository, name: (repository / name).mkdir(), ["version"]),
    "no_number": (lambda repository, name: (repository / name / "v1").mkdir(parents=True), ["version"]),
    "empty_version": (lambda repository, name: (repository / name / "1").mkdir(parents=True), ["model.onnx"]),
    "version_is_a_link_to_nowhere": (
        lambda repository, name: (add_onnx(repository, name, IDENTITY) / "link").symlink_to("nowhere"), ["link"],
    ),
    "config_of_another_form": (_with_config("{ not: a config"), ["config.pbtxt"]),
    "config_with_an_unknown_field": (_with_config("max_batch_sise: 8"), ["max_batch_sise"]),
    "config_of_another_model": (_with_config('name: "other"'), ["name", "other"]),
    "config_with_an_unknown_backend": (_with_config('backend: "fortran"'), ["fortran"]),
    "config_with_an_unknown_tensor": (
        _with_config('input { name: "z" data_type: TYPE_FP32 dims: [ -1 ] }'), ["z"],
    ),
    "config_with_another_datatype": (
        _with_config('input { name: "x" data_type: TYPE_INT8 dims: [ -1 ] }'), ["x", "INT8", "FP32"],
    ),
    "config_with_a_batch_that_is_none": (
        lambda repository, name: add_onnx(repository, name, onnx_models.no_batch(), config="max_batch_size: 8"),
        ["max_batch_size"],
    ),
    "config_with_an_unknown_option": (
        _with_config('parameters { key: "speed" value { string_value: "high" } }'), ["speed"],
    ),
    "an_output_that_is_no_tensor": (
        lambda repository, name: add_onnx(repository, name, onnx_models.gives_sequence()), ["y"],
    ),
    "external_data_in_the_parent": (_external("../outside"), ["../outside", "folder"]),
    "external_data_anywhere": (_external("/dev/zero"), ["/dev/zero", "folder"]),
    "external_data_behind_a_link": (_external("link", "link"), ["link"]),
    "external_data_missing": (_external("nowhere"), ["nowhere"]),
    "loading_fails": (
        lambda repository, name: add_echo(repository, name, options={"load_fail": "as it was told"}),
        ["as it was told"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose repository has every broken model beside good ones."""
    repository = tmp_path_factory.mktemp("repository")
    for name, (make, _) in BROKEN.items():
        make(repository, name)
    add_onnx(repository, "a_good_one", IDENTITY)
    _external("data/weights")(repository, "external_data_inside")
    add_onnx(repository, "zz_good_too", IDENTITY, version=3)
    (repository / "a file").write_text("of no interest\n")
    with running(tmp_path_factory.mktemp("server"), repository, ready=False) as started:
        for name in ("a_good_one", "external_data_inside", "zz_good_too"):
            started.wait_ready(name)
        started.wait(lambda: is_settled(started), "every model to be ready or to have failed")
        yield started


def is_settled(server: Server) -> bool:
    """Whether nothing loads and nothing waits for its turn to be loaded."""
    return all(entry["state"] != "LOADING" and entry.get("reason") != "unloaded" for entry in index(server))


@pytest.mark.parametrize("case", BROKEN)
def test_a_model_that_cannot_be_served_has_a_reason_in_the_index(server: Server, case: str) -> None:
    (entry,) = [entry for entry in index(server) if entry["name"] == case]
    assert entry["state"] == "UNAVAILABLE"
    for word in BROKEN[case][1]:
        assert word in entry["reason"]
    assert "Traceback" not in entry["reason"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_request_for_it_is_refused_and_not_held(server: Server, case: str) -> None:
    for protocol in TRANSPORTS:
        with pytest.raises(Refused) as refused:
            infer(protocol, server, case, floats(1))
        assert refused.value.meaning in ("unavailable", "not found"), refused.value
        assert case in refused.value.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_good_models_beside_broken_ones_are_served(server: Server, protocol: str) -> None:
    for model in ("a_good_one", "zz_good_too"):
        assert infer(protocol, server, model, floats(1, 2)).outputs["y"].tolist() == [1, 2]
    rows = floats(0, 0, 0, 0)["x"].reshape(1, 4)
    answer = infer(protocol, server, "external_data_inside", {"x": rows})
    assert answer.outputs["y"].tolist() == [[10, 20, 30, 40]]


def test_a_server_that_is_not_ready_names_the_models_that_are_away(tmp_path: Path) -> None:
    add_echo(tmp_path / "models", "fine")
    add_echo(tmp_path / "models", "stuck", options={"load_hang": "true"})
    with running(tmp_path, tmp_path / "models", ready=False) as server:
        server.wait_ready("fine")
        reply = http_call(server, "GET", "/v2/health/ready")
        assert reply.status == 400
        assert reply.error == "not ready: stuck (POST /v2/repository/index says why)"
