"""The models of the tour: which of them can be served here, and their registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from backends.loader import install_line
from gateway.cli.client import AdminClient
from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_table, size, spinner
from gateway.cli.tour import filetypes, notes, sentences, voice

_LOAD_WAIT_S: Final = 300.0


class Model(msgspec.Struct, frozen=True):
    """A model to be registered, with what its file does not tell of itself."""

    name: str
    framework: str
    artifact: str
    config: dict[str, Any] = {}


MODELS: Final = (
    Model("magika", "onnx", filetypes.ARTIFACT),
    Model("minilm", "onnx", sentences.ARTIFACT),
    Model("silero_onnx", "onnx", voice.ARTIFACTS["onnx"]),
    Model("silero_torch", "torch", voice.ARTIFACTS["torch"], voice.CONFIG),
    Model("basic_pitch_onnx", "onnx", notes.ARTIFACTS["onnx"]),
    Model("basic_pitch_tf", "tf", notes.ARTIFACTS["tf"]),
)


def served(is_usable: Callable[[str], bool]) -> list[Model]:
    """The models whose framework can be used; the others are named, with the command that installs what they need."""
    left_out = [model for model in MODELS if not is_usable(model.framework)]
    for name, framework in ((model.name, model.framework) for model in left_out):
        print(f"{name} is left out: {framework} is not installed. To see it: {install_line(framework)}")
    return [model for model in MODELS if model not in left_out]


def register(client: AdminClient, models: Sequence[Model]) -> None:
    """Register and load the models; raises ``CommandFailed`` if one does not load."""
    rows = []
    for model in models:
        with spinner(f"registering {model.name}"):
            body = {"artifact": model.artifact, "version": 1, "config": model.config}
            info = client.post("models", model.name, "versions", body=body, wait_s=_LOAD_WAIT_S, timeout_s=None)
            if info["state"] != "ready":
                path = ("models", model.name, "versions", "1", "load")
                info = client.post(*path, wait_s=_LOAD_WAIT_S, timeout_s=None)
        if info["state"] != "ready":
            raise CommandFailed(f"{model.name} is {info['state']}: {info['reason']}")
        rows.append(_row(info))
    columns = ["model", "framework", "size", "takes", "gives", "worker"]
    print_table(columns, rows, title=f"{len(rows)} real models, each in a worker process of its own")


def _row(info: Any) -> list[object]:
    def tensors(kind: str) -> str:
        return ", ".join(f"{t['name']} {t['datatype']}{t['shape']}" for t in info["signature"][kind])

    process = ", ".join(f"pid {worker['pid']}, {size(worker['rss_bytes'])}" for worker in info["workers"])
    return [info["model"], info["framework"], size(info["size_bytes"]), tensors("inputs"), tensors("outputs"), process]
