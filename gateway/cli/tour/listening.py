"""The steps of the tour that listen: one model in two frameworks side by side, on the same sound.

The sound is made here, so that it is known what there is to be heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gateway.cli.output import print_table
from gateway.cli.tour import notes, voice
from gateway.cli.tour.audio import Floats, Note, hush, music, speech
from gateway.cli.tour.calls import Answer, Arrays, Both, Caller
from gateway.cli.tour.models import Model

_FIGURES: Final = ("REST ms", "gRPC ms", "same bits")
_FRAMEWORKS: Final = {"onnx": "ONNX", "torch": "torch", "tf": "TensorFlow"}

#: Who speaks between these seconds of the recording, after a pause and before a pause and a tune.
SPOKEN_S: Final = (1.0, 2.32)
_VOWELS: Final = "aiueoa"
_TUNE: Final = (Note(0.1, 0.5, 60), Note(0.6, 1.0, 64), Note(1.1, 1.5, 67))
#: The judgement is of windows, and fades after the last word.
_SPOKEN_WITHIN_S: Final = 0.35
#: Shorter bursts do not count, as the package's own functions have it.
_SHORTEST_SPEECH_S: Final = 0.25

#: A melody, and a chord.
PLAYED: Final = (
    Note(0.1, 0.5, 60), Note(0.5, 0.9, 64), Note(0.9, 1.3, 67),
    Note(1.35, 1.9, 65), Note(1.35, 1.9, 69), Note(1.35, 1.9, 72),
)  # fmt: skip
_MUSIC_S: Final = 1.98
#: The model's frames are 12 ms apart.
_PLAYED_WITHIN_S: Final = 0.05

#: How far probabilities of two frameworks may be apart. Both compute in float32 and add up in different orders; the
#: logarithm in basic-pitch makes more of that where a band of the sound is almost silent.
_TOLERANCE: Final = {"silero-vad": 1e-3, "basic-pitch": 5e-3}


def find_speech(caller: Caller, models: Sequence[Model]) -> bool:
    """Where in a recording somebody speaks; whether each framework found it, and they and both protocols agree."""
    sound, rows, judged, right = recording(), [], {}, True
    seconds = len(sound) / voice.RATE
    for framework in _frameworks(models, voice.ARTIFACTS):
        rest, count = _judged(caller.rest, framework, sound)
        both = Both(rest, _judged(caller.grpc, framework, sound)[0])
        judged[framework] = {"speech": rest.output}
        found = [span for span in voice.spans(rest.output) if span[1] - span[0] >= _SHORTEST_SPEECH_S]
        good = len(found) == 1 and np.allclose(found[0], SPOKEN_S, rtol=0, atol=_SPOKEN_WITHIN_S)
        right = right and good and both.agree
        asked = f"{count} of {seconds:.2f} s" if count == 1 else f"{count} of {1000 * voice.WINDOW // voice.RATE} ms"
        rows.append([_FRAMEWORKS[framework], asked, _spans(found), _spans([SPOKEN_S]), _yes(good), *both.figures])
    columns = ["silero-vad in", "requests", "hears speech at", "it is at", "right", *_FIGURES]
    print_table(columns, rows, title=f"silero-vad finds the speech in {seconds:.2f} s of pause, speech and music")
    return compare("silero-vad", judged) and right


def transcribe(caller: Caller, models: Sequence[Model]) -> bool:
    """The notes that are played; whether each framework heard them all, and they and both protocols agree."""
    sound = music(PLAYED, _MUSIC_S, notes.RATE) + hush(_MUSIC_S, notes.RATE, loud=1e-3)
    asked, outputs = [], {}
    for framework in _frameworks(models, notes.ARTIFACTS):
        names = notes.OUTPUTS[framework].values()
        both = caller.ask(f"basic_pitch_{framework}", notes.inputs(framework, sound), *names)
        outputs[framework] = notes.named(framework, both.rest.outputs)
        asked.append((framework, both))
    heard = {framework: notes.heard(found["note"]) for framework, found in outputs.items()}
    right = show_notes(heard)
    print_table(
        ["basic-pitch in", "answer", *_FIGURES],
        [[_FRAMEWORKS[framework], _shapes(both.rest.outputs), *both.figures] for framework, both in asked],
        title="One request each way",
    )
    return compare("basic-pitch", outputs) and right and all(both.agree for _, both in asked)


def recording() -> Floats:
    """A pause, speech, a pause, three notes, a pause: ``[samples]`` at 16 kHz."""
    rate = voice.RATE
    pauses = (hush(seconds, rate, seed=number) for number, seconds in enumerate((1.0, 1.0, 0.5)))
    return np.concatenate([next(pauses), speech(_VOWELS, rate), next(pauses), music(_TUNE, 1.6, rate), next(pauses)])


def _frameworks(models: Sequence[Model], artifacts: Mapping[str, str]) -> list[str]:
    """Those of the model that are served."""
    served = {model.artifact for model in models}
    return [framework for framework, artifact in artifacts.items() if artifact in served]


def _judged(call: Callable[..., Answer], framework: str, sound: Floats) -> tuple[Answer, int]:
    """The judgements over one protocol with the time of all requests, and how many these were."""
    answers: list[Answer] = []

    def ask(inputs: Arrays) -> Arrays:
        answers.append(call(f"silero_{framework}", inputs, *voice.OUTPUTS[framework]))
        return answers[-1].outputs

    judged = voice.judge(framework, ask, sound)
    return Answer({"speech": judged}, sum(answer.seconds for answer in answers)), len(answers)


def show_notes(heard: Mapping[str, list[Note]]) -> bool:
    """What was played beside what was heard; whether that is the same, and nothing more."""
    keys = {note.midi for note in PLAYED}
    more = [note for found in heard.values() for note in found if note.midi not in keys]
    rows, right = [], not more
    for played in (*PLAYED, *more):
        found = [_nearest(played, notes) for notes in heard.values()]
        good = played in PLAYED and all(note is not None and _fits(note, played) for note in found)
        times = [_span(note) if note else "not heard" for note in found]
        rows.append([played.name, _span(played) if played in PLAYED else "not played", *times, _yes(good)])
        right = right and good
    columns = ["note", "played at", *(f"heard in {_FRAMEWORKS[framework]}" for framework in heard), "right"]
    print_table(columns, rows, title=f"basic-pitch hears {len(PLAYED)} notes in {_MUSIC_S} s of music")
    return right


def _nearest(note: Note, others: Sequence[Note]) -> Note | None:
    """The note of the same key that begins nearest."""
    same = [other for other in others if other.midi == note.midi]
    return min(same, key=lambda other: abs(other.start_s - note.start_s), default=None)


def _fits(note: Note, played: Note) -> bool:
    return abs(note.start_s - played.start_s) < _PLAYED_WITHIN_S


def compare(model: str, outputs: Mapping[str, Mapping[str, Floats]]) -> bool:
    """Print how far the answers of the two frameworks are apart; whether that is little. One alone is not compared."""
    if len(outputs) < 2:
        return True
    (first, ours), (second, theirs) = outputs.items()
    allowed, rows, right = _TOLERANCE[model], [], True
    for name, values in ours.items():
        apart = np.abs(values - theirs[name])
        good = bool(apart.max() <= allowed)
        rows.append([name, values.size, f"{apart.max():.1e}", f"{apart.mean():.1e}", f"{allowed:.0e}", _yes(good)])
        right = right and good
    columns = ["output", "values", "greatest difference", "mean difference", "allowed", "within"]
    print_table(columns, rows, title=f"{model} in {_FRAMEWORKS[first]} and {_FRAMEWORKS[second]}: how far apart")
    return right


def _span(note: Note) -> str:
    return _spans([(note.start_s, note.end_s)])


def _spans(spans: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{begin:.2f}-{end:.2f} s" for begin, end in spans) or "nowhere"


def _shapes(outputs: Mapping[str, np.ndarray[Any, Any]]) -> str:
    return ", ".join(f"FP32 {list(array.shape)}" for array in outputs.values())


def _yes(good: bool) -> str:
    return "yes" if good else "NO"
