"""How a Python interpreter is told to run our code: its own, or one that has never heard of us.

Another interpreter needs numpy, msgspec and its framework. The package ``backends`` is lent to it, from this very
installation and alone: nothing else of this environment can be imported there, and both ends speak one protocol.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import backends

#: Makes the folder ``sys.argv[1]`` the package ``backends``, whatever that environment has under this name.
_LEND: Final = """
import importlib.util, sys
folder = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("backends", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["backends"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["backends"])
"""
_RUN: Final = """
import runpy
runpy.run_module("backends.worker", run_name="__main__", alter_sys=True)
"""


def worker_command(interpreter: str) -> list[str]:
    """The beginning of the command that runs a worker."""
    if interpreter == sys.executable:
        return [interpreter, "-P", "-m", "backends.worker"]
    return command(interpreter, _RUN)


def command(interpreter: str, code: str) -> list[str]:
    """The beginning of a command that runs ``code``, which can import ``backends`` and what its environment has."""
    if interpreter == sys.executable:
        return [interpreter, "-P", "-c", code]
    return [interpreter, "-P", "-c", _LEND + code, str(Path(backends.__file__).parent)]
