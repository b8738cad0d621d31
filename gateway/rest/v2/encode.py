"""``InferResponse`` -> REST body: JSON, or JSON with binary tensors behind it."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.tensor import Buffer, Tensor
from gateway.inference.request import InferResponse
from gateway.rest.v2.decode import Wanted
from gateway.rest.v2.jsondata import json_of_tensor

_encode = msgspec.json.Encoder().encode


class _Output(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw | None = None


class _Answer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Output]
    id: str = ""
    parameters: dict[str, Any] | None = None


def encode(response: InferResponse, wanted: Wanted) -> tuple[bytes, int | None]:
    """The body, and the size of its JSON part if binary data follows. Raises ``InvalidRequest``.

    The body is a copy: the response may be released as soon as this returns.
    """
    binary: list[Buffer] = []
    outputs = [_output(tensor, _is_binary(tensor.name, wanted), binary) for tensor in response.outputs]
    answer = _Answer(response.model, response.version, outputs, response.id, response.parameters or None)
    header = _encode(answer)
    if not any(map(len, binary)):
        return header, None
    return b"".join((header, *binary)), len(header)


def _is_binary(name: str, wanted: Wanted) -> bool:
    """Listing outputs switches the default off for those listed (as Triton behaves, whatever its documents say)."""
    return wanted.binary_default if wanted.binary is None else name in wanted.binary


def _output(tensor: Tensor, as_binary: bool, binary: list[Buffer]) -> _Output:
    if not as_binary:
        return _Output(tensor.name, tensor.datatype, tensor.shape, data=json_of_tensor(tensor))
    binary.append(tensor.data)
    return _Output(tensor.name, tensor.datatype, tensor.shape, {"binary_data_size": len(tensor.data)})
