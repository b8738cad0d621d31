"""The contract between the worker and a backend: what a framework has to provide, and the rules it may rely on.

Rules, each with a test in ``tests/contract``:

* construction is cheap and imports no framework; all cost is in ``load``;
* ``import_framework`` may be called before ``load``, which works without it too;
* ``load`` is called once, before any ``infer``, and either returns the signature or raises ``LoadFailed``;
* ``infer`` may be called from several threads at once when ``spec.instances > 1``; it never keeps a reference to its
  inputs after it returned, and never writes to them;
* ``infer`` gets a whole batch, already joined along axis 0, and answers every requested output;
  ``parameters`` are equal for the whole batch if the class says ``uses_parameters``, and empty otherwise;
  ``InvalidInput`` says that the request is at fault, any other exception that the framework failed;
* ``trim`` may be called at any time after ``load``, from a thread of its own and beside ``infer``;
* ``unload`` is called once, after the last ``infer``; the process ends after it.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy.typing as npt

from backends.spec import ModelSpec, Signature

#: input or output name -> array. BYTES tensors are object arrays of ``bytes``; BF16 tensors are ``uint16`` arrays.
Arrays = dict[str, npt.NDArray[Any]]


class Backend(abc.ABC):
    """Loads one version of a model with one framework and runs it."""

    #: Version of the framework, known after ``load``.
    runtime: str = ""
    #: Whether requests with different parameters must not share a batch.
    uses_parameters: bool = False

    def import_framework(self, spec: ModelSpec) -> None:
        """Import what ``load(spec)`` needs, so that its time and memory are not counted as the model's.

        Raises ``LoadFailed`` (``MissingExtra``) if it cannot be imported.
        """
        return

    @abc.abstractmethod
    def load(self, spec: ModelSpec) -> Signature:
        """Load the model. Raises ``LoadFailed`` (or a subclass) with a text for a person."""

    @abc.abstractmethod
    def infer(self, inputs: Arrays, outputs: tuple[str, ...], parameters: dict[str, Any]) -> Arrays:
        """Compute ``outputs`` (names out of the signature)."""

    def trim(self) -> None:
        """Give back what the framework keeps for the next run; the model stays loaded."""
        return

    @abc.abstractmethod
    def unload(self) -> None:
        """Give everything back."""
