"""Which file the ONNX backend loads, which it refuses, and where it lets weights lie."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from support import onnx_models
from support.loading import Loading, run
from support.onnx_models import build, load, save, value

pytest.importorskip("onnxruntime", reason="pip install 'tensorgate[onnx]'")

from backends.contract import Backend
from backends.onnx import graph
from backends.onnx.backend import OnnxBackend

FP32 = np.float32
_ONNX = Loading("onnx")
refusal, spec = _ONNX.refusal, _ONNX.spec


def test_the_model_is_a_file_or_a_folder_with_one(tmp_path: Path) -> None:
    model = onnx_models.add_one()
    save(model, tmp_path / "default")
    save(model, tmp_path / "other", "resnet.onnx")
    save(model, tmp_path / "nested" / "model.onnx")
    for path in (
        tmp_path / "default", tmp_path / "default" / "model.onnx", tmp_path / "other",
        tmp_path / "other" / "resnet.onnx", tmp_path / "nested",
    ):  # fmt: skip
        backend = OnnxBackend()
        backend.load(spec(path))
        np.testing.assert_array_equal(_plus_one(backend), [[2, 3]])


def _plus_one(backend: Backend) -> Any:
    return run(backend, x=np.array([[1, 2]], FP32))["y"]


def test_model_onnx_wins_over_other_files_beside_it(tmp_path: Path) -> None:
    save(onnx_models.rubbish(), tmp_path, "other.onnx")
    backend, _ = load(onnx_models.add_one(), tmp_path)
    np.testing.assert_array_equal(_plus_one(backend), [[2, 3]])


def test_several_candidates_are_listed(tmp_path: Path) -> None:
    save(onnx_models.add_one(), tmp_path, "b.onnx")
    save(onnx_models.add_one(), tmp_path, "a.onnx")
    assert "a.onnx, b.onnx" in refusal(tmp_path)


def test_a_folder_without_a_model_and_a_missing_path_are_refused(tmp_path: Path) -> None:
    assert "holds no .onnx file" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nowhere")


WHOLE = onnx_models.add_one().SerializeToString()
NO_MODELS = {
    "text": onnx_models.rubbish(),
    "empty": b"",
    "zip": b"PK\x03\x04" + bytes(range(256)),
    "zeros": bytes(1000),
    "endless number": b"\xff" * 64,
    "lying length": b"\x3a\xff\xff\xff\xff\x7f",
    "group": b"\x0b" * 64,
    "no graph": b"\x08\x0a",
}


@pytest.mark.parametrize("content", NO_MODELS.values(), ids=NO_MODELS.keys())
def test_a_file_that_is_no_onnx_model_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "model.onnx" in refusal(save(content, tmp_path))


@pytest.mark.parametrize("size", range(1, len(WHOLE), 7))
def test_a_model_that_is_cut_short_anywhere_is_refused(tmp_path: Path, size: int) -> None:
    assert "model.onnx" in refusal(save(WHOLE[:size], tmp_path))


def test_an_unreadable_file_is_refused(ordinary_user: None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(WHOLE, Path(folder))
        (Path(folder) / "model.onnx").chmod(0)
        assert "cannot be read" in refusal(Path(folder))


def test_a_file_in_the_format_of_ort_is_not_taken_for_one(tmp_path: Path) -> None:
    """onnxruntime would choose the format by the suffix, and each has its own rules about other files."""
    save(WHOLE, tmp_path, "model.ort")
    backend = OnnxBackend()
    backend.load(spec(tmp_path / "model.ort"))
    np.testing.assert_array_equal(_plus_one(backend), [[2, 3]])


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    model = build([helper.make_node("NoSuchOperator", ["x"], ["y"])], [value("x")], [value("y")])
    assert "NoSuchOperator" in refusal(save(model, tmp_path))


# --- external data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["inside", "subfolder", "link_inside"])
def test_external_data_inside_the_folder_is_read(tmp_path: Path, layout: str) -> None:
    backend = OnnxBackend()
    backend.load(spec(onnx_models.external_data_layout(tmp_path / "model", layout)))
    answer = run(backend, x=np.zeros((1, 4), FP32))["y"]
    np.testing.assert_array_equal(answer, [onnx_models.EXTERNAL_WEIGHTS])


@pytest.mark.parametrize(
    ("layout", "reason"),
    [("parent", "outside"), ("absolute", "absolute"), ("link", "outside"), ("missing", "does not exist")],
)
def test_external_data_elsewhere_is_refused_with_tensor_location_and_mend(
    tmp_path: Path, layout: str, reason: str
) -> None:
    text = refusal(onnx_models.external_data_layout(tmp_path / "model", layout))
    assert reason in text
    assert "'w'" in text
    assert "save_as_external_data" in text


@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
@pytest.mark.parametrize(
    "location", ["../secret.bin", "data/../../secret.bin", "", "a\0b", ".", "*/_ORT_MEM_ADDR_/*", "/dev/zero"]
)
def test_external_data_is_found_wherever_it_hides(tmp_path: Path, place: str, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(onnx_models.EXTERNAL_WEIGHTS.tobytes())
    (tmp_path / "model" / "data").mkdir(parents=True)
    text = refusal(save(onnx_models.with_external_data(location, place=place), tmp_path / "model"))
    assert "has its data at" in text


def test_a_linked_model_may_have_its_data_beside_the_file_it_points_to(tmp_path: Path) -> None:
    """The layout of the Hugging Face cache: a snapshot is a folder of links into a folder of blobs."""
    blobs = save(onnx_models.with_external_data("weights.bin"), tmp_path / "blobs", "1a2b")
    (blobs / "3c4d").write_bytes(onnx_models.EXTERNAL_WEIGHTS.tobytes())
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.onnx").symlink_to("../blobs/1a2b")
    (snapshot / "weights.bin").symlink_to("../blobs/3c4d")
    backend = OnnxBackend()
    backend.load(spec(snapshot))
    np.testing.assert_array_equal(run(backend, x=np.zeros((1, 4), FP32))["y"], [onnx_models.EXTERNAL_WEIGHTS])


def test_external_data_that_is_too_short_is_refused(tmp_path: Path) -> None:
    save(onnx_models.with_external_data("weights.bin"), tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"1234")
    assert "model.onnx cannot be loaded" in refusal(tmp_path)


# --- reading files ---------------------------------------------------------------------------------------------------


def test_the_graph_reader_finds_what_the_onnx_package_finds() -> None:
    model = onnx_models.with_external_data("a/b.bin", place="branch", offset=0)
    model.graph.input.append(value("open", "FP32", None))
    facts = graph.read(memoryview(model.SerializeToString()))
    assert facts.external == [graph.External("weights", "a/b.bin")]
    assert facts.operators == {"If", "Identity", "Add"}
    assert facts.unranked == {"open"}


MUTATIONS: dict[str, Callable[[bytes, int], bytes]] = {
    "a byte turned round": lambda data, at: data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :],
    "a byte left out": lambda data, at: data[:at] + data[at + 1 :],
    "a byte too many": lambda data, at: data[:at] + b"\xff" + data[at:],
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_graph_reader_survives_damage_anywhere(mutation: Callable[[bytes, int], bytes]) -> None:
    """It gives facts or says ValueError; nothing else, and never more than the file holds."""
    data = onnx_models.with_external_data("weights.bin", place="branch").SerializeToString()
    outcomes = set()
    for at in range(len(data)):
        try:
            facts = graph.read(memoryview(mutation(data, at)))
        except ValueError:
            outcomes.add("refused")
        else:
            outcomes.add("read")
            assert sum(len(item.location) for item in facts.external) <= len(data)
    assert outcomes == {"refused", "read"}
