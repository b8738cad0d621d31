"""TorchScript that reaches out of the process is refused before any of it runs."""

from __future__ import annotations

import pickle  # noqa: TID251 - what is refused has to be made first
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from support import payloads, torch_models, torch_modules
from support.loading import Loading
from support.torch_models import LINEAR_IO

refusal = Loading("torch").refusal


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (torch_modules.WritesFile, "operator aten.save"),
        (torch_modules.ReadsFile, "operator aten.from_file"),
        (torch_modules.WritesFileInside, "operator aten.save"),
        (torch_modules.WritesFileWhenLoaded, "the word 'save'"),
    ],
)
def test_a_script_that_reaches_for_files_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: type[torch.nn.Module], words: str
) -> None:
    """``torch.save`` and ``torch.from_file`` are part of the language, and a method may run while it is loaded."""
    file = torch_models.scripted(module(), tmp_path / "model")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    assert words in refusal(file, **LINEAR_IO)
    assert list(Path().iterdir()) == []
    if module is torch_modules.WritesFileWhenLoaded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_script: Any = torch.jit.load
            load_script(file)
        assert Path("planted").exists(), "the payload harms nobody"


@pytest.mark.parametrize(
    "disguise", ['getattr(torch, "save")', 'getattr(torch, "sa" "ve")', 'getattr(torch, "\\x73ave")', "ops.aten.save"]
)
def test_a_disguise_does_not_help_a_script_that_runs_while_it_is_loaded(tmp_path: Path, disguise: str) -> None:
    file = torch_models.scripted(torch_modules.WritesFileWhenLoaded(), tmp_path)

    def change(content: bytes) -> bytes:
        assert b"torch.save(" in content
        return content.replace(b"torch.save(", f"{disguise}(".encode())

    with zipfile.ZipFile(file) as archive:
        (member,) = (name.partition("/")[2] for name in archive.namelist() if name.endswith(".py"))
    text = refusal(torch_models.rewrite(file, {member: change}, tmp_path / "disguised.pt"), **LINEAR_IO)
    assert "which files or the network are reached with" in text


def test_the_pickles_of_a_script_hold_no_code(tmp_path: Path, script: Path, planted: Path) -> None:
    """TorchScript reads them with a reader of its own, which knows tensors and the program's classes."""
    for member in ("data.pkl", "constants.pkl"):
        payload = pickle.dumps(payloads.Payload(planted))
        assert "model.pt" in refusal(
            torch_models.rewrite(script, {member: payload}, tmp_path / "model.pt"), **LINEAR_IO
        )
        assert not planted.exists()
