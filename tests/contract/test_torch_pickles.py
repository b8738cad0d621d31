"""Pickles, which are programs: the torch backend never reads one.

Every attack plants a payload that would make a file. Where torch's own loader falls for it, the test shows that first:
an attack that harms nobody would prove nothing.
"""

from __future__ import annotations

import pickle  # noqa: TID251 - what is refused has to be made first
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from support import torch_models
from support.loading import Loading
from support.torch_models import LINEAR_IO

_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


@pytest.mark.parametrize("form", ["plain", "zip", "legacy"])
@pytest.mark.parametrize("name", ["model.pt", "weights.pkl", "pytorch_model.bin", "model.pth"])
def test_a_pickle_is_refused_unread_with_how_to_convert_it(tmp_path: Path, planted: Path, form: str, name: str) -> None:
    (tmp_path / "model").mkdir()
    file = torch_models.pickled(tmp_path / "model" / name, planted, form)
    if form == "plain":
        pickle.loads(file.read_bytes())  # noqa: S301 - the payload works
    else:
        torch.load(file, weights_only=False)
    planted.unlink()
    for path in (file, file.parent):
        text = refusal(path, **LINEAR_IO)
        assert "is a pickle" in text
        assert "torch.export.save" in text
        assert "save_pretrained" in text
        assert not planted.exists()


@pytest.mark.parametrize("form", ["plain", "zip", "legacy"])
def test_weights_of_a_class_are_never_unpickled(tmp_path: Path, planted: Path, form: str) -> None:
    folder = torch_models.python_class(tmp_path / "class")
    (folder / "weights.safetensors").unlink()
    torch_models.pickled(folder / "weights.pt", planted, form)
    text = refusal(folder, options={"class": "model:Net", "allow_code": "true"}, **LINEAR_IO)
    assert "weights.pt" in text
    assert "state_dict()" in text
    assert not planted.exists()


def test_pickles_beside_a_model_are_left_alone(tmp_path: Path, program: Path, planted: Path) -> None:
    shutil.copy(program, tmp_path / "resnet.pt2")
    torch_models.pickled(tmp_path / "optimizer.pt", planted, "zip")
    torch_models.pickled(tmp_path / "training.bin", planted, "plain")
    load(tmp_path)
    assert not planted.exists()
