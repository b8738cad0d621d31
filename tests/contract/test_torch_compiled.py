"""Programs that are compiled: before, as machine code in a package, or while they load."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

from backends.errors import InvalidInput
from support import torch_models
from support.loading import Loading, run, tensors
from support.torch_models import LINEAR, ROWS

_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal

compiles = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
#: A compiler on a busy machine takes its time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def inductor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all that is compiled here: precompiled headers, and what the processor can do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@compiles
def test_a_compiled_package_is_served_where_the_operator_allows_it(
    tmp_path: Path, inductor: None, temporary: Path
) -> None:
    file = torch_models.compiled(tmp_path / "model")
    assert "allow_code = true, which the operator sets" in refusal(file)
    allowed = {"allow_code": "true"}
    assert '{ name: "INPUT__1"' in refusal(file, options=allowed)
    inputs = tensors(("INPUT__0", "FP32", -1, 4), ("INPUT__1", "FP32", -1, 4))
    outputs = tensors(("sum", "FP32", -1, 4), ("difference", "FP32", -1, 4))
    backend, signature = load(file, options=allowed, inputs=inputs, outputs=outputs, instances=2)
    assert signature.platform == "pytorch_aotinductor"
    for rows in (1, 2):
        answers = run(backend, INPUT__0=ROWS[:rows] * 3, INPUT__1=ROWS[:rows])
        np.testing.assert_array_equal(answers["sum"], ROWS[:rows] * 4)
        np.testing.assert_array_equal(answers["difference"], ROWS[:rows] * 2)
    with pytest.raises(InvalidInput, match=r"'INPUT__1' has shape \[2, 3\], the model takes \[-1, 4\]"):
        run(backend, INPUT__0=ROWS, INPUT__1=ROWS[:, :3])
    with pytest.raises(InvalidInput, match="expected size 1==2"):
        run(backend, INPUT__0=ROWS, INPUT__1=ROWS[:1])
    assert "1 inputs are declared, the model takes 2" in refusal(
        file, options=allowed, inputs=inputs[:1], outputs=outputs
    )
    assert list(temporary.glob("aotinductor-*")), "it is unpacked while it is served"
    backend.unload()
    gc.collect()
    assert list(temporary.glob("aotinductor-*")) == []


@compiles
def test_a_program_that_is_compiled_while_it_loads_gives_the_same(program: Path, inductor: None) -> None:
    backend, signature = load(program, options={"compile": "default"})
    assert signature.max_batch_size == 32
    np.testing.assert_allclose(run(backend, x=ROWS)["OUTPUT__0"], LINEAR, rtol=1e-5)


def test_machine_code_is_refused_before_it_is_touched(tmp_path: Path, program: Path, temporary: Path) -> None:
    """Whatever else the archive holds, torch would load the shared objects in it."""
    changes = {"data/aotinductor/model/model.so": b"\x7fELF rubbish"}
    text = refusal(torch_models.rewrite(program, changes, tmp_path / "model.pt2"))
    assert "allow_code = true, which the operator sets" in text
    text = refusal(tmp_path / "model.pt2", options={"allow_code": "true"})
    assert "model.pt2" in text
    changes = {f"data/aotinductor/{name}/model.so": b"" for name in ("a", "b")}
    text = refusal(torch_models.rewrite(program, changes, tmp_path / "two.pt2"), options={"allow_code": "true"})
    assert "2 models (a, b)" in text
    gc.collect()
    assert list(temporary.glob("aotinductor-*")) == []
