"""What the demo does with sounds: they are made, asked about, and its answers are told right from wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from gateway.cli.tour import audio, listening, models, notes, voice
from gateway.cli.tour.audio import Note

#: The last cell of a row that is not right.
WRONG = re.compile(r" NO$", re.MULTILINE)


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050])
def test_sounds_are_the_same_at_every_run_and_no_louder_than_1(rate: int) -> None:
    tune = [Note(0.1, 0.4, 60), Note(0.3, 0.9, 64)]

    def make() -> dict[float, audio.Floats]:
        return {
            1.5: audio.hush(1.5, rate, loud=0.5, seed=3),
            1.1: audio.speech("aiueo", rate, seed=3),
            1.0: audio.music(tune, 1.0, rate),
        }

    for seconds, sound in make().items():
        assert sound.dtype == np.float32
        assert sound.shape == (round(seconds * rate),)
        assert 0.1 < np.abs(sound).max() <= 1
        assert sound.tobytes() == make()[seconds].tobytes()


def test_a_note_sounds_from_its_begin_to_its_end_at_its_pitch() -> None:
    rate = 8000
    sound = audio.music([Note(0.25, 0.75, 69)], 1.0, rate)
    assert not sound[: rate // 4].any()
    assert not sound[3 * rate // 4 :].any()
    spectrum = np.abs(np.fft.rfft(sound))
    assert spectrum.argmax() == pytest.approx(440, abs=2)  # a second of sound: a bin for each Hz
    assert [Note(0, 1, midi).name for midi in (21, 60, 69, 73)] == ["A0", "C4", "A4", "C#5"]


class Whole:
    """Answers as silero-vad in ONNX does, with the sum of the window and of all before it in its state."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        assert inputs["input"].shape == (1, 576)
        assert (inputs["sr"].shape, int(inputs["sr"])) == ((), 16_000)
        self.heard += inputs["input"][0].tolist()
        state = inputs["state"] + inputs["input"][0, 64:].sum()
        return {"output": state[0, :, :1], "stateN": state}


def test_windows_follow_each_other_with_what_was_heard_before() -> None:
    sound = np.arange(1, 1101, dtype=np.float32)
    ask = Whole()
    judged = voice.judge("onnx", ask, sound)
    assert judged.tolist() == [sum(range(1, 513)), sum(range(1, 1025)), sum(range(1, 1101))]
    padded = [*range(1, 1101), *[0] * 436]
    assert ask.heard == [*[0] * 64, *padded[:512], *padded[448:1024], *padded[960:]]


@pytest.mark.parametrize(
    ("judged", "spans"),
    [
        ([], []),
        ([0.1, 0.4], []),
        ([0.1, 0.9, 0.9, 0.2, 0.6], [(0.032, 0.096), (0.128, 0.16)]),
        ([0.9, 0.9], [(0, 0.064)]),
    ],
)
def test_spans_go_from_the_first_window_of_speech_to_the_end_of_the_last(
    judged: list[float], spans: list[tuple[float, float]]
) -> None:
    assert voice.spans(np.array(judged, np.float32)) == [pytest.approx(span) for span in spans]


def test_notes_are_long_enough_and_in_the_order_of_their_begin() -> None:
    sounding = np.zeros((172, 88), np.float32)
    sounding[50:70, 39] = 0.9  # C4
    sounding[10:30, 43] = 0.6  # E4
    sounding[30:40, 46] = 0.9  # too short
    sounding[100:150, 46] = 0.4  # too soft
    heard = notes.heard(sounding)
    assert [note.name for note in heard] == ["E4", "C4"]
    assert [heard[1].start_s, heard[1].end_s] == pytest.approx([50 * 256 / 22050, 70 * 256 / 22050])


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda played: played, True),
        (lambda played: [msgspec.structs.replace(note, start_s=note.start_s + 0.03) for note in played], True),
        (lambda played: [msgspec.structs.replace(note, start_s=note.start_s + 0.06) for note in played], False),
        (lambda played: played[1:], False),
        (lambda played: [*played, Note(0.2, 0.5, 30)], False),
    ],
)
def test_notes_are_right_only_if_all_were_heard_in_time_and_no_other(
    change: Callable[[list[Note]], list[Note]], right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    played = list(listening.PLAYED)
    assert listening.show_notes({"tf": played, "onnx": change(played)}) is right
    assert (WRONG.search(capsys.readouterr().out) is None) is right


@pytest.mark.parametrize(("apart", "right"), [(0.0, True), (9e-4, True), (2e-3, False)])
def test_two_frameworks_that_are_too_far_apart_are_not_right(
    apart: float, right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = np.linspace(0, 0.9, 100, dtype=np.float32)
    theirs = ours.copy()
    theirs[50] += np.float32(apart)
    assert listening.compare("silero-vad", {"torch": {"speech": ours}, "onnx": {"speech": theirs}}) is right
    assert (WRONG.search(capsys.readouterr().out) is None) is right
    assert listening.compare("silero-vad", {"onnx": {"speech": theirs}}), "one alone is compared with nothing"


def test_what_is_not_installed_is_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.served(lambda _: True) == list(models.MODELS)
    assert capsys.readouterr().out == ""
    assert {model.framework for model in models.served(lambda framework: framework == "onnx")} == {"onnx"}
    assert capsys.readouterr().out.splitlines() == [
        "silero_torch is left out: torch is not installed. To see it: pip install 'tensorgate[torch]'",
        "basic_pitch_tf is left out: tf is not installed. To see it: pip install 'tensorgate[tf]'",
    ]
