"""Programs that keep state between runs, which all clients would share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

from support import torch_models, torch_modules
from support.loading import Loading, run, tensors
from support.torch_models import ROWS, X_TO_Y, script

FP32 = np.float32
_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


def test_a_script_that_keeps_state_is_served_only_with_a_word_about_it(tmp_path: Path) -> None:
    text = refusal(torch_models.scripted(torch_modules.Counter(), tmp_path / "counter"), **X_TO_Y)
    assert "attribute(s) calls" in text
    assert "reset_calls" in text
    assert "attribute(s) calls" in refusal(
        torch_models.scripted(torch_modules.CountsInBuffer(), tmp_path / "buffer"), **X_TO_Y
    )


def test_reset_method_has_every_request_begin_anew(tmp_path: Path) -> None:
    backend = script(torch_modules.Counter(), tmp_path, options={"reset_method": "reset_calls"}, **X_TO_Y)
    for _ in range(3):
        np.testing.assert_array_equal(run(backend, x=ROWS)["y"], ROWS + 1)


def test_shared_state_goes_on_from_request_to_request_also_from_several_threads(tmp_path: Path) -> None:
    backend = script(torch_modules.Counter(), tmp_path, options={"state": "shared"}, instances=4, **X_TO_Y)
    zeros = np.zeros((1, 4), FP32)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(run, backend, x=zeros) for _ in range(40)]
    assert sorted(int(call.result()["y"][0, 0]) for call in calls) == list(range(1, 41))


def test_another_method_may_be_served_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    backend = script(torch_modules.Counter(), tmp_path, options={"method": "twice"}, **X_TO_Y)
    np.testing.assert_array_equal(run(backend, x=ROWS)["y"], ROWS * 2)
    text = refusal(tmp_path, options={"method": "thrice"}, **X_TO_Y)
    assert "no method 'thrice'; it has" in text
    assert "no method 'zero'" in refusal(tmp_path, options={"reset_method": "zero"}, **X_TO_Y)


def test_an_answer_of_shared_state_is_not_changed_by_the_next_request(tmp_path: Path) -> None:
    outputs = tensors(("OUTPUT__0", "FP32", 1))
    batch = torch_models.rowwise(torch_modules.GivesBuffer(), 4, folder=tmp_path)
    backend, _ = load(batch, outputs=outputs, options={"state": "shared"})
    first = run(backend, x=ROWS)["OUTPUT__0"]
    assert run(backend, x=ROWS)["OUTPUT__0"] == 2
    assert first == 1


def test_an_exported_program_that_changes_a_buffer_is_served_only_with_a_word_about_it(tmp_path: Path) -> None:
    file = torch_models.rowwise(torch_modules.CountsInBuffer(), 4, folder=tmp_path)
    assert "buffer(s) calls" in refusal(file)
    backend, signature = load(file, options={"state": "shared"})
    assert signature.max_batch_size == 0
    assert run(backend, x=ROWS * 0)["OUTPUT__0"][0, 0] == 1
    assert run(backend, x=ROWS * 0)["OUTPUT__0"][0, 0] == 2
