"""Loading a model stage by stage: each is announced when it begins, timed, and its memory is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from backends.contract import Backend
from backends.errors import OutOfMemory
from backends.loader import create, package_of
from backends.memory import free_memory, give_back, is_out_of_memory, peak_bytes, rss_bytes
from backends.messages import LoadReport, Progress
from backends.spec import ModelSpec, Signature
from backends.warmup import warm_up

IMPORTING: Final = "importing the framework"
READING: Final = "reading the model"
WARMING_UP: Final = "warming up"
_MEND: Final = "unload other models, or place this one elsewhere"


class Loaded(NamedTuple):
    """A model that is ready, and what it took to get there."""

    backend: Backend
    signature: Signature
    report: LoadReport


def load_in_stages(spec: ModelSpec, tell: Callable[[Progress], None]) -> Loaded:
    """Load and warm up; ``tell`` hears of each stage as it begins.

    Raises what the backend raises (``LoadFailed``), and ``OutOfMemory`` with the numbers where that is the cause.
    """
    try:
        return _load(spec, tell)
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{str(error) or 'the model does not fit into memory'}; {free_memory()}: {_MEND}") from error


def _load(spec: ModelSpec, tell: Callable[[Progress], None]) -> Loaded:
    started = time.monotonic_ns()
    backend = create(spec.framework)
    stages = stages_of(spec)

    def begin(stage: str) -> int:
        now = time.monotonic_ns()
        if stage in stages:
            tell(Progress(stage, stages.index(stage) + 1, len(stages), now - started))
        return now

    begin(IMPORTING)
    backend.import_framework(spec)
    give_back()
    base_bytes = rss_bytes()
    imported = begin(READING)
    signature = backend.load(spec)
    read = begin(WARMING_UP)
    warm_up(backend, spec, signature)
    warm = time.monotonic_ns()
    backend.trim()
    give_back()  # what loading needed and the model does not
    report = LoadReport(imported - started, read - imported, warm - read, base_bytes, rss_bytes(), peak_bytes())
    return Loaded(backend, signature, report)


def stages_of(spec: ModelSpec) -> tuple[str, ...]:
    """Those that this model goes through, in order."""
    importing = (IMPORTING,) if package_of(spec.framework) else ()
    return (*importing, READING, *((WARMING_UP,) if spec.warmup else ()))
