"""Small TensorFlow models for tests, built in a process of their own: the tests' process has no need of TensorFlow.

``build("add_one", folder, shape=[None, 4])`` has the child (``tf_builder``) run the function of that name. The child
is started with the first model, imports TensorFlow once, and ends with the tests.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any


def build(kind: str, folder: Path, **arguments: Any) -> Path:
    """Write a model into ``folder``, making it; returns the folder. Arguments have to be JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    _builder().ask(kind, str(folder), arguments)
    return folder


class _Builder:
    """The child: a line of JSON in, a line of JSON out."""

    def __init__(self) -> None:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "KERAS_HOME": f"{os.devnull}/keras"}
        tests = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "support.tf_builder"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **quiet, "PYTHONPATH": tests},
        )  # fmt: skip
        atexit.register(self.end)

    def ask(self, kind: str, folder: str, arguments: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, folder, arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the builder of TensorFlow models ended with {self._process.wait()}")
        failure = json.loads(answer)
        if failure:
            raise RuntimeError(failure)

    def end(self) -> None:
        if self._process.returncode is None:
            self._process.communicate()


@functools.cache
def _builder() -> _Builder:
    return _Builder()


def stop() -> None:
    """End the builder, if there is one: other tests count this process's children."""
    if _builder.cache_info().currsize:
        _builder().end()
        _builder.cache_clear()


def rewritten(file: Path, target: Path, **members: bytes) -> Path:
    """A copy of an archive with members replaced or added; ``__`` in a name stands for a dot."""
    replaced = {name.replace("__", "."): content for name, content in members.items()}
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for name in source.namelist():
            if name not in replaced:
                copy.writestr(name, source.read(name))
        for name, content in replaced.items():
            copy.writestr(name, content)
    return target
