"""What cannot be read as an artifact: every failure says what to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from registry import artifacts
from registry.artifacts import resolve
from support.artifacts import refusal, write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that is an artifact."""
    return write(tmp_path / "model", {"model.onnx": "weights", "data/a.bin": "a", "data/b.bin": "bb"})


def test_what_does_not_exist_is_told_with_the_part_that_does(model: Path) -> None:
    told = refusal(model / "deep" / "net.onnx")
    assert f"{model}/deep/net.onnx does not exist (the last part that does is {model})" in told
    assert "does not exist" in refusal(model / "model.onnx" / "x")


def test_a_relative_path_is_told_and_found_as_an_absolute_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    assert resolve("data/../data/a.bin").path == f"{model}/data/a.bin"
    assert resolve(".").path == str(model)
    assert f"{model}/b.bin does not exist" in refusal("b.bin")


def test_the_home_folder_may_be_written_as_a_tilde(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model))
    assert resolve("~/model.onnx").path == f"{model}/model.onnx"
    assert "no such user" in refusal("~nobody-known/model.onnx")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model" / "deep").mkdir(parents=True)
    assert "has no files: if it is still being copied, wait" in refusal(tmp_path / "model")


def test_a_folder_with_too_many_files_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_FILES", 2)
    assert f"folder {model} has more than 2 files: name the folder of one model" in refusal(model)


def test_a_socket_is_refused_by_its_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)  # a socket's address is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        assert f"{model}/sock is a socket, and an artifact consists of files: remove it" in refusal(model)
        assert f"{model}/sock is a socket, and an artifact is a file or a folder" in refusal(model / "sock")


def test_a_pipe_is_refused_and_not_waited_for(model: Path) -> None:
    os.mkfifo(model / "pipe")
    assert f"{model}/pipe is a named pipe" in refusal(model)


@pytest.mark.parametrize("name", ["model.onnx", "data"])
def test_what_may_not_be_read_is_told_with_the_command_that_allows_it(
    model: Path, name: str, unprivileged_user: Callable[[], None]
) -> None:
    (model / name).chmod(0)
    unprivileged_user()
    assert f"{model}/{name} is not readable for this user" in refusal(model)


@pytest.fixture
def unprivileged_user(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Becomes, when called, a user whom modes bind, and who can reach the test's folder."""
    user = os.geteuid()

    def become() -> None:
        if user == 0:
            for folder in [tmp_path, *tmp_path.parents][:3]:
                folder.chmod(folder.stat().st_mode | 0o011)
            os.seteuid(65534)

    yield become
    os.seteuid(user)
    for name in ("model/model.onnx", "model/data"):
        (tmp_path / name).chmod(0o700)


def test_a_file_that_grows_while_it_is_read_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = model / "model.onnx"
    real = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        """Somebody appends between the first look and the last."""
        found = real(descriptor)
        with growing.open("a") as file:
            file.write("more")
        return found

    monkeypatch.setattr(os, "fstat", grow)
    assert f"file {growing} changed while it was read: wait until it is copied" in refusal(growing)


def test_a_name_that_is_not_utf_8_is_refused(model: Path) -> None:
    Path(os.fsdecode(os.fsencode(model) + b"/\xff.bin")).write_text("x")
    assert "is not valid UTF-8: rename" in refusal(model)
    assert "is not valid UTF-8: rename" in refusal(os.fsdecode(b"/models/\xff"))
