"""A version is immutable in fact: what was registered is what is served, also by the next worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from support import onnx_models
from support.clients import Array, infer
from support.repository import add_onnx
from support.rest import index
from support.server import running


def rows() -> dict[str, Array]:
    return {"x": np.array([[1, 2]], np.float32)}


def test_changed_content_is_not_served_under_the_old_number(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    folder = add_onnx(repository, "changing", onnx_models.add_one())
    add_onnx(repository, "other", onnx_models.add_one())
    with running(tmp_path, repository) as server:
        assert infer("rest", server, "changing", rows()).outputs["y"].tolist() == [[2, 3]]
        onnx_models.save(onnx_models.identity("FP32"), folder)
        os.kill(server.worker("changing").pid, signal.SIGKILL)
        (entry,) = server.wait(
            lambda: [e for e in index(server) if e["name"] == "changing" and e["state"] == "UNAVAILABLE"],
            "the changed model to be refused",
        )
        assert "has changed since it was registered (sha256:" in entry["reason"]
        assert "register the new one as a new version" in entry["reason"]
        assert infer("rest", server, "other", rows()).outputs["y"].tolist() == [[2, 3]]
