"""The administrator's key file: made once, private, and never taken from a file that others can read or make."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.serving.keys import ensure_admin_key, read_admin_key
from gateway.settings.errors import ConfigurationError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "admin.key"


def test_the_first_start_makes_a_private_file_and_the_next_ones_keep_it(path: Path) -> None:
    key = ensure_admin_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == key + "\n"
    assert len(key) > 40
    assert ensure_admin_key(path) == key == read_admin_key(path)


def test_two_servers_have_two_keys(path: Path, tmp_path: Path) -> None:
    assert ensure_admin_key(path) != ensure_admin_key(tmp_path / "other.key")


def test_many_that_start_at_once_agree_and_leave_no_drafts(path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        keys = set(threads.map(ensure_admin_key, [path] * 64))
    assert len(keys) == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["admin.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_file_that_others_can_read_or_write_is_refused_with_the_mend(path: Path, mode: int) -> None:
    ensure_admin_key(path)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"mode {mode:04o}.*chmod 600 {path}"):
        ensure_admin_key(path)


@pytest.mark.parametrize("content", ["", "short\n", "two words that are long enough to be one key\n", "x" * 5000])
def test_a_file_without_a_key_is_refused(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="holds no admin key: remove it"):
        ensure_admin_key(path)


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    ensure_admin_key(tmp_path / "mine.key")
    path.parent.mkdir()
    path.symlink_to(tmp_path / "mine.key")
    with pytest.raises(ConfigurationError, match="cannot read the admin key"):
        ensure_admin_key(path)


def test_a_folder_or_a_pipe_in_its_place_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=str(path)):
        ensure_admin_key(path)
    path.rmdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        ensure_admin_key(path)


def test_a_place_that_cannot_be_written_is_told_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="data_dir"):
        ensure_admin_key(tmp_path / "file" / "admin.key")


def test_reading_alone_makes_no_key(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_admin_key(path)
    assert not path.parent.exists()
