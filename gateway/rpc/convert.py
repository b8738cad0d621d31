"""protobuf messages to and from the gateway's own request and response. No I/O.

Checks here are those of the message's form; whether the tensors fit the model is the data plane's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from backends.spec import ITEM_SIZE
from backends.tensor import Buffer, Tensor
from gateway.errors import InvalidRequest, Unsupported
from gateway.inference import parameters
from gateway.inference.request import InferRequest, InferResponse
from gateway.inference.slices import LARGE, Slices, whole
from gateway.proto.inference_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from gateway.rpc import typed
from gateway.rpc.cut import cut, delimited, malformed
from gateway.rpc.split import THRESHOLD, split

#: numpy has no arrays of more dimensions.
MAX_RANK: Final = 64
#: protobuf messages end at 2 GiB, and clients cannot parse more; the outputs' heads need a little of that.
MAX_ANSWER: Final = (1 << 31) - (1 << 20)

_RAW_OUTPUT_TAG: Final = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2
_INT64_MAX: Final = (1 << 63) - 1


def decode(raw: bytes) -> InferRequest:
    """A serialised ``ModelInferRequest`` as a request; large tensors are views of ``raw``.

    Raises ``InvalidRequest`` that names the tensor or parameter, or ``Unsupported`` for an extension not offered.
    """
    request = begin(raw)
    return request if isinstance(request, InferRequest) else whole(request)


def begin(raw: bytes) -> InferRequest | Slices[InferRequest]:
    """The same, or the work that gives it if that takes a while. Raises as ``decode`` does."""
    parts = split(raw) if len(raw) >= THRESHOLD else None
    if parts is not None:
        return _request(_parse(parts[0]), parts[1])
    if len(raw) > LARGE:
        return _decode_in_slices(raw)
    message = _parse(raw)
    return _request(message, list(message.raw_input_contents))


def _decode_in_slices(raw: bytes) -> Slices[InferRequest]:
    divided = yield from cut(raw)
    request = _request(_parse(divided.rest), divided.raw_contents, _packed_later)
    if not divided.raw_contents:
        for tensor, contents in zip(request.inputs, divided.typed_contents, strict=True):
            tensor.data = yield from typed.pack_in_slices(tensor, contents)
    return request


def _packed_later(*_: object) -> bytes:
    return b""


def _parse(raw: bytes) -> ModelInferRequest:
    try:
        return ModelInferRequest.FromString(raw)
    except DecodeError as error:
        raise malformed(error) from error


def _request(
    message: ModelInferRequest, contents: Sequence[Buffer], pack: Callable[..., bytes] = typed.pack
) -> InferRequest:
    """The request in ``message``; ``contents`` stand for its ``raw_input_contents``."""
    request = InferRequest(message.model_name, message.model_version, _inputs(message, contents, pack))
    if message.id:
        request.id = message.id
    if message.outputs:
        request.outputs = _outputs(message)
    if message.parameters:
        request.parameters, request.priority, request.timeout_us = parameters.interpret(_plain(message.parameters))
    return request


def encode(response: InferResponse) -> bytes:
    """A response as a serialised ``ModelInferResponse``, the outputs raw. ``response`` may be released afterwards.

    The outputs' bytes are appended to the message by hand: they are copied once, where protobuf would copy them thrice.
    Raises ``Unsupported`` if the answer is larger than a protobuf message can be.
    """
    message = ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    if response.parameters:
        _set_parameters(message, response.parameters)
    parts: list[Buffer] = [b""]
    size = 0
    add = message.outputs.add
    for tensor in response.outputs:
        add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        data = tensor.data
        size += len(data)
        parts.append(delimited(_RAW_OUTPUT_TAG, len(data)))
        parts.append(data)
    parts[0] = message.SerializeToString()
    if size > MAX_ANSWER:
        raise Unsupported(
            f"the outputs of model {response.model!r} have {size} bytes, a gRPC answer at most {MAX_ANSWER};"
            " ask for fewer outputs or a smaller batch, or use HTTP with binary tensors"
        )
    return b"".join(parts)


def _inputs(message: ModelInferRequest, contents: Sequence[Buffer], pack: Callable[..., bytes]) -> list[Tensor]:
    heads = message.inputs
    if contents and len(contents) != len(heads):
        raise InvalidRequest(_miscounted(message, len(contents)))
    tensors: list[Tensor] = []
    names = set()
    for index, head in enumerate(heads):
        name, datatype, shape = head.name, head.datatype, tuple(head.shape)
        if (
            datatype not in ITEM_SIZE
            or len(shape) > MAX_RANK
            or (shape and min(shape) < 0)
            or name in names
            or not name
        ):
            raise InvalidRequest(_bad_head(name, datatype, shape, index))
        names.add(name)
        if head.parameters:
            _refuse_extensions("input", name, head.parameters)
        typed_contents = head.contents if head.HasField("contents") else None
        if not contents:
            data: Buffer = pack(name, datatype, shape, typed_contents)
        elif typed_contents is None:
            data = contents[index]
        else:
            raise InvalidRequest(
                f"input {name!r} has contents while the request has raw_input_contents; send all inputs in one form"
            )
        tensors.append(Tensor(name, datatype, shape, data))
    return tensors


def _outputs(message: ModelInferRequest) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for output in message.outputs:
        name = output.name
        if name in names:
            raise InvalidRequest(f"output {name!r} is requested twice; request each output once")
        if output.parameters:
            _refuse_extensions("output", name, output.parameters)
        names[name] = None
    return tuple(names)


def _bad_head(name: str, datatype: str, shape: tuple[int, ...], index: int) -> str:
    """Why an input's name, datatype or shape is refused."""
    if not name:
        return f"input {index} has no name; name it as the model's metadata does"
    if datatype not in ITEM_SIZE:
        return f"input {name!r}: unknown datatype {datatype!r}; use one of {', '.join(ITEM_SIZE)}"
    if len(shape) > MAX_RANK:
        return f"input {name!r}: its shape has {len(shape)} dimensions, at most {MAX_RANK} are allowed"
    if shape and min(shape) < 0:
        return f"input {name!r}: shape {list(shape)} has a negative dimension; send the tensor's real shape"
    return f"input {name!r} is given twice; give each input once"


def _miscounted(message: ModelInferRequest, entries: int) -> str:
    """Why the number of raw entries is refused."""
    inputs = message.inputs
    if entries > len(inputs):
        return f"raw_input_contents has {entries} entries for {len(inputs)} input(s); remove the surplus"
    typed_names = [head.name for head in inputs if head.HasField("contents")]
    if typed_names:
        return f"input {typed_names[0]!r} has contents while others are raw; send all inputs in one form"
    return (
        f"input {inputs[entries].name!r} has no data: raw_input_contents has {entries} entries for"
        f" {len(inputs)} inputs; give one entry for each input, in their order"
    )


def _refuse_extensions(kind: str, name: str, given: Mapping[str, InferParameter]) -> None:
    """Parameters of a tensor ask for extensions; those that would change the answer are refused, not ignored."""
    for key in given:
        if key.startswith("shared_memory_"):
            raise Unsupported(f"{kind} {name!r}: shared memory is not offered here; send the tensor in the message")
        if key == "classification":
            raise Unsupported(f"{kind} {name!r}: classification is not offered here; request the plain tensor")


def _plain(given: Mapping[str, InferParameter]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidRequest(f"parameter {key!r} has no value; set one of its fields")
        values[key] = getattr(parameter, choice)
    return values


def _set_parameters(message: ModelInferResponse, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        parameter = message.parameters[key]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int) and value <= _INT64_MAX:
            parameter.int64_param = value
        elif isinstance(value, int):
            parameter.uint64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = str(value)
