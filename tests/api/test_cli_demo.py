"""``tensorgate demo``: right about real files and sentences; it leaves a server and commands that work."""

from __future__ import annotations

import re
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.cli.tour.packages import LIBRARIES, MODEL_PACKAGES, install_commands
from support.server import PATIENCE_S, status_of, wait_until
from support.shell import end_of, spawn, tensorgate


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


def commands_of(lines: list[str]) -> list[str]:
    """What the demo says to try: each command, after the variables that it sets."""
    export, *commands = [line.strip() for line in lines if line.startswith("  ") and line.strip()][-6:]
    return [f"{export}; {command}" for command in commands]


def run_in_another_terminal(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a shell runs it in which no virtual environment is active."""
    environment = {"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


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
            for command in commands_of(lines):
                tried = run_in_another_terminal(command, tmp_path)
                assert tried.returncode == 0, (command, tried.stderr)
                assert tried.stdout, command
        finally:
            process.send_signal(signal.SIGINT)
            done = end_of(process)
    assert done.code == 0
    wait_until(lambda: status_of(f"{url}/v2/health/live") == 0, "the server to be gone")
