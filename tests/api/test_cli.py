"""The command line against a real server: models, workers, and what needs no server."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest

from support import onnx_models
from support.shell import Shell, spawn, tensorgate


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


@pytest.mark.parametrize("named", [["a:name:1"], ["a:name", "1"]], ids=["NAME:VERSION", "NAME VERSION"])
def test_a_version_is_named_as_it_is_printed_or_in_two_words(shell: Shell, named: list[str]) -> None:
    assert shell("model", "register", "a:name", "echo:", "--version", 1).out.startswith("registered a:name:1 ")
    assert shell("model", "unload", *named).out == "a:name:1: unloaded\n"
    assert shell("model", "load", *named).out == "a:name:1: ready\n"


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


def test_a_reader_that_goes_away_is_no_fault(shell: Shell) -> None:
    with spawn(
        shell.home, "model", "list", "--json", "--url", shell.server.url, TENSORGATE_DATA_DIR=str(shell.data)
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)


def test_version_and_help_need_no_server(tmp_path: Path) -> None:
    assert tensorgate(tmp_path, "--version").out == f"tensorgate {installed_version('tensorgate')}\n"
    help_text = tensorgate(tmp_path, "--help").out
    assert all(name in help_text for name in ("serve", "demo", "check", "migrate", "model", "worker"))


def test_migrating_twice_says_what_changed(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/registry.db"
    assert "went from no schema to" in tensorgate(tmp_path, "migrate", "--database", database).out
    assert "already" in tensorgate(tmp_path, "migrate", "--database", database).out
    assert "is not supported" in tensorgate(tmp_path, "migrate", "--database", "oracle://host/db").failure()
