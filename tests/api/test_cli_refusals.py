"""What the command line says when it cannot do what it was asked: why, and the mend, in one line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from support import onnx_models
from support.shell import Shell, end_of, spawn, tensorgate


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model", "show", "none"], "there is no model 'none'"),
        (["model", "load", "none", "1"], "there is no model 'none'"),
        (["model", "register", "a/b", "echo:"], "separates the parts of a path"),
        (["model", "register", "m", "none.onnx"], "none.onnx does not exist"),
        (["model", "register", "m", "pkg://no_such_package/x"], "no package 'no_such_package' is installed"),
        (["model", "register", "m", "echo:", "--framework", "abacus"], "framework 'abacus' is not known"),
        (
            ["model", "register", "m", "file", "--framework", "echo"],
            "the framework echo runs no artifact and would ign",
        ),
        (["model", "load", "none:1"], "there is no model 'none'"),
        (["model", "unload", "none:1"], "there is no model 'none'"),
        (["model", "register", "m", "echo:", "--config", "none.json"], "none.json: cannot be read"),
        (["worker", "restart", "nobody"], "there is no worker 'nobody'"),
        (["model", "list", "--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
        (["model", "list", "--url", "127.0.0.1:9"], "must begin with http:// or https://"),
        (["model", "list", "--url", "http://models.example.org"], "a key is needed for http://models.example.org"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why_in_one_line(
    shell: Shell, arguments: list[str], said: str
) -> None:
    assert said in shell(*arguments).failure()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ["echo:", "--config", "four.json"],
            "differs: config.max_batch_size is unset there and 4 here. Versions never",
        ),
        (["adder.onnx"], "differs: the artifact is echo: (sha256:000"),
        (["adder.onnx"], "framework is echo there and onnx here"),
        (["echo:", "--config", "four.json"], "or give this one the next free number, 2, or none to take it"),
    ],
)
def test_a_number_that_is_taken_is_refused_with_what_differs(shell: Shell, more: list[str], said: str) -> None:
    (shell.home / "four.json").write_text('{"max_batch_size": 4}')
    (shell.home / "adder.onnx").write_bytes(onnx_models.add_one().SerializeToString())
    assert shell("model", "register", "taken", "echo:", "--version", 1).code == 0
    assert said in shell("model", "register", "taken", *more, "--version", 1).failure()


@pytest.mark.parametrize(
    ("scheme", "port", "path", "said"),
    [
        ("http", "grpc", "", "is no REST server"),
        ("http", "grpc", "", "is that the gRPC port? Give the one of REST"),
        ("https", "http", "", "a tensorgate server speaks plain HTTP, give http://"),
        ("https", "grpc", "", "a tensorgate server speaks plain HTTP, give http://"),
        ("http", "http", "/v2", "give the address of a tensorgate server's REST port alone"),
    ],
)
def test_an_address_that_is_nearly_right_is_told_from_one_where_nobody_is(
    shell: Shell, scheme: str, port: str, path: str, said: str
) -> None:
    url = f"{scheme}://{getattr(shell.server, port)}{path}"
    for command in (["model", "list"], ["worker", "list"], ["model", "register", "m", "echo:"]):
        text = shell(*command, "--url", url).failure()
        assert url in text
        assert said in text


def test_a_version_that_does_not_load_fails_the_command_with_its_reason(shell: Shell) -> None:
    (shell.home / "rubbish.onnx").write_text("no model")
    assert "rubbish.onnx is no ONNX model" in shell("model", "register", "rubbish", "rubbish.onnx").failure()


def test_a_wrong_key_and_a_missing_one_are_told_apart(shell: Shell, tmp_path: Path) -> None:
    assert "TENSORGATE_API_KEY" in shell("model", "list", TENSORGATE_API_KEY="wrong").failure()
    missing = shell("model", "list", TENSORGATE_DATA_DIR=str(tmp_path)).failure()
    assert f"there is no {tmp_path}/admin.key" in missing
    assert "tensorgate serve" in missing
    key = (shell.data / "admin.key").read_text()
    assert shell("model", "list", TENSORGATE_DATA_DIR=str(tmp_path), TENSORGATE_API_KEY=key).code == 0


def test_something_that_is_no_tensorgate_is_recognised(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with spawn(tmp_path, "model", "list", "--url", url, TENSORGATE_API_KEY="key") as process:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                assert "is a tensorgate server there?" in end_of(process).failure()


@pytest.mark.parametrize(
    "arguments",
    [
        ["model", "load", "m", "one"],
        ["model", "load", "m", "0"],
        *(
            ["model", verb, name]
            for verb in ("load", "unload")
            for name in ("m", "m:", "m:0", "m:x", "m:-1", ":1", f"m:{9**99}")
        ),
        ["model", "register", "m"],
        ["nonsense"],
        ["serve", "--x"],
    ],
)
def test_a_slip_in_usage_ends_with_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = tensorgate(tmp_path, *arguments)
    assert done.code == 2
    assert "Usage:" in done.err
