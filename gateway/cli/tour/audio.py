"""Sounds to listen to, made of numbers and the same at every run: syllables as a voice forms them, and plucked notes.

All are mono, FP32 and at most 1 loud: shape ``[samples]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_Curve = npt.NDArray[np.float64]

#: The first three resonances of a mouth that says it, in Hz.
_VOWELS: Final = {
    "a": (730, 1090, 2440), "e": (530, 1840, 2480), "i": (270, 2290, 3010), "o": (570, 840, 2410),
    "u": (300, 870, 2240),
}  # fmt: skip
_WIDTHS_HZ: Final = (60, 90, 150)
_SYLLABLE_S: Final = 0.22
_VOICE_TOP_HZ: Final = 4000
_NAMES: Final = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


class Note(msgspec.Struct, frozen=True, order=True):
    """A note: when it begins and ends, and its number in MIDI (60 is C4)."""

    start_s: float
    end_s: float
    midi: int

    @property
    def name(self) -> str:
        """``C4``."""
        return f"{_NAMES[self.midi % 12]}{self.midi // 12 - 1}"


def hush(seconds: float, rate: int, *, loud: float = 0.005, seed: int = 0) -> Floats:
    """The hiss of a room."""
    noise: Any = np.random.default_rng(seed).standard_normal(round(seconds * rate), np.float32)
    sound: Floats = (loud * noise).clip(-1, 1)
    return sound


def speech(vowels: str, rate: int, *, pitch_hz: float = 120.0, seed: int = 0) -> Floats:
    """A syllable of 0.22 s for each vowel (``aeiou``): a hissed consonant, then a voice that glides to the vowel."""
    random = np.random.default_rng(seed)
    size = round(_SYLLABLE_S * rate)
    seconds = np.arange(size * len(vowels)) / rate
    within = np.arange(len(seconds)) % size / size  # 0 to 1 in each syllable
    open_mouth = np.minimum((within - 0.18) / 0.12, (1 - within) / 0.15).clip(0, 1)
    consonant = np.exp(-(((within - 0.1) / 0.06) ** 2))
    hiss = np.diff(random.standard_normal(len(seconds) + 1))
    voice = _voice(vowels, seconds, rate, _intonation(seconds, pitch_hz, random))
    sound: Floats = (0.5 * voice * open_mouth + 0.06 * hiss * consonant).clip(-1, 1).astype(np.float32)
    return sound


def _intonation(seconds: _Curve, pitch_hz: float, random: np.random.Generator) -> _Curve:
    """The pitch over time: it rises and falls, sinks to the end, and trembles a little."""
    knots = np.arange(0, seconds[-1] + 0.02, 0.01)
    tremble = np.interp(seconds, knots, random.standard_normal(len(knots)))
    melody = 1 + 0.12 * np.sin(2 * np.pi * 0.7 * seconds) - 0.1 * seconds / seconds[-1]
    curve: _Curve = pitch_hz * melody * (1 + 0.01 * tremble)
    return curve


def _voice(vowels: str, seconds: _Curve, rate: int, pitch: _Curve) -> _Curve:
    """The harmonics of the pitch, each as loud as the mouth's resonances let it be."""
    middles = (np.arange(len(vowels)) + 0.5) * _SYLLABLE_S
    targets = np.array([_VOWELS[vowel] for vowel in vowels], np.float64)
    formants = [np.interp(seconds, middles, target) for target in targets.T]
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = np.zeros_like(seconds)
    for number in range(1, int(_VOICE_TOP_HZ / pitch.max()) + 1):
        frequency = number * pitch
        strength = np.full_like(seconds, number**-0.9)
        for centre, width in zip(formants, _WIDTHS_HZ, strict=True):
            strength *= centre**2 / np.hypot(centre**2 - frequency**2, width * frequency)
        voice += strength * np.sin(number * phase)
    scaled: _Curve = voice / np.abs(voice).max()
    return scaled


def music(notes: Iterable[Note], seconds: float, rate: int) -> Floats:
    """The notes as plucked strings, at most 0.7 loud."""
    sound = np.zeros(round(seconds * rate))
    for note in notes:
        string = _string(note, rate)
        begin = round(note.start_s * rate)
        sound[begin : begin + len(string)] += string[: len(sound) - begin]
    played: Floats = (0.7 * sound / np.abs(sound).max()).astype(np.float32)
    return played


def _string(note: Note, rate: int) -> _Curve:
    length = note.end_s - note.start_s
    seconds = np.arange(round(length * rate)) / rate
    frequency = 440.0 * 2 ** ((note.midi - 69) / 12)
    numbers = [number for number in range(1, 9) if number * frequency < rate / 2]
    string = sum(
        np.sin(2 * np.pi * number * frequency * seconds) * 0.4 ** (number - 1) * np.exp(-(1.2 + 0.5 * number) * seconds)
        for number in numbers
    )
    plucked: _Curve = string * (seconds / 0.005).clip(0, 1) * ((length - seconds) / 0.03).clip(0, 1)
    return plucked
