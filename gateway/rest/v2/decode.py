"""REST bodies -> ``InferRequest``: JSON, JSON with binary tensors behind it, and raw binary requests."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from backends.spec import ITEM_SIZE, Signature
from backends.tensor import Tensor, element_count
from gateway.errors import InvalidRequest, PayloadTooLarge, Unsupported
from gateway.inference.parameters import interpret
from gateway.inference.request import InferRequest
from gateway.inference.slices import LARGE, Slices
from gateway.rest.v2.cut import Cut, cut
from gateway.rest.v2.jsondata import TOO_DEEP, loads, tensor_from_json
from gateway.rest.v2.jsonslices import data_from_json, moved

MAX_HEADER_LENGTH: Final = 2**31 - 1
#: The protocol's dimensions are 64-bit integers.
MAX_SIZE: Final = 2**63 - 1
#: Bytes of JSON beside the tensors' data: they are parsed in one go.
MAX_HEADS: Final = 1 << 20


_ABSENT: Final = msgspec.Raw()


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw = _ABSENT


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Output] | None = None
    id: str = ""
    parameters: dict[str, Any] | None = None


class Wanted(msgspec.Struct):
    """Which outputs the answer has to hold in binary form: those named, or all that are not listed."""

    binary: frozenset[str] | None  # None: no outputs were listed
    binary_default: bool


_decode_body = msgspec.json.Decoder(_Body).decode
_TEXT_ONLY: Final = Wanted(None, False)
_ALL_BINARY: Final = Wanted(None, True)

#: An escape that may be half of a pair.
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def header_length(value: bytes | None, body_size: int) -> int | None:
    """The JSON part's size by ``Inference-Header-Content-Length``; None without it. Raises ``InvalidRequest``."""
    if value is None:
        return None
    text = value.decode("latin-1").strip(" \t")
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(
            f"Inference-Header-Content-Length is {text!r}; it must be the size of the JSON part in bytes, digits only"
        )
    length = int(text) if len(text) <= 20 else MAX_HEADER_LENGTH + 1
    if length > min(body_size, MAX_HEADER_LENGTH):
        raise InvalidRequest(
            f"Inference-Header-Content-Length is {text}, the body has {body_size} bytes; "
            "it must be the size of the JSON part that the body begins with"
        )
    return length


def is_large(body: bytes, length: int | None) -> bool:
    """Whether there is so much JSON that it is to be decoded by ``decode_in_slices``."""
    return (len(body) if length is None else length) > LARGE


def decode(
    model: str, version: str, body: bytes, length: int | None, max_json_bytes: int
) -> tuple[InferRequest, Wanted]:
    """A JSON request with its binary tensors, if any. Raises ``InvalidRequest``."""
    text, binary = _divided(body, length, max_json_bytes)
    parsed = _parse(text)
    return _request(model, version, parsed, _tensors(parsed.inputs, binary))


def decode_in_slices(
    model: str, version: str, body: bytes, length: int | None, max_json_bytes: int
) -> Slices[tuple[InferRequest, Wanted]]:
    """The same of a large one: what it gives, and what it refuses with which words."""
    text, binary = _divided(body, length, max_json_bytes)
    divided = yield from cut(text)
    parsed = _parse_heads(divided)
    tensors = _tensors(parsed.inputs, binary, divided)
    request, wanted = _request(model, version, parsed, tensors)
    for tensor in tensors:
        array = divided.array(tensor.data) if isinstance(tensor.data, msgspec.Raw) else None
        if array is not None:
            tensor.data = yield from data_from_json(tensor, text, array)
    return request, wanted


def _divided(body: bytes, length: int | None, max_json_bytes: int) -> tuple[memoryview, memoryview]:
    """The JSON part and the binary part."""
    view = memoryview(body)
    size = len(view) if length is None else length
    if size > max_json_bytes:
        raise PayloadTooLarge(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {max_json_bytes} bytes; "
            "send tensors in binary form, or raise the setting max_json_bytes"
        )
    return view[:size], view[size:]


def _request(model: str, version: str, parsed: _Body, inputs: list[Tensor]) -> tuple[InferRequest, Wanted]:
    request = InferRequest(model, version, inputs, id=parsed.id)
    default = _read_parameters(request, parsed.parameters) if parsed.parameters else False
    if not parsed.outputs:
        return request, _ALL_BINARY if default else _TEXT_ONLY
    return request, _read_outputs(request, parsed.outputs, default)


def decode_raw(model: str, version: str, body: bytes, signature: Signature) -> tuple[InferRequest, Wanted]:
    """A raw binary request: the body is the model's only input. Raises ``InvalidRequest``."""
    if len(signature.inputs) != 1:
        raise InvalidRequest(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{model}' model; use the binary tensor extension"
        )
    spec = signature.inputs[0]
    shape = (1, *spec.shape[1:]) if signature.max_batch_size else spec.shape
    if spec.datatype == "BYTES":
        if element_count(tuple(abs(size) for size in shape)) != 1:
            raise InvalidRequest(
                f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1], "
                f"it has {list(spec.shape)}"
            )
        data: bytes = len(body).to_bytes(4, "little") + body
        shape = tuple(abs(size) for size in shape)
    else:
        data, shape = body, _deduce(spec.name, shape, len(body), ITEM_SIZE[spec.datatype])
    return InferRequest(model, version, [Tensor(spec.name, spec.datatype, shape, data)]), _ALL_BINARY


def _deduce(name: str, shape: tuple[int, ...], size: int, item: int) -> tuple[int, ...]:
    variable = [axis for axis, value in enumerate(shape) if value == -1]
    if len(variable) > 1:
        raise InvalidRequest(
            f"the shape of raw input '{name}' cannot be deduced: it has {len(variable)} variable dimensions, at most 1 "
            "can be; use the binary tensor extension"
        )
    fixed = item * element_count(tuple(value for value in shape if value != -1))
    if not variable:
        return shape
    if not fixed or size % fixed:
        raise InvalidRequest(f"raw input '{name}' has {size} bytes, which is no multiple of {fixed}")
    return tuple(size // fixed if value == -1 else value for value in shape)


def _parse(text: memoryview) -> _Body:
    try:
        return _decode_body(text)
    except RecursionError:
        raise InvalidRequest(TOO_DEEP) from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the request does not have the protocol's form: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raw = bytes(text)
        if b"NaN" in raw or b"Infinity" in raw:
            return _parse_with_constants(raw)
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from error


def _parse_heads(divided: Cut) -> _Body:
    """What is left of a large text."""
    if len(divided.rest) > MAX_HEADS:
        raise InvalidRequest(
            f"the request has {len(divided.rest)} bytes of JSON beside the arrays in 'data'; at most {MAX_HEADS} are "
            "allowed: send what is large as a tensor"
        )
    try:
        return _parse(memoryview(divided.rest))
    except InvalidRequest as error:
        raise InvalidRequest(moved(str(error), divided.place)) from None


def _parse_with_constants(raw: bytes) -> _Body:
    """JSON with ``NaN`` and ``Infinity``, which strict parsers refuse: slower, and only then."""
    try:
        plain = loads(raw)
        if _SURROGATE.search(raw):
            json.dumps(plain, ensure_ascii=False).encode()  # half a pair is no text: ``UnicodeEncodeError``
        for tensor in plain.get("inputs", ()) if isinstance(plain, dict) else ():
            if isinstance(tensor, dict) and "data" in tensor:
                tensor["data"] = msgspec.Raw(json.dumps(tensor["data"]).encode())
        return msgspec.convert(plain, _Body)
    except RecursionError:
        raise InvalidRequest(TOO_DEEP) from None
    except (ValueError, TypeError) as error:  # msgspec.ValidationError is a ValueError
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from error


def _tensors(inputs: list[_Input], binary: memoryview, divided: Cut | None = None) -> list[Tensor]:
    """``divided``: what was cut out of the text; the data of a tensor that was is left as it is."""
    tensors, start, total = [], 0, len(binary)
    for entry in inputs:
        name, datatype = entry.name, entry.datatype
        if datatype not in ITEM_SIZE:
            known = ", ".join(ITEM_SIZE)
            raise InvalidRequest(f"input '{name}' has unknown datatype {datatype!r}; known are {known}")
        shape = tuple(entry.shape)
        if shape and (min(shape) < 0 or max(shape) > MAX_SIZE):
            raise InvalidRequest(
                f"Unable to parse 'shape' of input '{name}': {entry.shape}; each size has to be from 0 to {MAX_SIZE}"
            )
        size = _binary_size(entry) if entry.parameters else None
        if size is None:
            if divided is not None and divided.array(entry.data) is not None:
                tensors.append(Tensor(name, datatype, shape, entry.data))
            else:
                tensors.append(tensor_from_json(name, datatype, shape, None if entry.data is _ABSENT else entry.data))
            continue
        if entry.data is not _ABSENT:
            raise InvalidRequest(f"input '{name}' has both 'data' and 'binary_data_size'; give one of them")
        if size > total - start:
            raise InvalidRequest(
                f"unexpected size for input '{name}': binary_data_size is {size}, {total - start} bytes are left "
                "behind the JSON part"
            )
        tensors.append(Tensor(name, datatype, shape, binary[start : start + size]))
        start += size
    if start != total:
        raise InvalidRequest(
            f"unexpected additional input data: {total - start} bytes follow the last binary tensor; the sum of "
            "binary_data_size must be the size of the binary part"
        )
    return tensors


def _binary_size(entry: _Input) -> int | None:
    parameters = entry.parameters or {}
    if "shared_memory_region" in parameters:
        raise Unsupported(f"input '{entry.name}': Client shared memory is disabled on this server; send the data")
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"input '{entry.name}' has binary_data_size {size!r}; it must be a whole number, 0 or more"
        )
    return size


def _read_parameters(request: InferRequest, parameters: dict[str, Any]) -> bool:
    """Sort the request's parameters into the request; whether outputs are binary by default."""
    binary = _expect("binary_data_output", parameters.pop("binary_data_output", False), bool)
    if parameters:
        request.parameters, request.priority, request.timeout_us = interpret(parameters)
    return bool(binary)


def _read_outputs(request: InferRequest, outputs: list[_Output], default: bool) -> Wanted:
    names: dict[str, None] = {}  # in their order; to look into a list takes time in proportion to its length
    binary = set()
    for output in outputs:
        if output.name in names:
            raise InvalidRequest(f"output '{output.name}' already exists in request; ask for each output once")
        names[output.name] = None
        parameters = output.parameters or {}
        if "shared_memory_region" in parameters:
            raise Unsupported(f"output '{output.name}': Client shared memory is disabled on this server")
        if "classification" in parameters:
            raise Unsupported(
                f"output '{output.name}': the classification extension is not offered; ask for the tensor"
            )
        if _expect("binary_data", parameters.get("binary_data", False), bool):
            binary.add(output.name)
    request.outputs = tuple(names)
    return Wanted(frozenset(binary), default)


def _expect(key: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise InvalidRequest(f"parameter '{key}' is {value!r}; it must be a {kind.__name__}")
    return value
