"""Basic-pitch, a real transcriber of music: two seconds of sound to keys of a piano, one model in two frameworks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.cli.tour.audio import Floats, Note

RATE: Final = 22_050
#: Of the one window that the model takes: 1.99 s.
SAMPLES: Final = 43_844
_HOP: Final = 256
_LOWEST_KEY: Final = 21
_THRESHOLD: Final = 0.5
#: Shorter notes are taken for echoes of others, as the package's own functions have it.
_SHORTEST_S: Final = 0.1277

ARTIFACTS: Final = {
    "tf": "pkg://basic_pitch/saved_models/icassp_2022/nmp",
    "onnx": "pkg://basic_pitch/saved_models/icassp_2022/nmp.onnx",
}
#: What each framework calls the sound, and the three answers: whether a key sounds, is struck, and a finer pitch.
INPUT: Final = {"tf": "input_2", "onnx": "serving_default_input_2:0"}
OUTPUTS: Final = {
    "tf": {"note": "note", "onset": "onset", "contour": "contour"},
    "onnx": {
        "note": "StatefulPartitionedCall:1",
        "onset": "StatefulPartitionedCall:2",
        "contour": "StatefulPartitionedCall:0",
    },
}


def inputs(framework: str, sound: Floats) -> dict[str, npt.NDArray[Any]]:
    """The model's input for at most 1.99 s of sound: ``[samples]`` -> ``[1, 43844, 1]``."""
    return {INPUT[framework]: np.pad(sound, (0, SAMPLES - len(sound)))[None, :, None]}


def named(framework: str, outputs: dict[str, npt.NDArray[Any]]) -> dict[str, Floats]:
    """``note``, ``onset`` (each ``[frames, 88]``) and ``contour`` (``[frames, 264]``) of the first window."""
    return {name: outputs[theirs][0] for name, theirs in OUTPUTS[framework].items()}


def heard(sounding: Floats) -> list[Note]:
    """The notes in ``note``, in the order of their begin."""
    found = []
    for key, strength in enumerate(sounding.T):
        edges = np.flatnonzero(np.diff(strength > _THRESHOLD, prepend=False, append=False)) * (_HOP / RATE)
        spans = [(float(begin), float(end)) for begin, end in edges.reshape(-1, 2)]
        found += [Note(begin, end, _LOWEST_KEY + key) for begin, end in spans if end - begin >= _SHORTEST_S]
    return sorted(found)
