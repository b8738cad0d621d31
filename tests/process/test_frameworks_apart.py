"""A real worker holds its own framework and no other, and no library of the server: by what is mapped into it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from backends.spec import ModelSpec
from backends.tensor import from_numpy
from support import tf_models
from support.subjects import SUBJECTS, Subject, require
from support.workers import numbers, running, submit

#: Packages with compiled parts, which a process cannot import without mapping them.
FRAMEWORKS: Final = frozenset(
    {"onnxruntime", "torch", "tensorflow", "tensorrt_llm", "onnx", "jaxlib", "ai_edge_litert"}
)
SERVER: Final = frozenset({"grpc", "uvloop", "httptools", "sqlalchemy", "pydantic_core", "orjson"})


@pytest.fixture(scope="module", autouse=True)
def _no_builder_left() -> Iterator[None]:
    yield
    tf_models.stop()


def packages_in(pid: int) -> set[str]:
    """The installed packages of which the process has a compiled part."""
    paths = {Path(entry.path) for entry in psutil.Process(pid).memory_maps() if "/site-packages/" in entry.path}
    return {str(path).partition("/site-packages/")[2].split("/")[0].split(".")[0] for path in paths}


def test_a_package_of_the_server_would_be_seen() -> None:
    code = f"import {', '.join(SERVER)}; print('done', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert packages_in(process.pid) >= SERVER
        process.communicate(b"\n")


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.framework for subject in SUBJECTS])
async def test_a_worker_holds_its_own_framework_only(subject: Subject, tmp_path: Path) -> None:
    require(subject)
    spec = subject.identity(tmp_path, ("FP32",), (-1, -1))
    await holds_only(spec, "IN_FP32", {subject.package} - {""})


async def test_so_does_one_that_takes_a_library_of_many_frameworks(tmp_path: Path) -> None:
    """transformers looks for every framework that is installed."""
    pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")
    pytest.importorskip("transformers", reason="pip install 'tensorgate[torch]'")
    from support import torch_models

    spec = ModelSpec("encoder", 1, "torch", str(torch_models.encoder(tmp_path)))
    await holds_only(spec, "input_ids", {"torch"}, np.int64)


async def holds_only(spec: ModelSpec, name: str, packages: set[str], datatype: npt.DTypeLike = np.float32) -> None:
    """Once it has loaded and run the model, the worker has these packages of all frameworks."""
    async with running(spec) as run:
        process = await run.ready()
        tensor = from_numpy(name, np.ones((1, 2), datatype))
        assert len(numbers(await submit(run.channel, [tensor]).future)) >= 2
        found = packages_in(process.pid)
        assert found & FRAMEWORKS == packages
        assert not found & SERVER
