"""``tensorgate demo``: right about files, sentences, speech and notes; it leaves a server and commands that work."""

from __future__ import annotations

import re
import signal
import subprocess
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from backends.loader import is_installed
from gateway.cli.tour.models import MODELS
from gateway.cli.tour.packages import LIBRARIES, MODEL_PACKAGES, install_commands
from support.server import PATIENCE_S, status_of, wait_until
from support.shell import end_of, environment, spawn, tensorgate

#: Each case loads up to six models, twice each.
pytestmark = pytest.mark.timeout(300)
#: The models that are served in this environment, in the order of their names.
SERVED: Final = sorted(model.name for model in MODELS if is_installed(model.framework))


def test_the_demo_names_what_is_missing_with_the_commands_that_bring_it() -> None:
    assert install_commands(lambda _: True) == []
    assert install_commands(lambda name: name not in LIBRARIES) == ["pip install 'tensorgate[onnx,demo]'"]
    assert install_commands(lambda name: name != "magika") == [f"pip install --no-deps {MODEL_PACKAGES['magika']}"]


needs_models = pytest.mark.skipif(
    any(find_spec(name) is None for name in (*MODEL_PACKAGES, *LIBRARIES)),
    reason=f"needs {', '.join((*MODEL_PACKAGES.values(), *LIBRARIES))}",
)


def rows_of(printed: str) -> dict[str, list[str]]:
    """The rows of all tables by their first cell, the last one of a name; each a list of cells."""
    rows = [re.split(r"  +", line) for line in printed.splitlines()]
    return {row[0]: row for row in rows}


@needs_models
@pytest.mark.skipif(len(SERVED) < len(MODELS), reason="needs torch and tensorflow: pip install 'tensorgate[torch,tf]'")
def test_the_demo_is_right_about_files_sentences_speech_and_notes_and_then_stops(tmp_path: Path) -> None:
    with spawn(tmp_path, "demo", "--exit") as process:
        done = end_of(process)
    assert done.code == 0, (done.out, done.err)
    rows = rows_of(done.out)
    for file, label in {"models.py": "python", "inference.proto": "proto", "model.onnx": "onnx"}.items():
        assert rows[file][1] == label
        assert rows[file][-1] == "yes"
    for framework, requests in {"torch": "1 of 5.42 s", "ONNX": "170 of 32 ms"}.items():
        assert any(line.startswith(f"{framework} ") and requests in line for line in done.out.splitlines())
    for note, played in {"C4": "0.10-0.50 s", "C5": "1.35-1.90 s"}.items():
        assert rows[note][1] == played
        assert rows[note][-1] == "yes"
    for output in ("speech", "note", "onset", "contour"):
        assert rows[output][-1] == "yes"
    assert "NO" not in done.out.split()
    assert "left out" not in done.out
    assert (tmp_path / ".local/share/tensorgate/demo/admin.key").exists()


def without(folder: Path, *packages: str) -> str:
    """The interpreter of an environment that has everything of this one except some packages."""
    venv.create(folder, symlinks=True)
    (theirs,) = folder.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name not in packages:
            (theirs / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


@needs_models
def test_the_demo_names_the_frameworks_that_are_not_installed_and_goes_on(tmp_path: Path) -> None:
    python = without(tmp_path / "venv", "torch", "tensorflow")
    done = subprocess.run(
        [python, "-P", "-m", "gateway", "demo", "--exit"],
        env=environment(tmp_path, {"PATH": "/usr/bin:/bin"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    for model, framework in {"silero_torch": "torch", "basic_pitch_tf": "tf"}.items():
        line = f"{model} is left out: {framework} is not installed. To see it: pip install 'tensorgate[{framework}]'"
        assert line in done.stdout.splitlines()
    rows = rows_of(done.stdout)
    assert rows["ONNX"][-1] == "yes"
    assert rows["C5"][-1] == "yes"
    assert "how far apart" not in done.stdout


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
            assert [model["name"] for model in listed] == SERVED
            for command in commands_of(lines):
                tried = run_in_another_terminal(command, tmp_path)
                assert tried.returncode == 0, (command, tried.stderr)
                assert tried.stdout, command
        finally:
            process.send_signal(signal.SIGINT)
            done = end_of(process)
    assert done.code == 0
    wait_until(lambda: status_of(f"{url}/v2/health/live") == 0, "the server to be gone")
