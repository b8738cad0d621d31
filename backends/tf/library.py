"""Importing TensorFlow, quietly, and what it says when something fails."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final

from backends.errors import BackendError, InferenceFailed, InvalidInput, LoadFailed, MissingExtra, OutOfMemory

_MAX_TEXT: Final = 500
_STANDARD_ERROR: Final = 2
#: Where TensorFlow's errors begin to tell about Python code that made the graph, long ago and elsewhere.
_HISTORY: Final = re.compile(
    r"\s*(\n\s*\[\[|The op is created at|Original stack trace|Errors may have originated|Detected at node).*", re.DOTALL
)
_NODE: Final = re.compile(r"\{\{(?:function_)?node [^}]*\}\}\s*")
_PREFIX: Final = "Graph execution error:"


def import_tensorflow() -> Any:
    """The ``tensorflow`` module. Raises ``MissingExtra``, or ``LoadFailed`` if it is installed and broken."""
    _prepare_environment()
    try:
        with quiet():
            import tensorflow as tf
            from absl import logging
    except ImportError as error:
        if error.name == "tensorflow" and isinstance(error, ModuleNotFoundError):
            raise MissingExtra(f"{sys.executable} has no tensorflow: pip install 'tensorgate[tf]'") from error
        raise LoadFailed(f"tensorflow is installed and cannot be imported: {error}") from error
    # errors come back as exceptions; TensorFlow and Keras would log warnings about their own future as well
    logging.set_verbosity(logging.ERROR)
    return tf


def import_interpreter() -> tuple[Any, str]:
    """The ``Interpreter`` class for ``.tflite`` models and its version: LiteRT's own, or the one in TensorFlow.

    Raises ``MissingExtra`` if there is neither.
    """
    try:
        with quiet():
            import ai_edge_litert
            from ai_edge_litert.interpreter import Interpreter
    except ImportError:  # TensorFlow has one too, for the time being
        tensorflow = import_tensorflow()
        if not hasattr(tensorflow.lite, "Interpreter"):
            text = f"tensorflow {tensorflow.__version__} runs no .tflite models any more: pip install ai-edge-litert"
            raise MissingExtra(text) from None
        return tensorflow.lite.Interpreter, f"tensorflow lite {tensorflow.__version__}"
    return Interpreter, f"litert {ai_edge_litert.__version__}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what native code writes to standard error, and Python's warnings, out of the log.

    TensorFlow logs before anything can tell it not to, and LiteRT whatever it is told. Only for loading, when no other
    thread has anything to say.
    """
    sys.stderr.flush()
    own = os.dup(_STANDARD_ERROR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STANDARD_ERROR)
    os.close(nowhere)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stderr.flush()
        os.dup2(own, _STANDARD_ERROR)
        os.close(own)


def text_of(error: BaseException, who: str = "tensorflow") -> str:
    """The text of an error of TensorFlow's on one line, without the history of the graph."""
    text = str(getattr(error, "message", "") or error)
    text = _NODE.sub("", _HISTORY.sub("", text.removeprefix(_PREFIX)))
    text = " ".join(text.split()) or type(error).__name__
    return f"{who}: " + (text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "...")


def failure(tensorflow: Any, error: Exception) -> BackendError:
    """What to raise for an error of a run: TensorFlow says whether it is about an argument, that is the request."""
    errors = tensorflow.errors
    text = text_of(error)
    if isinstance(error, errors.ResourceExhaustedError):
        return InferenceFailed(f"out of memory: {text}")
    # XLA calls its own limits invalid arguments
    if isinstance(error, errors.InvalidArgumentError) and "XLA" not in text:
        return InvalidInput(text)
    return InferenceFailed(text)


def load_failure(tensorflow: Any, error: Exception, what: str) -> LoadFailed:
    """What to raise for an error while loading; ``what`` says what could not be done."""
    text = text_of(error)
    if isinstance(error, tensorflow.errors.ResourceExhaustedError | MemoryError):
        return OutOfMemory(f"{what}: out of memory: {text}")
    if "Op type not registered" in text:
        text += "; the operator belongs to another package or to a newer TensorFlow: export the model without it"
    return LoadFailed(f"{what}: {text}")


def _prepare_environment() -> None:
    """What TensorFlow and Keras read as soon as they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ENABLE_RUNTIME_UPTIME_TELEMETRY", "0")
    # Keras would import whatever its settings name, and write a file of settings at home if there is none
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("KERAS_HOME", f"{os.devnull}/keras")
