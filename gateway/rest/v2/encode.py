"""``InferResponse`` -> REST body: JSON, or JSON with binary tensors behind it."""

from __future__ import annotations

import io
import secrets
from typing import Any, Final

import msgspec

from backends.tensor import Buffer, Tensor
from gateway.inference.request import InferResponse
from gateway.inference.slices import LARGE, Slices
from gateway.rest.v2.decode import Wanted
from gateway.rest.v2.jsondata import json_of_tensor
from gateway.rest.v2.jsonslices import write_json

_encode = msgspec.json.Encoder().encode
#: Stands where a large array is to come. No model can know it.
_PLACE: Final = msgspec.Raw(b'"%s"' % secrets.token_hex(8).encode())


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


def is_large(response: InferResponse, wanted: Wanted) -> bool:
    """Whether so much is to become JSON that it is to be encoded by ``encode_in_slices``."""
    size = 0
    for tensor in response.outputs:
        size += len(tensor.data)
    if size <= LARGE:
        return False
    return size - sum(len(tensor.data) for tensor in response.outputs if _is_binary(tensor.name, wanted)) > LARGE


def encode(response: InferResponse, wanted: Wanted) -> tuple[bytes, int | None]:
    """The body, and the size of its JSON part if binary data follows. Raises ``InvalidRequest``.

    The body is a copy: the response may be released as soon as this returns.
    """
    binary: list[Buffer] = []
    outputs = []
    for tensor in response.outputs:
        if _is_binary(tensor.name, wanted):
            outputs.append(_binary_output(tensor, binary))
        else:
            outputs.append(_json_output(tensor, json_of_tensor(tensor)))
    head = _head(response, outputs)
    if not any(map(len, binary)):
        return head, None
    return b"".join((head, *binary)), len(head)


def encode_in_slices(response: InferResponse, wanted: Wanted) -> Slices[tuple[bytes, int | None]]:
    """The same, for large outputs in JSON."""
    binary: list[Buffer] = []
    texts, outputs = [], []
    for tensor in response.outputs:
        if _is_binary(tensor.name, wanted):
            outputs.append(_binary_output(tensor, binary))
        else:
            texts.append(tensor)
            outputs.append(_json_output(tensor, _PLACE))
    first, *others = _head(response, outputs).split(bytes(_PLACE))
    body = io.BytesIO()  # it grows without copies, and is taken without one
    body.write(first)
    for tensor, behind in zip(texts, others, strict=True):
        yield from write_json(body, tensor)
        body.write(behind)
    length = body.tell()
    for buffer in binary:
        body.write(buffer)
        yield
    return body.getvalue(), length if body.tell() > length else None


def _head(response: InferResponse, outputs: list[_Output]) -> bytes:
    return _encode(_Answer(response.model, response.version, outputs, response.id, response.parameters or None))


def _is_binary(name: str, wanted: Wanted) -> bool:
    """Listing outputs switches the default off for those listed (as Triton behaves, whatever its documents say)."""
    return wanted.binary_default if wanted.binary is None else name in wanted.binary


def _binary_output(tensor: Tensor, binary: list[Buffer]) -> _Output:
    binary.append(tensor.data)
    return _Output(tensor.name, tensor.datatype, tensor.shape, {"binary_data_size": len(tensor.data)})


def _json_output(tensor: Tensor, text: msgspec.Raw) -> _Output:
    return _Output(tensor.name, tensor.datatype, tensor.shape, data=text)
