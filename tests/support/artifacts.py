"""Files that are artifacts, and why others are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.artifacts import resolve
from registry.errors import ArtifactError


def write(folder: Path, files: dict[str, str]) -> Path:
    """Files by their names in the folder, which is made; returns the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def refusal(uri: str | Path) -> str:
    """The text with which the URI is refused."""
    with pytest.raises(ArtifactError) as caught:
        resolve(str(uri))
    return str(caught.value)
