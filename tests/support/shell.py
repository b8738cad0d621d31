"""The command line as a person uses it: in this process where that is enough, or in one of its own."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from gateway.cli import main
from support.server import PATIENCE_S, Server

#: A line that tells of a load under way.
_STAGE: Final = re.compile(r".+: .+ \(\d of \d\)")


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
        """What it said of its failure, in one line; how far a load was may be told before."""
        assert self.code == 1, (self.out, self.err)
        *before, line = self.err.splitlines()
        assert all(map(_STAGE.fullmatch, before)), self.err
        return line

    def stages(self) -> list[str]:
        """How far the load was that it waited for, line by line."""
        return [line for line in self.err.splitlines() if _STAGE.fullmatch(line)]


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
