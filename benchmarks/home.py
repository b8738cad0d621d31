"""The work folder of the benchmarks: environments, models and logs, none of it in the repository."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Home:
    """Where things lie below the work folder."""

    root: Path

    def venv(self, peer: str) -> Path:
        return self.root / "venvs" / peer

    def site_packages(self, peer: str) -> Path:
        return next(self.venv(peer).glob("lib/python3*/site-packages"))

    @property
    def model_packages(self) -> Path:
        return self.root / "model-packages"

    @property
    def triton_backends(self) -> Path:
        return self.root / "triton-backends"

    @property
    def lock_file(self) -> Path:
        return Path(os.environ.get("BENCH_LOCK") or self.root / "lock")


def default_home() -> Path:
    """``TENSORGATE_BENCH_HOME``, else a folder in the user's cache."""
    named = os.environ.get("TENSORGATE_BENCH_HOME")
    return Path(named) if named else Path.home() / ".cache" / "tensorgate-bench"


@contextlib.contextmanager
def machine_lock(path: Path) -> Iterator[None]:
    """Keeps every other user of the same lock file from measuring at the same time."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
