"""The first steps of a worker, which bind it to its gateway."""

from __future__ import annotations

import pytest

from backends import worker

#: No kernel knows this option of prctl.
UNKNOWN = 2**31 - 1


def test_what_the_kernel_refuses_is_told_with_what_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    worker._prctl(UNKNOWN, 0, "the worker may stay")
    assert capfd.readouterr().err == f"prctl({UNKNOWN}, 0) is refused (Invalid argument): the worker may stay\n"


def test_what_the_kernel_grants_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    worker._prctl(worker._PR_SET_PDEATHSIG, 0, "")  # 0: no signal, as this process has it
    assert capfd.readouterr().err == ""
