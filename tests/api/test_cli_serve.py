"""``tensorgate serve`` where a start cannot succeed: it says why, and ends."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from support.server import PATIENCE_S, running, started
from support.shell import end_of, spawn


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http-port", "80a"], "http_port = 80a (flag --http-port)"),
        (["--frontends", "2"], "this release runs one frontend only"),
        (["--host", "192.0.2.1", "--insecure"], "cannot serve REST at 192.0.2.1"),
        (["--host", "192.0.2.1"], "--insecure"),
        (["--config", "none.toml"], "there is no file none.toml"),
        (["--model-repository", "none"], "none does not exist: make it, or name another"),
        (["--data-dir", "file/data"], "file/data"),
        (["--database", "oracle://host/db"], "is not supported"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_ends_with_code_1(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "file").touch()
    ports = [] if "--http-port" in arguments else ["--http-port", "0", "--grpc-port", "0"]
    with spawn(tmp_path, "serve", *ports, *arguments) as process:
        done = end_of(process)
    assert done.code == 1
    assert said in done.err.splitlines()[-1]


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
def test_a_port_in_use_is_told_with_its_flag(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with started(tmp_path, arguments=[flag, str(port)]) as server:
            assert server.process.wait(PATIENCE_S) == 1
            server._reader.join(PATIENCE_S)
            assert str(port) in server.lines[-1]
            assert flag in server.lines[-1]
            assert server.faults() == []


def test_the_key_file_is_private_and_a_start_with_an_open_one_is_refused(tmp_path: Path) -> None:
    with running(tmp_path):
        key = tmp_path / "admin.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o644)
    with started(tmp_path) as server:
        assert server.process.wait(PATIENCE_S) == 1
        server._reader.join(PATIENCE_S)
        assert "chmod 600" in server.lines[-1]
