"""The command line as a person uses it: a process of its own, against a real server."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.cli import main
from gateway.cli.tour.packages import LIBRARIES, MODEL_PACKAGES, install_commands
from support import onnx_models
from support.repository import add_echo, add_onnx
from support.server import PATIENCE_S, Server, running, started, status_of, wait_until


class Done(NamedTuple):
    """How a command ended."""

    code: object
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, after it went well."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    def failure(self) -> str:
        """What it said of its failure, in one line."""
        assert self.code == 1, (self.out, self.err)
        (line,) = self.err.splitlines()
        return line


def environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Of a user whose home is that folder."""
    return {"HOME": str(home), "XDG_DATA_HOME": "", "COLUMNS": "80"} | dict(variables)


def tensorgate(home: Path, *arguments: object, **variables: str) -> Done:
    """Run a command to its end, in this process (a second each is spared); an exception that is no exit is raised."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment(home, variables).items():
            patch.setenv(name, value)
        patch.chdir(home)
        patch.setattr(sys, "argv", ["tensorgate", *map(str, arguments)])
        try:
            main.run()
            code: object = 0
        except SystemExit as exit:
            code = exit.code or 0
    return Done(code, out.getvalue(), err.getvalue())


def spawn(home: Path, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gateway", *map(str, arguments)],
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment(home, variables),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process: subprocess.Popen[str]) -> Done:
    """Wait for its end."""
    out, err = process.communicate(timeout=2 * PATIENCE_S)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


class Shell:
    """A user who has a server running."""

    def __init__(self, server: Server, home: Path, data: Path) -> None:
        self.server = server
        self.home = home
        self.data = data

    def __call__(self, *arguments: object, **variables: str) -> Done:
        """Run the command with the server's address and data folder in the environment."""
        known = {"TENSORGATE_URL": self.server.url, "TENSORGATE_DATA_DIR": str(self.data)}
        return tensorgate(self.home, *arguments, **(known | variables))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    data, home = tmp_path_factory.mktemp("cli-data"), tmp_path_factory.mktemp("home")
    with running(data) as server:
        yield Shell(server, home, data)


def test_a_model_is_registered_listed_shown_unloaded_and_loaded(shell: Shell) -> None:
    folder = onnx_models.save(onnx_models.add_one(), shell.home / "adder")
    (folder / "config.pbtxt").write_text("max_batch_size: 4")
    # a path relative to where the user is, which is not where the server is
    done = shell("model", "register", "adder", "adder/model.onnx", "--config", "adder/config.pbtxt")
    assert re.fullmatch(r"registered adder:1 \(onnx, \d+ B\): ready\n", done.out), done.err
    assert shell.server.is_ready("adder")

    (row,) = (line for line in shell("model", "list").out.splitlines() if line.startswith("adder"))
    assert row.split()[:4] == ["adder", "1", "onnx", "ready"]
    shown = shell("model", "show", "adder").out
    assert re.search(r"^input +x FP32 \[-1, -1\]$", shown, re.MULTILINE)
    assert re.search(r"^max batch size +4$", shown, re.MULTILINE)
    (version,) = shell("model", "show", "adder", "--json").json()["versions"]
    assert (version["config"], version["state"]) == ({"max_batch_size": 4}, "ready")

    assert shell("model", "unload", "adder", 1).out == "adder:1: unloaded\n"
    assert not shell.server.is_ready("adder")
    assert shell("model", "load", "adder", 1, "--json").json()["state"] == "ready"
    assert shell.server.is_ready("adder")


def test_registering_without_waiting_or_deploying(shell: Shell) -> None:
    assert shell("model", "register", "lazy", "echo:", "--no-wait", "--version", 3, "--json").json()["version"] == 3
    shell.server.wait_ready("lazy")
    assert shell("model", "register", "kept", "echo:", "--no-deploy").out.endswith("unloaded\n")
    assert not shell.server.is_ready("kept")


def test_workers_are_listed_and_restarted(shell: Shell) -> None:
    before = shell("model", "register", "worker", "echo:", "--json").json()["workers"][0]
    done = shell("worker", "restart", before["id"])
    assert done.out == f"worker {before['id']} is restarting\n", done.err

    def replaced() -> bool:
        (worker,) = (w for w in shell("worker", "list", "--json").json() if w["model"] == "worker")
        return bool(worker["state"] == "ready" and worker["pid"] != before["pid"])

    shell.server.wait(replaced, "another worker")
    (row,) = (line for line in shell("worker", "list").out.splitlines() if line.startswith(before["id"]))
    assert row.split()[1:3] == ["echo", "ready"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model", "show", "none"], "there is no model 'none'"),
        (["model", "load", "none", "1"], "there is no model 'none'"),
        (["model", "register", "a/b", "echo:"], "separates the parts of a path"),
        (["model", "register", "m", "none.onnx"], "none.onnx does not exist"),
        (["model", "register", "m", "pkg://no_such_package/x"], "no package 'no_such_package' is installed"),
        (["model", "register", "m", "echo:", "--framework", "abacus"], "framework 'abacus' is not known"),
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


def test_a_reader_that_goes_away_is_no_fault(shell: Shell) -> None:
    with spawn(
        shell.home, "model", "list", "--json", "--url", shell.server.url, TENSORGATE_DATA_DIR=str(shell.data)
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["model", "load", "m", "one"],
        ["model", "load", "m", "0"],
        ["model", "register", "m"],
        ["nonsense"],
        ["serve", "--x"],
    ],
)
def test_a_slip_in_usage_ends_with_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = tensorgate(tmp_path, *arguments)
    assert done.code == 2
    assert "Usage:" in done.err


def test_version_and_help_need_no_server(tmp_path: Path) -> None:
    assert tensorgate(tmp_path, "--version").out == f"tensorgate {installed_version('tensorgate')}\n"
    help_text = tensorgate(tmp_path, "--help").out
    assert all(name in help_text for name in ("serve", "demo", "check", "migrate", "model", "worker"))


def test_migrating_twice_says_what_changed(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/registry.db"
    assert "went from no schema to" in tensorgate(tmp_path, "migrate", "--database", database).out
    assert "already" in tensorgate(tmp_path, "migrate", "--database", database).out
    assert "is not supported" in tensorgate(tmp_path, "migrate", "--database", "oracle://host/db").failure()


# --- a start that cannot succeed -------------------------------------------------------------------------------------


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


# --- check -----------------------------------------------------------------------------------------------------------


def findings(done: Done, code: int) -> dict[str, tuple[str, str]]:
    """Subject -> state and text."""
    assert done.code == code, (done.out, done.err)
    return {one["subject"]: (one["state"], one["text"]) for one in json.loads(done.out)}


def test_check_finds_nothing_wrong_where_nothing_is(tmp_path: Path) -> None:
    add_echo(tmp_path / "models", "parrot")
    add_onnx(tmp_path / "models", "adder", onnx_models.add_one())
    found = findings(
        tensorgate(tmp_path, "check", "--model-repository", "models", "--http-port", 0, "--grpc-port", 0, "--json"), 0
    )
    assert {state for state, _ in found.values()} <= {"ok", "note"}
    assert "made at the first start" in found["database"][1]
    assert found["model parrot:1"][0] == found["model adder:1"][0] == found["framework onnx"][0] == "ok"
    assert not (tmp_path / ".local").exists(), "a check writes nothing"


def test_check_says_what_is_wrong_with_each_thing_and_how_to_mend_it(tmp_path: Path) -> None:
    add_onnx(tmp_path / "models", "rubbish", b"no model")
    (tmp_path / "models" / "hollow").mkdir()
    (tmp_path / "file").touch()
    config = tmp_path / "config.toml"
    config.write_text(f'[interpreters]\necho = "{tmp_path}/python"\nonnx = "/bin/false"')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = tensorgate(
            tmp_path, "check", "--config", config, "--model-repository", "models", "--data-dir", "file/data",
            "--http-port", port, "--grpc-port", 0, "--json", TENSORGATE_HTTP_PROT="1",
        )  # fmt: skip
    found = findings(done, 1)
    assert found["environment"] == ("note", "TENSORGATE_HTTP_PROT is read by nothing: a slip?")
    expected = {
        "data folder": "set data_dir to another place",
        "http_port": "choose with --http-port",
        "framework echo": "cannot be started",
        "framework onnx": "/bin/false cannot run workers: it ended with code 1",
        "model hollow": "put the model into",
        "model rubbish:1": "the worker exited with code 1",
    }
    for subject, said in expected.items():
        assert found[subject][0] == "wrong", subject
        assert said in found[subject][1]
    assert found["grpc_port"][0] == "ok"


def test_check_tells_bad_settings_and_a_missing_repository(tmp_path: Path) -> None:
    bad = findings(tensorgate(tmp_path, "check", "--http-port", "x", "--json"), 1)
    assert bad["settings"][0] == "wrong"
    assert "http_port = x (flag --http-port)" in bad["settings"][1]
    done = tensorgate(tmp_path, "check", "--model-repository", "none", "--http-port", 0, "--grpc-port", 0)
    assert done.code == 1
    assert re.search(r"^model repository +wrong .*/none does not exist: make it", done.out, re.MULTILINE)


def test_check_loads_what_is_there_and_names_what_cannot_be_loaded(tmp_path: Path) -> None:
    add_onnx(tmp_path / "models", "rubbish", b"no model")
    add_onnx(tmp_path / "models", "adder", onnx_models.add_one())
    done = tensorgate(tmp_path, "check", "--model-repository", "models", "--http-port", 0, "--grpc-port", 0, "--json")
    found = findings(done, 1)
    assert found["model adder:1"][0] == "ok"
    assert "is no ONNX model" in found["model rubbish:1"][1]


# --- demo ------------------------------------------------------------------------------------------------------------


def test_the_demo_names_what_is_missing_with_the_commands_that_bring_it() -> None:
    assert install_commands(lambda _: True) == []
    assert install_commands(lambda name: name not in LIBRARIES) == ["pip install 'tensorgate[onnx,demo]'"]
    assert install_commands(lambda name: name != "magika") == [f"pip install --no-deps {MODEL_PACKAGES['magika']}"]


needs_models = pytest.mark.skipif(
    any(find_spec(name) is None for name in (*MODEL_PACKAGES, *LIBRARIES)),
    reason=f"needs {', '.join((*MODEL_PACKAGES.values(), *LIBRARIES))}",
)


@needs_models
def test_the_demo_is_right_about_real_files_and_sentences_and_then_stops(tmp_path: Path) -> None:
    with spawn(tmp_path, "demo", "--exit") as process:
        done = end_of(process)
    assert done.code == 0, (done.out, done.err)
    rows = {line.split("  ")[0]: line.split() for line in done.out.splitlines()}
    for file, label in {"models.py": "python", "inference.proto": "proto", "model.onnx": "onnx"}.items():
        assert rows[file][1] == label
        assert rows[file][-1] == "yes"
    assert (tmp_path / ".local/share/tensorgate/demo/admin.key").exists()


@needs_models
def test_the_demo_leaves_the_server_up_until_ctrl_c(tmp_path: Path) -> None:
    lines: list[str] = []
    with spawn(tmp_path, "demo", "--data-dir", "data") as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "head -c" in line:
                break
        try:
            (url,) = re.findall(r"REST (http://\S+),", "".join(lines))
            assert status_of(f"{url}/v2/models/minilm/ready") == 200
            listed = tensorgate(
                tmp_path, "model", "list", "--json", TENSORGATE_URL=url, TENSORGATE_DATA_DIR="data"
            ).json()
            assert [model["name"] for model in listed] == ["magika", "minilm"]
        finally:
            process.send_signal(signal.SIGINT)
            done = end_of(process)
    assert done.code == 0
    wait_until(lambda: status_of(f"{url}/v2/health/live") == 0, "the server to be gone")
