"""What the README and ``examples/`` tell a newcomer to run does what they say, against a server that has magika."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.server import PATIENCE_S, ROOT, Server, running
from support.shell import Shell, environment

EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARTIFACT = "pkg://magika/models/standard_v3_3/model.onnx"

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("magika", "onnxruntime")), reason="needs magika==1.0.3 and onnxruntime"
)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Has registered magika, as the README says."""
    data, home = tmp_path_factory.mktemp("examples-data"), tmp_path_factory.mktemp("examples-home")
    with running(data) as server:
        made = Shell(server, home, data)
        assert f"tensorgate model register magika {ARTIFACT}" in README
        assert made("model", "register", "magika", ARTIFACT).out.endswith(": ready\n")
        yield made


def run(user: Shell, *command: object) -> subprocess.CompletedProcess[str]:
    """Run a program in the repository, with the virtual environment's programs before others."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    known = {"TENSORGATE_URL": user.server.url, "TENSORGATE_DATA_DIR": str(user.data), "PATH": path}
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT, env=os.environ | environment(user.home, known), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def at(server: Server, text: str) -> str:
    """The text with the server's ports instead of the usual ones."""
    return text.replace("localhost:8000", server.http).replace("localhost:8001", server.grpc)


def blocks(language: str, holding: str) -> list[str]:
    """The README's blocks of code that hold a text."""
    return [
        code for code in re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL) if holding in code
    ]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_the_readme_gives_a_client_that_prints_the_class_it_names(user: Shell, kind: str) -> None:
    (code,) = blocks("python", f"tritonclient.{kind}")
    done = run(user, sys.executable, "-c", at(user.server, code))
    assert (done.returncode, done.stdout.strip()) == (0, "143"), done.stderr
    assert """# 143, magika's class "python\"""" in code


def test_the_readme_gives_curl_commands_that_are_answered(user: Shell) -> None:
    (code,) = blocks("", "curl -s localhost:8000")
    done = run(user, "bash", "-euc", at(user.server, code))
    assert done.returncode == 0, done.stderr
    for said in ('"shape":[-1,2048]', '"model_name":"magika"', '"state":"READY"'):
        assert said in done.stdout


def test_the_readme_gives_commands_that_list_and_check(user: Shell, tmp_path: Path) -> None:
    (code,) = blocks("", "tensorgate model list")
    lines = [line for line in code.splitlines() if "activate" not in line]
    done = run(user, "bash", "-euc", "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert "magika" in done.stdout


@pytest.mark.parametrize("as_the_readme_says", [True, False], ids=["README", "examples/model.toml"])
def test_the_configurations_can_be_registered(user: Shell, tmp_path: Path, as_the_readme_says: bool) -> None:
    config = EXAMPLES / "model.toml"
    if as_the_readme_says:
        (code,) = blocks("toml", "max_batch_size")
        config = tmp_path / "model.toml"
        config.write_text(code)
    assert user("model", "register", "configured", ARTIFACT, "--config", config).out.endswith(": ready\n")
    assert user.server.is_ready("configured")


def test_the_configuration_of_a_server_starts_one(tmp_path: Path) -> None:
    with running(tmp_path, arguments=["--config", str(EXAMPLES / "server.toml")]) as server:
        assert '"level"' in server.log, "it logs as the file says"


def test_the_clients_say_what_the_model_thinks(user: Shell) -> None:
    rest = run(user, sys.executable, EXAMPLES / "rest_client.py", user.server.url)
    assert re.fullmatch(r"magika: class 143 of 214, python, with (0\.\d+) \(as JSON: \1\)\n", rest.stdout), rest.stderr
    grpc = run(user, sys.executable, EXAMPLES / "grpc_client.py", user.server.grpc)
    assert grpc.stdout == "one call: (1, 214)\n64 calls: (64, 214)\n", grpc.stderr


@pytest.mark.parametrize(
    ("client", "port", "model", "said"),
    [
        (
            "rest_client.py",
            "http",
            "nobody",
            'answered 404: {"error":"Request for unknown model: \'nobody\' is not found',
        ),
        ("rest_client.py", "grpc", "magika", "is that its REST port?"),
        ("rest_client.py", "nowhere", "magika", "no answer over HTTP from http://127.0.0.1:9"),
        ("grpc_client.py", "grpc", "nobody", "[StatusCode.NOT_FOUND] Request for unknown model: 'nobody' is not found"),
        ("grpc_client.py", "http", "magika", "[StatusCode.UNAVAILABLE]"),
        ("grpc_client.py", "nowhere", "magika", "[StatusCode.UNAVAILABLE]"),
    ],
)
def test_a_client_that_is_refused_ends_with_the_servers_words(
    user: Shell, client: str, port: str, model: str, said: str
) -> None:
    address = "127.0.0.1:9" if port == "nowhere" else getattr(user.server, port)
    url = address if client == "grpc_client.py" else f"http://{address}"
    done = run(user, sys.executable, EXAMPLES / client, url, model)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
