"""Encoders of transformers in the torch backend, and what is refused in their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

from backends.errors import InvalidInput
from support import payloads, torch_models
from support.loading import Loading, run, tensors

_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


def test_an_encoder_tells_its_signature_and_keeps_rows_apart(bert: Path) -> None:
    backend, signature = load(bert)
    assert [(each.name, each.datatype, each.shape, each.optional) for each in signature.inputs] == [
        ("input_ids", "INT64", (-1, -1), False),
        ("attention_mask", "INT64", (-1, -1), True),
        ("token_type_ids", "INT64", (-1, -1), True),
    ]
    assert signature.outputs == tensors(("last_hidden_state", "FP32", -1, -1, 8), ("pooler_output", "FP32", -1, 8))
    assert signature.max_batch_size == 32
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    both = run(backend, input_ids=ids)["last_hidden_state"]
    alone = run(backend, input_ids=ids[1:])["last_hidden_state"]
    np.testing.assert_allclose(both[1:], alone, rtol=1e-4, atol=1e-6)
    masked = run(backend, input_ids=ids, attention_mask=np.array([[1, 1, 0], [1, 1, 1]]))["last_hidden_state"]
    assert not np.allclose(masked[0, 0], both[0, 0], rtol=1e-4)
    np.testing.assert_allclose(masked[1], both[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "outputs"),
    [
        ("BertForSequenceClassification", [("logits", (-1, 3))]),
        ("BertForTokenClassification", [("logits", (-1, -1, 3))]),
        ("BertForMaskedLM", [("logits", (-1, -1, 50))]),
        ("BertForQuestionAnswering", [("start_logits", (-1, -1)), ("end_logits", (-1, -1))]),
    ],
)
def test_heads_of_encoders_give_their_logits(
    tmp_path: Path, architecture: str, outputs: list[tuple[str, tuple[int, ...]]]
) -> None:
    labels = 2 if "Question" in architecture else 3
    backend, signature = load(torch_models.encoder(tmp_path, architecture, num_labels=labels))
    assert [(each.name, each.shape) for each in signature.outputs] == outputs
    answers = run(backend, input_ids=np.ones((2, 5), np.int64))
    assert all(answers[name].shape[0] == 2 for name, _ in outputs)


def test_an_encoder_saved_without_its_pooler_does_not_offer_one(tmp_path: Path) -> None:
    _, signature = load(torch_models.encoder(tmp_path, pooler=False))
    assert [each.name for each in signature.outputs] == ["last_hidden_state"]


def test_weights_that_lack_a_part_of_the_architecture_are_refused(bert: Path, tmp_path: Path) -> None:
    """Left to itself the library makes the missing part up, at random."""
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"BertModel"', '"BertForSequenceClassification"'))
    text = refusal(folder)
    assert "classifier.weight" in text
    assert "random" in text


BAD_IDS: list[tuple[dict[str, Any], str]] = [
    ({"input_ids": [[1, 50]]}, "'input_ids' holds 50; the model knows 0 to 49"),
    ({"input_ids": [[-1, 2]]}, "'input_ids' holds -1"),
    ({"input_ids": [[1, 2]], "token_type_ids": [[0, 2]]}, "'token_type_ids' holds 2; the model knows 0 to 1"),
    ({"input_ids": [[1] * 17]}, "17 tokens in a row; the model takes up to 16"),
    ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, r"'attention_mask' has shape \[1, 1\]"),
]


@pytest.mark.parametrize(("inputs", "words"), BAD_IDS)
def test_ids_and_lengths_that_the_model_does_not_know_are_the_requests_fault(
    bert: Path, inputs: dict[str, Any], words: str
) -> None:
    backend, _ = load(bert)
    with pytest.raises(InvalidInput, match=words):
        run(backend, **inputs)


def test_positions_that_begin_after_the_padding_shorten_the_longest_row(tmp_path: Path) -> None:
    folder = torch_models.encoder(tmp_path, "RobertaModel", model_type="roberta", pad_token_id=1)
    backend, _ = load(folder)
    assert run(backend, input_ids=np.full((1, 14), 2))["last_hidden_state"].shape == (1, 14, 8)
    with pytest.raises(InvalidInput, match="up to 14"):
        run(backend, input_ids=np.full((1, 15), 2))


def test_declared_tensors_narrow_an_encoder(bert: Path) -> None:
    inputs, outputs = tensors(("input_ids", "INT64", -1, 5)), tensors(("pooler_output", "FP32", -1, 8))
    _, signature = load(bert, inputs=inputs, outputs=outputs)
    assert (signature.inputs, signature.outputs) == (inputs, outputs)
    assert "'pixels'" in refusal(bert, inputs=tensors(("pixels", "FP32", -1, 3)))
    assert "'input_ids'" in refusal(bert, inputs=tensors(("attention_mask", "INT64", -1, -1)))


# --- what is not served ----------------------------------------------------------------------------------------------


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Mine"], "auto_map": {"AutoModel": "mine.Mine"}}, "which is never run"),
    ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "'GPT2LMHeadModel' of type 'gpt2' is none"),
    ({"architectures": ["BertModel"], "is_decoder": True}, "none that this backend serves"),
    ({"architectures": []}, "it serves BertFor"),
    ({"architectures": "BertModel"}, "none that this backend serves"),
    ({"model_type": None}, "no model_type"),
    ({"model_type": "mine"}, "knows no encoder of this type"),
    ({"quantization_config": {"quant_method": "mine"}}, "quantization_config"),
    ({"hidden_size": 9}, "cannot be loaded"),
]


@pytest.mark.parametrize(("changes", "words"), CONFIGS)
def test_a_configuration_that_is_not_served_is_refused(
    tmp_path: Path, bert: Path, planted: Path, changes: dict[str, Any], words: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, **changes}))
    (folder / "mine.py").write_text(payloads.touching(planted))
    assert words in refusal(folder)
    assert not planted.exists()


def test_code_beside_a_known_architecture_is_left_alone(tmp_path: Path, bert: Path, planted: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    data = json.loads((folder / "config.json").read_text())
    choices = {"auto_map": {"AutoModel": "mine.Mine"}, "attn_implementation": "someone/kernels"}
    (folder / "config.json").write_text(json.dumps({**data, **choices, "_attn_implementation": "someone/kernels"}))
    (folder / "mine.py").write_text(payloads.touching(planted))
    load(folder)
    assert not planted.exists()


def test_damaged_parts_of_a_transformers_model_are_refused(tmp_path: Path, bert: Path) -> None:
    def copy(name: str) -> Path:
        shutil.copytree(bert, tmp_path / name)
        return tmp_path / name

    folder = copy("config")
    (folder / "config.json").write_text("{")
    assert "config.json cannot be read as JSON" in refusal(folder)
    folder = copy("weights")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert "cannot be loaded" in refusal(folder)
    folder = copy("adapter")
    (folder / "adapter_config.json").write_text("{}")
    assert "merge_and_unload" in refusal(folder)
