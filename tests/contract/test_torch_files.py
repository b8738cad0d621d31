"""Which file the torch backend loads, and which it refuses: no model, half of one, or one that grows."""

from __future__ import annotations

import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from support import torch_models
from support.loading import Loading
from support.torch_models import LINEAR_IO

FP32 = np.float32
_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


def test_the_model_is_a_file_or_a_folder_with_one(tmp_path: Path, program: Path, script: Path) -> None:
    shutil.copytree(program.parent, tmp_path / "default")
    shutil.copytree(program.parent, tmp_path / "nested" / "model.pt2")
    for number, name in enumerate(("resnet.pt2", "resnet.bin", "resnet")):
        (tmp_path / str(number)).mkdir()
        shutil.copy(program, tmp_path / str(number) / name)
        (tmp_path / str(number) / "labels.txt").write_text("a")
    for path in (tmp_path / "default", tmp_path / "nested", tmp_path / "0", tmp_path / "1", tmp_path / "2", program):
        assert load(path)[0].infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"].shape == (1, 3)
    shutil.copy(script, tmp_path / "0" / "model.pt")
    load(tmp_path / "0", **LINEAR_IO)


def test_several_candidates_are_listed(tmp_path: Path, program: Path, script: Path) -> None:
    shutil.copy(program, tmp_path / "b.pt2")
    shutil.copy(script, tmp_path / "a.pt")
    assert "several models (a.pt, b.pt2)" in refusal(tmp_path)
    shutil.copy(program, tmp_path / "model.pt2")
    shutil.copy(script, tmp_path / "model.pt")
    assert "several models (model.pt2, model.pt)" in refusal(tmp_path)
    torch_models.encoder(tmp_path / "encoder")
    shutil.copy(script, tmp_path / "encoder" / "a.pt")
    assert "a.pt, config.json with safetensors" in refusal(tmp_path / "encoder")


def test_a_folder_without_a_model_and_a_missing_path_are_refused(tmp_path: Path) -> None:
    assert "holds no model of torch" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nowhere")
    torch_models.python_class(tmp_path / "class")
    assert "class = module:Class and allow_code = true" in refusal(tmp_path / "class")
    (tmp_path / "class" / "model.py").unlink()
    assert "without an architecture" in refusal(tmp_path / "class")
    assert "without an architecture" in refusal(tmp_path / "class" / "weights.safetensors")


def test_kinds_are_told_by_content_and_not_by_name(tmp_path: Path, program: Path, script: Path) -> None:
    shutil.copy(script, tmp_path / "script.pt2")
    shutil.copy(program, tmp_path / "program.pt")
    load(tmp_path / "script.pt2", **LINEAR_IO)
    load(tmp_path / "program.pt")


FOREIGN = {
    "empty": (b"", "is empty"),
    "text": (b"hello, this is no model" * 20, "in no format of torch"),
    "gguf": (b"GGUF\x03\x00\x00\x00", "GGUF"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "HDF5"),
    "zip head": (b"PK\x03\x04" + bytes(range(256)), "no whole torch archive"),
}


@pytest.mark.parametrize(("content", "words"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    assert words in refusal(tmp_path)


def test_a_zip_that_is_no_model_is_refused(tmp_path: Path) -> None:
    for number, names in enumerate((["root/text"], ["root/text", "root/version"], ["exported_program.json"])):
        with zipfile.ZipFile(tmp_path / f"{number}.pt", "w") as archive:
            for name in names:
                archive.writestr(name, "3")
    assert "no version of the format is in it" in refusal(tmp_path / "0.pt")
    assert "is a zip archive and no model of torch (it holds text" in refusal(tmp_path / "1.pt")
    assert "torch 2.7 or older" in refusal(tmp_path / "2.pt")


@pytest.mark.parametrize("kind", ["script", "program"])
@pytest.mark.parametrize("tenths", range(1, 10))
def test_an_archive_that_is_cut_short_anywhere_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, tenths: int
) -> None:
    content = request.getfixturevalue(kind).read_bytes()
    (tmp_path / "model.pt").write_bytes(content[: len(content) * tenths // 10])
    assert "no whole torch archive" in refusal(tmp_path, **LINEAR_IO)


@pytest.mark.parametrize("kind", ["script", "program"])
def test_an_archive_that_grows_out_of_proportion_is_refused_before_it_is_unpacked(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    text = refusal(torch_models.bomb(request.getfixturevalue(kind), tmp_path / "model.pt"), **LINEAR_IO)
    assert "would grow from" in text
    assert str(256 << 20)[:4] in text


def test_members_of_the_same_name_are_refused(tmp_path: Path, script: Path) -> None:
    """Two readers may take different ones of them."""
    shutil.copy(script, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt", "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("model/data.pkl", b"other")
    assert "members of the same name" in refusal(tmp_path, **LINEAR_IO)


def test_an_archive_of_a_newer_format_names_both_versions(tmp_path: Path, script: Path, program: Path) -> None:
    for source, member in ((script, "version"), (program, ".data/version")):
        text = refusal(torch_models.rewrite(source, {member: b"99\n"}, tmp_path / source.name), **LINEAR_IO)
        assert "newer torch (file format 99" in text
        assert torch.__version__ in text


def test_a_script_with_an_operator_of_the_future_names_it(tmp_path: Path, script: Path) -> None:
    def change(content: bytes) -> bytes:
        return content.replace(b"torch.linear(", b"torch.quantum_linear(")

    with zipfile.ZipFile(script) as archive:
        names = [name.partition("/")[2] for name in archive.namelist() if name.endswith(".py")]
    text = refusal(torch_models.rewrite(script, dict.fromkeys(names, change), tmp_path / "model.pt"), **LINEAR_IO)
    assert "aten::quantum_linear" in text
    assert "newer torch" in text
