"""``tensorgate check``: each thing that is wrong, and how to mend it."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

from support import onnx_models
from support.repository import add_echo, add_onnx
from support.shell import Done, Shell, tensorgate


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
    slip = "TENSORGATE_HTTP_PROT is read by nothing (did you mean 'TENSORGATE_HTTP_PORT'?)"
    assert found["environment"] == ("note", f"environment variable {slip}")
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


def test_check_takes_a_running_tensorgate_for_no_fault_and_another_program_for_one(shell: Shell) -> None:
    rest, grpc = (address.rpartition(":")[2] for address in (shell.server.http, shell.server.grpc))
    found = findings(shell("check", "--http-port", rest, "--grpc-port", grpc, "--json"), 0)
    for key, port in (("http_port", rest), ("grpc_port", grpc)):
        state, text = found[key]
        assert (state, f"127.0.0.1:{port}: a tensorgate answers there" in text) == ("note", True), text
    swapped = findings(shell("check", "--http-port", grpc, "--grpc-port", rest, "--json"), 1)
    for key in ("http_port", "grpc_port"):
        assert swapped[key][0] == "wrong"
        assert "which is no tensorgate" in swapped[key][1]


def test_check_compares_every_artifact_with_what_was_registered(shell: Shell) -> None:
    for name in ("kept", "changed", "missing", "spare"):
        onnx_models.save(onnx_models.add_one(), shell.home / name)
        flags = ["--no-deploy"] if name == "spare" else []
        assert shell("model", "register", f"check-{name}", f"{name}/model.onnx", *flags).code == 0
    onnx_models.save(onnx_models.identity("FP32", ("length",)), shell.home / "changed")
    for name in ("missing", "spare"):
        (shell.home / name / "model.onnx").unlink()
    found = findings(shell("check", "--http-port", 0, "--grpc-port", 0, "--json"), 1)
    expected = {
        "kept": ("ok", "is what was registered"),
        "changed": ("wrong", "has changed since it was registered"),
        "missing": ("wrong", "`tensorgate model unload check-missing:1`"),
        "spare": ("note", "does not exist"),
    }
    for name, (state, said) in expected.items():
        assert found[f"registered check-{name}:1"][0] == state
        assert said in found[f"registered check-{name}:1"][1]
    for name in ("changed", "missing"):
        assert shell("model", "unload", f"check-{name}:1").code == 0
