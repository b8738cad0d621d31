"""The demo's own arithmetic: what becomes of files and sentences before a model, and of its answer after it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.tour.filetypes import FileTypes
from gateway.cli.tour.sentences import embed, neighbours

CONFIG = {
    "beg_size": 8, "end_size": 6, "block_size": 16, "padding_token": 256, "min_file_size_for_dl": 3,
    "medium_confidence_threshold": 0.5, "thresholds": {"elf": 0.9},
    "target_labels_space": ["python", "elf", "randomtxt"], "overwrite_map": {"randomtxt": "txt"},
}  # fmt: skip
KINDS = {"python": {"is_text": True}, "elf": {"is_text": False}, "txt": {"is_text": True}}


@pytest.fixture(scope="module")
def file_types(tmp_path_factory: pytest.TempPathFactory) -> FileTypes:
    package = tmp_path_factory.mktemp("magika")
    for name, content in {
        "models/standard_v3_3/config.min.json": CONFIG,
        "config/content_types_kb.min.json": KINDS,
    }.items():
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text(json.dumps(content))
    return FileTypes(package)


@given(content=st.lists(st.sampled_from([b" ", b"\n", b"a", b"\x00", b"\xff"]), max_size=40).map(b"".join))
def test_a_file_is_its_first_and_last_bytes_without_white_space_around_and_padded(
    file_types: FileTypes, tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "sample"
    path.write_bytes(content)
    head, tail = content[:16].lstrip()[:8], content[-16:].rstrip()[-6:]
    if len(head) < 3:
        with pytest.raises(ValueError, match="3 are needed"):
            file_types.features(path)
        return
    expected = [*head, *[256] * (8 - len(head)), *[256] * (6 - len(tail)), *tail]
    assert file_types.features(path).tolist() == expected


@pytest.mark.parametrize(
    ("scores", "label"),
    [
        ([0.6, 0.3, 0.1], "python"),
        ([0.4, 0.3, 0.3], "txt"),
        ([0.04, 0.95, 0.01], "elf"),
        ([0.1, 0.85, 0.05], "unknown"),
        ([0.1, 0.1, 0.8], "txt"),
    ],
)
def test_a_score_below_its_threshold_leaves_a_general_type(
    file_types: FileTypes, scores: list[float], label: str
) -> None:
    verdict = file_types.verdict(np.array(scores, np.float32))
    assert verdict.label == label
    assert verdict.score == pytest.approx(max(scores))


def test_padding_plays_no_part_in_an_embedding() -> None:
    hidden = np.array([[[3.0, 4.0], [3.0, 4.0], [99.0, -99.0]]], np.float32)
    assert embed(hidden, np.array([[1, 1, 0]], np.int64)).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]


def test_the_nearest_is_never_the_vector_itself() -> None:
    vectors = np.array([[1, 0], [0, 1], [0.8, 0.6]], np.float32)
    similarity, nearest = neighbours(vectors)
    assert nearest == [2, 2, 0]
    assert np.allclose(np.diag(similarity), 1.0)


def test_the_known_samples_are_files_that_exist(tmp_path: Path) -> None:
    from gateway.cli.tour.steps import samples

    found = samples(tmp_path, tmp_path / "registry.db")
    assert {"python", "proto", "elf"} <= {sample.label for sample in found}
    assert all(sample.path.is_file() for sample in found)
