"""Bad artifacts, in every framework that they concern: each is an error at load that a person understands.

Nothing of the artifact is run (its payload would make a file), and nothing is left: no file, no open file, no mapping.
What each framework has beyond these is tested in files of its own.
"""

from __future__ import annotations

import gc
import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backends import loader
from support import onnx_models, payloads, tf_models
from support.loading import Loading

#: Writes an artifact into a folder.
Build = Callable[[Path], None]


@pytest.fixture
def bad(request: pytest.FixtureRequest, planted: Path) -> Bad:
    return Bad(request, planted)


class Bad:
    """Writes bad artifacts. Each method has the name of its case, which begins with the framework."""

    def __init__(self, request: pytest.FixtureRequest, planted: Path) -> None:
        self._request = request
        self._planted = planted

    def good(self, name: str) -> Path:
        """A good artifact: the fixture of that name."""
        found: Path = self._request.getfixturevalue(name)
        return found

    # --- onnx

    def onnx_pickle(self, folder: Path) -> None:
        onnx_models.save(payloads.pickled(self._planted), folder)

    def onnx_truncated(self, folder: Path) -> None:
        content = onnx_models.add_one().SerializeToString()
        onnx_models.save(content[: len(content) // 2], folder)

    def onnx_truncated_weights(self, folder: Path) -> None:
        onnx_models.save(onnx_models.with_external_data("weights.bin"), folder)
        (folder / "weights.bin").write_bytes(onnx_models.EXTERNAL_WEIGHTS.tobytes()[:-1])

    def onnx_newer(self, folder: Path) -> None:
        model = onnx_models.add_one()
        model.opset_import[0].version = 999
        onnx_models.save(model, folder)

    def onnx_several(self, folder: Path) -> None:
        for name in ("a.onnx", "b.onnx"):
            onnx_models.save(onnx_models.add_one(), folder, name)

    # --- torch

    def torch_pickle(self, folder: Path) -> None:
        (folder / "model.pt").write_bytes(payloads.pickled(self._planted))

    def torch_pickle_in_zip(self, folder: Path) -> None:
        from support import torch_models

        torch_models.pickled(folder / "model.pt", self._planted, "zip")

    def torch_bomb(self, folder: Path) -> None:
        from support import torch_models

        torch_models.bomb(self.good("script"), folder / "model.pt")

    def torch_newer(self, folder: Path) -> None:
        from support import torch_models

        torch_models.rewrite(self.good("script"), {"version": b"99\n"}, folder / "model.pt")

    def torch_truncated(self, folder: Path) -> None:
        _cut(self.good("script"), folder / "model.pt")

    def torch_truncated_program(self, folder: Path) -> None:
        _cut(self.good("program"), folder / "model.pt2")

    def torch_truncated_weights(self, folder: Path) -> None:
        shutil.copytree(self.good("bert"), folder, dirs_exist_ok=True)
        _cut(folder / "model.safetensors", folder / "model.safetensors")

    def torch_several(self, folder: Path) -> None:
        shutil.copy(self.good("script"), folder / "a.pt")
        shutil.copy(self.good("program"), folder / "b.pt2")

    # --- tf

    def tf_pickle_as_keras(self, folder: Path) -> None:
        (folder / "model.keras").write_bytes(payloads.pickled(self._planted))

    def tf_pickle_as_savedmodel(self, folder: Path) -> None:
        (folder / "saved_model.pb").write_bytes(payloads.pickled(self._planted))

    def tf_pickle_as_tflite(self, folder: Path) -> None:
        (folder / "model.tflite").write_bytes(payloads.pickled(self._planted))

    def tf_pickle_as_weights(self, folder: Path) -> None:
        """Keras reads weights from numpy's archives as well, whose arrays may be pickles."""
        weights = io.BytesIO()
        array = np.array([payloads.Payload(self._planted)], object)
        np.savez(weights, allow_pickle=True, **{"layers/dense": array})
        with zipfile.ZipFile(self.good("packed")) as source, zipfile.ZipFile(folder / "model.keras", "w") as target:
            for name in source.namelist():
                if name != "model.weights.h5":
                    target.writestr(name, source.read(name))
            target.writestr("model.weights.npz", weights.getvalue())

    def tf_bomb(self, folder: Path) -> None:
        tf_models.rewritten(self.good("packed"), folder / "model.keras", assets__bin=bytes(100 << 20))

    def tf_lambda(self, folder: Path) -> None:
        tf_models.build("keras_lambda", folder, target=str(self._planted))

    def tf_missing_variables(self, folder: Path) -> None:
        shutil.copytree(self.good("plain"), folder, dirs_exist_ok=True)
        (folder / "variables" / "variables.data-00000-of-00001").unlink()

    def tf_newer(self, folder: Path) -> None:
        """A graph with an operator that this release does not have."""
        shutil.copytree(self.good("plain"), folder, dirs_exist_ok=True)
        graph = folder / "saved_model.pb"
        graph.write_bytes(graph.read_bytes().replace(b"AddV2", b"AddV9"))

    def tf_truncated_keras(self, folder: Path) -> None:
        _cut(self.good("packed"), folder / "model.keras")

    def tf_truncated_savedmodel(self, folder: Path) -> None:
        shutil.copytree(self.good("plain"), folder, dirs_exist_ok=True)
        _cut(folder / "saved_model.pb", folder / "saved_model.pb")

    def tf_truncated_tflite(self, folder: Path) -> None:
        _cut(self.good("flat"), folder / "model.tflite")

    def tf_several(self, folder: Path) -> None:
        shutil.copy(self.good("packed"), folder / "a.keras")
        shutil.copy(self.good("flat"), folder / "b.tflite")


def _cut(source: Path, target: Path) -> None:
    content = source.read_bytes()
    target.write_bytes(content[: len(content) // 2])


#: Case -> words that the error has to hold: what is wrong, and what to do.
CASES = {
    "onnx_pickle": ("model.onnx is no ONNX model", "copy the whole file, or export it again"),
    "onnx_truncated": ("model.onnx is no ONNX model, or only a part of one", "copy the whole file"),
    "onnx_truncated_weights": ("model.onnx cannot be loaded", "copy the whole folder"),
    "onnx_newer": ("999", "export the model with an opset"),
    "onnx_several": ("holds several models (a.onnx, b.onnx)", "keep one"),
    "torch_pickle": ("model.pt is a pickle", "Convert it once, where you trust it"),
    "torch_pickle_in_zip": ("model.pt is a pickle", "Convert it once, where you trust it"),
    "torch_bomb": ("would grow from", "save the model again"),
    "torch_newer": ("newer torch (file format 99", "install a newer one"),
    "torch_truncated": ("model.pt is no whole torch archive", "copy the whole file"),
    "torch_truncated_program": ("model.pt2 is no whole torch archive", "copy the whole file"),
    "torch_truncated_weights": ("cannot be loaded", "copy the whole"),
    "torch_several": ("holds several models (a.pt, b.pt2)", "keep one"),
    "tf_pickle_as_keras": ("model.keras is no Keras 3 model", "save it again"),
    "tf_pickle_as_savedmodel": ("saved_model.pb", "copy the whole"),
    "tf_pickle_as_tflite": ("model.tflite is no .tflite model", "convert the model again"),
    "tf_pickle_as_weights": ("model.keras cannot be loaded", "allow_pickle"),
    "tf_bomb": ("would unpack to", "save it again"),
    "tf_lambda": ("Lambda layer (named 'evil')", "model.export"),
    "tf_missing_variables": ("the variables of artifact cannot be read", "copy the whole folder"),
    "tf_newer": ("AddV9", "export the model without it"),
    "tf_truncated_keras": ("model.keras is no Keras 3 model, or only a part of one", "copy the whole file"),
    "tf_truncated_savedmodel": ("saved_model.pb", "copy the whole"),
    "tf_truncated_tflite": ("model.tflite is no .tflite model, or only a part of one", "copy the whole file"),
    "tf_several": ("holds several models (a.keras, b.tflite)", "keep one"),
}


@pytest.mark.parametrize(("case", "words"), CASES.items(), ids=CASES.keys())
def test_a_bad_artifact_is_refused_with_the_mend_and_leaves_nothing(
    bad: Bad, tmp_path: Path, planted: Path, monkeypatch: pytest.MonkeyPatch, case: str, words: tuple[str, ...]
) -> None:
    framework = case.partition("_")[0]
    if not loader.is_installed(framework):
        pytest.skip(f"{framework} is not installed: {loader.install_line(framework)}")
    folder = tmp_path / "artifact"
    folder.mkdir()
    build: Build = getattr(bad, case)
    build(folder)
    live_in(tmp_path, monkeypatch)
    before = files_of(tmp_path)
    text = Loading(framework).refusal(folder)
    for word in words:
        assert word in text
    assert not planted.exists()
    assert files_of(tmp_path) == before
    gc.collect()
    assert held_below(tmp_path) == []


def live_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have home, temporary files and the working folder below that folder."""
    for name, variable in (("home", "HOME"), ("temporary", "TMPDIR")):
        (folder / name).mkdir()
        monkeypatch.setenv(variable, str(folder / name))
    (folder / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(folder / "work")


def files_of(folder: Path) -> dict[str, str]:
    """Every folder ("") and file (its digest) below."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def held_below(folder: Path) -> list[str]:
    """Files below the folder that this process has open or mapped."""
    entries = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    mapped = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [path for path in (*entries, *mapped) if path.startswith(f"{folder}/")]
