"""Silero-vad, a real detector of speech: one model in two frameworks, which are asked in different ways.

The ONNX file takes one window of sound and the state that the window before left; TorchScript keeps that state itself
and takes a whole recording. Both judge the same sound, window by window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.cli.tour.audio import Floats

RATE: Final = 16_000
WINDOW: Final = 512
#: So many samples of the window before are heard again.
_CONTEXT: Final = 64
_STATE_SHAPE: Final = (2, 1, 128)
#: Judgements from here on are speech, as the package's own functions have it.
_THRESHOLD: Final = 0.5

ARTIFACTS: Final = {
    "torch": "pkg://silero_vad/data/silero_vad.jit",
    "onnx": "pkg://silero_vad/data/silero_vad.onnx",
}
#: What TorchScript does not tell of itself, and that each request begins with a state of its own.
CONFIG: Final[dict[str, Any]] = {
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [1, -1]},
        {"name": "sr", "data_type": "TYPE_INT64", "dims": [1]},
    ],
    "output": [{"name": "OUTPUT__0", "data_type": "TYPE_FP32", "dims": [1, -1]}],
    "parameters": {
        "method": {"string_value": "audio_forward"},
        "reset_method": {"string_value": "reset_states"},
    },
}
#: The outputs by framework, in the order of the file.
OUTPUTS: Final = {"torch": ("OUTPUT__0",), "onnx": ("output", "stateN")}

#: Asks a model: inputs by name to outputs by name.
Ask = Callable[[dict[str, npt.NDArray[Any]]], dict[str, npt.NDArray[Any]]]


def judge(framework: str, ask: Ask, sound: Floats) -> Floats:
    """How probable speech is in each window of the sound: ``[samples]`` -> ``[windows]``; the last one may be short."""
    return (_as_a_whole if framework == "torch" else _by_windows)(ask, sound)


def _as_a_whole(ask: Ask, sound: Floats) -> Floats:
    (judged,) = ask({"x": sound[None], "sr": np.array([RATE], np.int64)})["OUTPUT__0"]
    return np.asarray(judged, np.float32)


def _by_windows(ask: Ask, sound: Floats) -> Floats:
    windows = np.pad(sound, (0, -len(sound) % WINDOW)).reshape(-1, WINDOW)
    state, before = np.zeros(_STATE_SHAPE, np.float32), np.zeros(_CONTEXT, np.float32)
    judged = []
    for window in windows:
        heard = np.concatenate([before, window])
        answer = ask({"input": heard[None], "state": state, "sr": np.array(RATE, np.int64)})
        judged.append(answer["output"][0, 0])
        state, before = answer["stateN"], window[-_CONTEXT:]
    return np.array(judged, np.float32)


def spans(judged: Floats) -> list[tuple[float, float]]:
    """Where windows are speech, in seconds: from the first one's begin to the last one's end."""
    edges = np.flatnonzero(np.diff(judged > _THRESHOLD, prepend=False, append=False)) * (WINDOW / RATE)
    return [(float(begin), float(end)) for begin, end in edges.reshape(-1, 2)]
