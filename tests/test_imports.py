"""Each side of the process border imports only what it may: import-linter reads the source, this looks at what ran."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FRAMEWORKS = {"torch", "tensorflow", "onnxruntime", "tensorrt_llm"}
SERVER_LIBRARIES = {"litestar", "grpc", "sqlalchemy", "uvicorn", "pydantic", "google.protobuf"}
CODE = "import importlib, json, sys; importlib.import_module(sys.argv[1]); print(json.dumps(sorted(sys.modules)))"


def modules_after_importing(name: str) -> set[str]:
    """What a new interpreter has loaded after importing one module, started as workers are."""
    command = [sys.executable, "-P", "-c", CODE, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["gateway.bootstrap", "gateway.cli.main"])
def test_the_gateway_imports_no_framework(name: str) -> None:
    loaded = modules_after_importing(name)
    assert name in loaded
    assert not FRAMEWORKS & loaded


def test_a_worker_imports_no_server_library_and_no_framework_before_it_is_told_which() -> None:
    loaded = modules_after_importing("backends.worker")
    assert "backends.worker" in loaded
    assert not (FRAMEWORKS | SERVER_LIBRARIES | {"gateway", "registry"}) & loaded


def test_the_registry_imports_nothing_of_the_gateway_or_of_a_transport() -> None:
    assert not (FRAMEWORKS | {"gateway", "litestar", "grpc", "uvicorn"}) & modules_after_importing("registry.store")
