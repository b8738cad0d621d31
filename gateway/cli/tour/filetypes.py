"""Magika, a real classifier of file types: what becomes of a file before the model, and of its scores after it.

The numbers (sizes, padding, thresholds, labels) are the package's own, read from its ``config.min.json``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

ARTIFACT: Final = "pkg://magika/models/standard_v3_3/model.onnx"
_CONFIG: Final = "models/standard_v3_3/config.min.json"
_KINDS: Final = "config/content_types_kb.min.json"


class Verdict(msgspec.Struct, frozen=True):
    """A file's type and the model's score for it, 0 to 1; the type is a general one where the score is too low."""

    label: str
    score: float


class FileTypes:
    """Turns files into the model's input and its output into labels."""

    def __init__(self, package: Path) -> None:
        self._config: dict[str, Any] = json.loads((package / _CONFIG).read_text(encoding="utf-8"))
        self._kinds: dict[str, Any] = json.loads((package / _KINDS).read_text(encoding="utf-8"))

    def features(self, path: Path) -> npt.NDArray[np.int32]:
        """The file's first and last bytes without white space at the ends, padded: shape ``[begin + end]``.

        Raises ``ValueError`` for a file that is too small to be told by a model.
        """
        begin, end, padding = (self._config[key] for key in ("beg_size", "end_size", "padding_token"))
        first, last = _ends(path, self._config["block_size"])
        head, tail = first.lstrip()[:begin], last.rstrip()[-end:]
        smallest = self._config["min_file_size_for_dl"]
        if len(head) < smallest:
            raise ValueError(f"{path} has {len(head)} bytes that tell something, {smallest} are needed")
        row = np.full(begin + end, padding, dtype=np.int32)
        row[: len(head)] = np.frombuffer(head, np.uint8)
        row[begin + end - len(tail) :] = np.frombuffer(tail, np.uint8)
        return row

    def verdict(self, scores: npt.NDArray[np.float32]) -> Verdict:
        """The type for one row of scores, as the package's own high-confidence mode decides it."""
        best = int(np.argmax(scores))
        raw, score = self._config["target_labels_space"][best], float(scores[best])
        label = self._config["overwrite_map"].get(raw, raw)
        if score < self._config["thresholds"].get(raw, self._config["medium_confidence_threshold"]):
            label = "txt" if self._kinds[label]["is_text"] else "unknown"
        return Verdict(label, score)


def _ends(path: Path, block: int) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(min(block, size))
        file.seek(max(0, size - block))
        return first, file.read(min(block, size))
