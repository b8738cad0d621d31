"""Devices: which name one, and what is said where there is none."""

from __future__ import annotations

import pytest

from backends.devices import check_cuda, wants_cuda
from backends.errors import LoadFailed


def test_cuda_devices_are_told_from_the_cpu() -> None:
    assert not wants_cuda("cpu")
    assert all(wants_cuda(device) for device in ("cuda", "cuda:0", "cuda:12"))


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "CUDA", "cuda:٣", "cuda:0\n"])
def test_another_name_is_refused(device: str) -> None:
    with pytest.raises(LoadFailed, match="it is cpu, cuda, or cuda:N: set the instance_group to KIND_CPU or KIND_GPU"):
        wants_cuda(device)


def test_a_device_that_is_seen_and_the_cpu_are_accepted() -> None:
    check_cuda("cuda:3", 1, "a framework", "mend it")
    check_cuda("cpu", 0, "a framework", "mend it")


@pytest.mark.parametrize("visible", ["3", "", None])
def test_no_device_is_told_with_the_numbers(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(LoadFailed) as refused:
        check_cuda("cuda:3", 0, "torch 9.9", "mend it")
    shown = "unset" if visible is None else visible
    assert str(refused.value) == (
        f"device cuda:3 was asked for (KIND_GPU), and torch 9.9 sees 0 CUDA devices (CUDA_VISIBLE_DEVICES={shown}): "
        "mend it, or place the model on the CPU (KIND_CPU)"
    )
