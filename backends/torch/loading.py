"""Loading, step by step: options, device, artifact, program, batching, and the runs that come before requests."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from backends.batching import decide
from backends.errors import LoadFailed
from backends.options import usable_cores
from backends.spec import BatchingSpec, ModelSpec, Signature
from backends.torch import artifact, devices, faults, graphs, options, signature, trial
from backends.torch.artifact import Artifact
from backends.torch.framework import torch
from backends.torch.kinds import aotinductor, custom, encoder, exported, torchscript
from backends.torch.options import Options
from backends.torch.program import Program

_Load = Callable[[Artifact, ModelSpec, Options, Any], Program]
_KINDS: Final[dict[str, _Load]] = {
    options.TORCHSCRIPT: torchscript.load,
    options.EXPORTED: exported.load,
    options.AOTINDUCTOR: aotinductor.load,
    options.TRANSFORMERS: encoder.load,
    options.CLASS: custom.load,
}


class Loaded(msgspec.Struct):
    """A program that is ready to run, where it runs, and what is told about it."""

    program: Program
    signature: Signature
    device: Any
    channels_last: bool
    runtime: str


def load(spec: ModelSpec) -> Loaded:
    """Raises ``LoadFailed`` with a text for a person, whatever torch raised."""
    chosen = options.parse(spec, usable_cores())
    signature.check_types((*spec.inputs, *spec.outputs))
    device = devices.choose(spec.device)
    devices.set_threads(chosen)
    path = Path(spec.path)
    try:
        found = artifact.locate(path, chosen)
        options.TABLE.check_kind(spec.options, found.kind)
        with warnings.catch_warnings(), torch.inference_mode(mode=False), torch.no_grad():
            warnings.simplefilter("ignore")  # what torch has to say about its own future is not the operator's business
            program = _KINDS[found.kind](found, spec, chosen, device)
            told = _prepare(program, spec, chosen, device)
    except Exception as error:  # torch and what it calls raise anything
        raise faults.at_load(error, path, device) from error
    runtime = f"torch {torch.__version__} ({device})"
    return Loaded(program, told, device, chosen.channels_last, runtime)


def _prepare(program: Program, spec: ModelSpec, chosen: Options, device: Any) -> Signature:
    with torch.inference_mode():
        apart = program.rows_apart and (
            not program.try_rows or spec.max_batch_size is not None or trial.rows_are_apart(program, device)
        )
        size, batching = _batching(program, spec, apart)
        if chosen.cuda_graphs:
            program.run = graphs.record(program, device)
        elif chosen.compile:
            _warm_up(program, device, chosen, batched=size > 0)
    return Signature(program.platform, program.inputs, program.outputs, size, batching)


def _batching(program: Program, spec: ModelSpec, apart: bool) -> tuple[int, BatchingSpec | None]:
    """Raises ``LoadFailed`` for a ``max_batch_size`` over the model's own."""
    size, batching = decide(spec, (*program.inputs, *program.outputs), apart)
    limit = program.max_rows
    if limit is None or size <= limit:
        return size, batching
    if spec.max_batch_size is not None:
        raise LoadFailed(
            f"max_batch_size is {size}, the model was exported for at most {limit}: set it to that or less"
        )
    return limit, batching


def _warm_up(program: Program, device: Any, chosen: Options, *, batched: bool) -> None:
    inductor = torch._inductor.config
    inductor.compile_threads = 1  # no processes beside the worker's own
    try:
        trial.warm_up(program, device, batched=batched)
    except Exception as error:  # the compiler, or the model that does not take zeros
        if faults.is_out_of_memory(error):
            raise
        raise LoadFailed(
            f"option compile = {chosen.compile}: {faults.text_of(error)}; it needs a C++ compiler (gcc) that the "
            "worker can run and a model that takes zeros: install one, or leave the option out"
        ) from error
