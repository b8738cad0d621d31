"""Writes constraints.txt: one version of everything that any extra or dependency group needs, resolved together.

``python scripts/pin.py`` needs pip 25.1 or newer and a package index, installs nothing, and takes the newest
versions there are: run ``make test`` before you commit what it wrote.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: tensorrt-llm pins a torch of its own and lives in an environment of its own.
APART = {"trtllm"}
HEADER = """\
# What was tested, resolved together for every extra but trtllm: pip install -c constraints.txt '.[onnx]'
# Written by scripts/pin.py; do not edit.
"""


def main() -> None:
    """Resolve, and write the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = sorted(pinned(resolve(sorted(project["optional-dependencies"].keys() - APART))))
    (ROOT / "constraints.txt").write_text(HEADER + "".join(f"{pin}\n" for pin in pins))
    print(f"constraints.txt: {len(pins)} packages")


def resolve(extras: list[str]) -> dict[str, Any]:
    """pip's installation report for the project with these extras and the ``dev`` group."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["--group", "dev", f".[{','.join(extras)}]"]
    report = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    result: dict[str, Any] = json.loads(report)
    return result


def pinned(report: dict[str, Any]) -> set[str]:
    """``name==version`` of each package that has an index behind it.

    The local part of a version (``+cpu``) goes: it names a build that not every index has.
    """
    packages = [item["metadata"] for item in report["install"] if "dir_info" not in item["download_info"]]
    return {f"{normalised(package['name'])}=={package['version'].partition('+')[0]}" for package in packages}


def normalised(name: str) -> str:
    """The one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
