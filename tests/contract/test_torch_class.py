"""A Python class as a model of the torch backend, which runs only where the operator allows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

from backends.errors import OutOfMemory
from support import torch_models
from support.loading import Loading, run
from support.torch_models import ALLOWED, LINEAR, LINEAR_IO, ROWS

_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


@pytest.mark.parametrize("weights", ["safetensors", "pt"])
def test_a_class_is_served_where_the_operator_allows_it(tmp_path: Path, weights: str) -> None:
    backend, signature = load(torch_models.python_class(tmp_path, weights=weights), options=ALLOWED, **LINEAR_IO)
    np.testing.assert_allclose(run(backend, x=ROWS)["y"], LINEAR + 100, rtol=1e-6)
    assert signature.max_batch_size == 0


CLASS_FAULTS = [
    ({"class": "model:Net", "allow_code": "false"}, "allow_code = true, which the operator sets"),
    ({"class": "net:Net", "allow_code": "true"}, "has no net.py"),
    ({"class": "model:Nett", "allow_code": "true"}, "model.py has no torch.nn.Module Nett"),
    ({**ALLOWED, "class_arguments": '{"width": 5}'}, "weights.safetensors does not fit Net"),
    ({**ALLOWED, "class_arguments": '{"height": 5}'}, "model:Net cannot be made: TypeError"),
    ({**ALLOWED, "class_arguments": "[]"}, "option class_arguments"),
]


@pytest.mark.parametrize(("given", "words"), CLASS_FAULTS)
def test_what_is_wrong_with_a_class_is_said(tmp_path: Path, given: dict[str, str], words: str) -> None:
    assert words in refusal(torch_models.python_class(tmp_path), options=given, **LINEAR_IO)


def test_memory_that_there_is_not_fails_the_load_with_the_numbers(tmp_path: Path) -> None:
    source = (
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        self.w = torch.empty(1 << 58)\n"
    )
    (tmp_path / "model.py").write_text(source)
    with pytest.raises(OutOfMemory, match=rf"allocate {1 << 60} bytes.* has \d+ of \d+ bytes free"):
        load(tmp_path, options=ALLOWED, **LINEAR_IO)


def test_a_class_needs_declarations_and_one_file_of_weights(tmp_path: Path) -> None:
    folder = torch_models.python_class(tmp_path)
    assert '{ name: "x"' in refusal(folder, options=ALLOWED)
    shutil.copy(folder / "weights.safetensors", folder / "other.safetensors")
    assert "other.safetensors, weights.safetensors" in refusal(folder, options=ALLOWED, **LINEAR_IO)
