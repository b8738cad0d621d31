"""A framework in an environment of its own, which has numpy, msgspec and that framework, and nothing of ours."""

from __future__ import annotations

import importlib.util
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from backends.spec import ModelSpec
from backends.tensor import from_numpy
from gateway.cli.findings import framework
from gateway.settings.schema import Settings
from support import onnx_models
from support.workers import ask, echo, running

BARE = ("numpy", "numpy.libs", "msgspec")
ONNX = (*BARE, "onnxruntime", "flatbuffers", "packaging", "google")


def environment(folder: Path, packages: Sequence[str]) -> str:
    """A virtual environment with links to these packages of ours; its interpreter."""
    venv.create(folder, symlinks=True)
    (theirs,) = folder.glob("lib/python*/site-packages")
    numpy = importlib.util.find_spec("numpy")
    assert numpy is not None
    assert numpy.origin is not None
    ours = Path(numpy.origin).parents[1]
    for name in packages:
        if (ours / name).exists():
            (theirs / name).symlink_to(ours / name)
    return str(folder / "bin" / "python")


def imports(interpreter: str, module: str) -> bool:
    return (
        subprocess.run([interpreter, "-P", "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    )


async def test_an_onnx_model_runs_in_an_environment_that_has_nothing_of_ours(tmp_path: Path) -> None:
    interpreter = environment(tmp_path / "venv", ONNX)
    assert imports(interpreter, "onnxruntime")
    assert not any(imports(interpreter, module) for module in ("backends", "gateway", "litestar", "torch"))
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.add_one(("length",)).SerializeToString())
    async with running(ModelSpec("m", 1, "onnx", str(model)), interpreter=interpreter) as run:
        process = await run.ready()
        assert await ask(run.channel, [from_numpy("x", np.ones(1, np.float32))]) == [2.0]
        assert psutil.Process(process.pid).cmdline()[0] == interpreter


async def test_only_the_backends_are_lent_to_another_environment(tmp_path: Path) -> None:
    """A model whose code imports something of the gateway's environment must fail there as it would on its own."""
    interpreter = environment(tmp_path / "venv", BARE)
    async with running(echo(), interpreter=interpreter) as run:
        await run.ready()
        assert await ask(run.channel) == [1.0]
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.add_one(("length",)).SerializeToString())
    async with running(ModelSpec("m", 1, "onnx", str(model)), interpreter=interpreter) as run:
        assert "onnxruntime" in await run.given_up()


async def test_our_version_counts_and_not_one_that_is_installed_there(tmp_path: Path) -> None:
    interpreter = environment(tmp_path / "venv", BARE)
    (theirs,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (theirs / "backends").mkdir()
    (theirs / "backends" / "__init__.py").write_text("raise SystemExit('an old version')")
    async with running(echo(), interpreter=interpreter) as run:
        await run.ready()


@pytest.mark.parametrize(
    ("packages", "name", "state", "text"),
    [
        (ONNX, "onnx", "ok", "onnxruntime 1."),
        (BARE, "onnx", "wrong", "has no onnxruntime"),
        (BARE, "echo", "ok", "Python 3."),
        ((), "echo", "wrong", "install numpy and msgspec for that interpreter"),
    ],
)
def test_check_says_what_an_environment_lacks(
    tmp_path: Path, packages: Sequence[str], name: str, state: str, text: str
) -> None:
    interpreter = environment(tmp_path / "venv", packages)
    found = framework(name, Settings(data_dir=tmp_path, interpreters={name: Path(interpreter)}), needed=False)
    assert (found.state, found.subject) == (state, f"framework {name}")
    assert text in found.text
    assert interpreter in found.text
