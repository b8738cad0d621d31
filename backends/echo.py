"""``EchoBackend``: the reference backend. It needs no framework and no artifact, and answers every input unchanged.

Signature: output *i* echoes input *i*. What the spec leaves out is filled in: without inputs there is one, ``INPUT0``
(FP32, ``[-1, -1]``), and without outputs they are called ``OUTPUT0``, ``OUTPUT1``, ...

Options of the model (``ModelSpec.options``)

=================== =================================================================================================
``fault_injection``  ``true`` allows all that follows; without it every other option and parameter here is refused
``load_bytes``       the model holds that much memory
``load_delay_ms``    loading takes that long
``load_fail``        loading fails with this text
``load_crash``       the process ends while loading: an exit code, or the name of a signal (``SIGKILL``)
``load_hang``        loading never ends: ``true``, or ``gil`` to stop every other thread of the process as well
=================== =================================================================================================

Parameters of a request: ``delay_ms``, ``fail``, ``crash`` and ``hang`` do the same while computing; ``invalid`` says
that the request is at fault, with this text; ``print_bytes`` writes that many bytes to standard output. Several are
carried out in the order ``print_bytes``, ``delay_ms``, ``invalid``, ``fail``, ``crash``, ``hang``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from backends.batching import decide
from backends.contract import Arrays, Backend
from backends.errors import BackendError, InferenceFailed, InvalidInput, LoadFailed
from backends.spec import ModelSpec, Signature, TensorSpec

_LINE: Final = 80
_SWITCH: Final = "fault_injection"
_LOAD_FAULTS: Final = ("load_bytes", "load_delay_ms", "load_fail", "load_crash", "load_hang")

#: A fault's value, and the class of a failure: ``LoadFailed`` or ``InferenceFailed``.
_Fault = Callable[[Any, type[BackendError]], None]


class EchoBackend(Backend):
    """Returns each input under the name of its output."""

    uses_parameters = True

    def __init__(self) -> None:
        self._source: dict[str, str] = {}
        self._faults_allowed = False
        self._weights = b""

    def load(self, spec: ModelSpec) -> Signature:
        """Raises ``LoadFailed`` for inputs and outputs that do not pair up, and where the options ask for it."""
        _check_options(spec.options)
        self._faults_allowed = spec.options.get(_SWITCH) == "true"
        inputs, outputs = _tensors(spec)
        self._source = {output.name: source.name for source, output in zip(inputs, outputs, strict=True)}
        self.runtime = "echo"
        faults = {name.removeprefix("load_"): value for name, value in spec.options.items() if name in _LOAD_FAULTS}
        self._weights = _held(faults.pop("bytes", "0"))
        _inject(faults, LoadFailed)
        return Signature("echo", inputs, outputs, *decide(spec, (*inputs, *outputs), rows_apart=True))

    def infer(self, inputs: Arrays, outputs: tuple[str, ...], parameters: dict[str, Any]) -> Arrays:
        """Copies of the inputs. Raises what the parameters ask for."""
        faults = {name: value for name, value in parameters.items() if name in _FAULTS}
        if faults and not self._faults_allowed:
            raise InvalidInput(
                f"parameter {next(iter(faults))!r} injects a fault, which this model does not allow: leave it out, or "
                f'load the model with the option {_SWITCH} = "true"'
            )
        _inject(faults, InferenceFailed)
        return {name: self._echo(name, inputs) for name in outputs or tuple(self._source)}

    def unload(self) -> None:
        """Give the memory back."""
        self._source, self._weights = {}, b""

    def _echo(self, output: str, inputs: Arrays) -> Any:
        source = self._source.get(output)
        if source is None:
            raise InvalidInput(f"output {output!r} does not exist; the model gives {', '.join(self._source)}")
        if source not in inputs:
            raise InvalidInput(f"input {source!r} is missing")
        return inputs[source].copy()


def _check_options(options: Mapping[str, str]) -> None:
    accepted = (_SWITCH, *_LOAD_FAULTS)
    for name in options:
        if name not in accepted:
            raise LoadFailed(f"the echo backend has no option {name!r}; it takes {', '.join(accepted)}")
    if options.get(_SWITCH, "false") not in ("true", "false"):
        raise LoadFailed(f"option {_SWITCH} is {options[_SWITCH]!r}; it is true or false")
    for name in _LOAD_FAULTS:
        if name in options and options.get(_SWITCH) != "true":
            raise LoadFailed(f'option {name} injects a fault; it needs the option {_SWITCH} = "true"')


def _tensors(spec: ModelSpec) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs with what the spec left out."""
    inputs = spec.inputs or tuple(
        TensorSpec(f"INPUT{index}", output.datatype, output.shape) for index, output in enumerate(spec.outputs)
    )
    inputs = inputs or (TensorSpec("INPUT0", "FP32", (-1, -1)),)
    outputs = spec.outputs or tuple(
        TensorSpec(f"OUTPUT{index}", source.datatype, source.shape) for index, source in enumerate(inputs)
    )
    if len(inputs) != len(outputs):
        raise LoadFailed(f"an echo pairs inputs with outputs; {len(inputs)} and {len(outputs)} are declared")
    for source, output in zip(inputs, outputs, strict=True):
        if source.datatype != output.datatype:
            raise LoadFailed(
                f"output {output.name!r} echoes input {source.name!r} and has to be {source.datatype} as well, "
                f"not {output.datatype}"
            )
    return inputs, outputs


# --- faults --------------------------------------------------------------------------------------------------------


def _inject(faults: Mapping[str, Any], failure: type[BackendError]) -> None:
    """Carry the faults out; a value that makes no sense is the fault of whoever gave it."""
    for name, act in _FAULTS.items():
        value = faults.get(name)
        if value is None or value is False:
            continue
        try:
            act(value, failure)
        except ValueError as error:
            blame = LoadFailed if failure is LoadFailed else InvalidInput
            raise blame(f"{name} is {value!r}: {error}") from error


def _held(value: str) -> bytes:
    """That many bytes of memory, not one of which is zero: the kernel has to give every page."""
    try:
        return b"w" * _number(value)
    except (ValueError, OverflowError) as error:
        raise LoadFailed(f"load_bytes is {value!r}: {error}") from error


def _print(value: Any, _: type[BackendError]) -> None:
    count = _number(value)
    for _line in range(count // _LINE):
        sys.stdout.write("x" * (_LINE - 1) + "\n")
    sys.stdout.write("x" * (count % _LINE))
    sys.stdout.flush()


def _delay(value: Any, _: type[BackendError]) -> None:
    time.sleep(_number(value) / 1000)


def _blame(value: Any, _: type[BackendError]) -> None:
    raise InvalidInput(str(value))


def _fail(value: Any, failure: type[BackendError]) -> None:
    raise failure(str(value))


def _crash(value: Any, _: type[BackendError]) -> None:
    if not str(value).startswith("SIG"):
        os._exit(_number(value))
    try:
        number = signal.Signals[str(value)]
    except KeyError:
        raise ValueError("there is no such signal") from None
    os.kill(os.getpid(), number)
    threading.Event().wait()  # the signal may arrive a moment later; nothing must be answered meanwhile


def _hang(value: Any, _: type[BackendError]) -> None:
    mode = str(value).lower()
    if mode not in ("true", "gil"):
        raise ValueError("it is true or gil")
    if mode == "gil":
        ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter lock: no Python thread runs from here on
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # in C, without the interpreter lock: other threads go on


def _number(value: Any) -> int:
    number = int(value)
    if number < 0:
        raise ValueError("it must not be negative")
    return number


#: Every fault, in the order in which several are carried out.
_FAULTS: Final[dict[str, _Fault]] = {
    "print_bytes": _print,
    "delay_ms": _delay,
    "invalid": _blame,
    "fail": _fail,
    "crash": _crash,
    "hang": _hang,
}
