"""torch itself, imported with the settings that a guest needs. Import this only to load a model: it takes seconds."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from typing import Any, Final

from backends.errors import LoadFailed, MissingExtra

#: Set before the import, unless the operator has chosen. No library may reach for the network or for another framework.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "USE_TF": "0",
    "USE_FLAX": "0",
    "USE_TORCH": "1",
    # compiled programs read past the end of a tensor that is smaller than they were compiled for, unless told to look
    "AOTI_RUNTIME_CHECK_INPUTS": "1",
    # threads that wait for each other spin this long before they sleep: enough on idle cores, while torch's own choice
    # takes ten times as long on cores that other models use as well (MiniLM on two busy cores: 860 ms, and 110 ms so)
    "GOMP_SPINCOUNT": "1000",
}


def _import_torch() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        module = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{sys.executable} has no torch: pip install 'tensorgate[torch]'") from error
    except ImportError as error:
        raise LoadFailed(f"torch is installed and cannot be imported: {error}") from error
    # errors come back as exceptions; torch would log most of them as well
    logging.getLogger("torch").setLevel(logging.ERROR)
    _let_arrays_be_read_only(module)
    return module


def _let_arrays_be_read_only(module: Any) -> None:
    """Have torch say once, unheard, that it cannot protect read-only arrays: it says so once in a process.

    Inputs are such arrays; that no model writes to them is seen to by ``backends.torch.program``.
    """
    numpy = importlib.import_module("numpy")
    array = numpy.zeros(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.from_numpy(array)


def import_part(name: str, install: str = "") -> Any:
    """A submodule of torch, or a package beside it. Raises ``MissingExtra`` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        mend = install or "install the torch that this release was tested with: pip install 'tensorgate[torch]'"
        raise MissingExtra(f"{sys.executable} has no {name} ({error}): {mend}") from error


torch: Any = _import_torch()
