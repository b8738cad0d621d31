"""The configuration that is shown names the versions that are loaded."""

from __future__ import annotations

from pathlib import Path

from support import onnx_models
from support.repository import add_onnx
from support.rest import http_call
from support.server import running


def test_the_version_policy_names_what_is_loaded(tmp_path: Path) -> None:
    model = onnx_models.identity("FP32", ("length",))
    for version in (1, 2, 3):
        add_onnx(tmp_path / "models", "several", model, version=version, config="version_policy { all {} }")
    with running(tmp_path, tmp_path / "models") as server:
        for version in (1, 2, 3):
            server.wait_ready(f"several/versions/{version}")
        config = http_call(server, "GET", "/v2/models/several/versions/2/config").json
        assert config["version_policy"] == {"specific": {"versions": [1, 2, 3]}}
