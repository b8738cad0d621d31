"""The protocol's own clients behind one function, so that a case is written once and runs over every transport.

``infer`` asks with an unmodified ``tritonclient`` (http, http.aio, grpc, grpc.aio; ``grpc-typed`` with its messages,
since its client knows raw contents only) and gives an ``Answer``, or raises ``Refused``. For requests that no client
would send there are the bare stub here, and ``support.rest``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import grpc
import ml_dtypes
import numpy as np
import numpy.typing as npt
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from support.server import PATIENCE_S, Server

Array = npt.NDArray[Any]

PROTOCOLS: Final = ("rest-json", "rest", "rest-aio", "grpc", "grpc-aio", "grpc-typed")
#: One of each transport, for cases in which the form of the tensors plays no part.
TRANSPORTS: Final = ("rest", "grpc")

DTYPE: Final[dict[str, Any]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64,
    "BYTES": np.object_,
}  # fmt: skip

_TYPED: Final = {
    "BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip

#: What a status means, whatever the transport.
_MEANING: Final = {
    "400": "invalid", "StatusCode.INVALID_ARGUMENT": "invalid",
    "404": "not found", "StatusCode.NOT_FOUND": "not found",
    "499": "cancelled", "StatusCode.CANCELLED": "cancelled",
    "500": "failed", "StatusCode.INTERNAL": "failed",
    "501": "unsupported", "StatusCode.UNIMPLEMENTED": "unsupported",
    "503": "unavailable", "StatusCode.UNAVAILABLE": "unavailable",
    "504": "deadline", "StatusCode.DEADLINE_EXCEEDED": "deadline",
}  # fmt: skip


class Answer(NamedTuple):
    """What came back; elements of BYTES are ``bytes`` in every protocol."""

    outputs: dict[str, Array]
    model: str
    version: str
    id: str


class Refused(Exception):
    """An error's answer: ``meaning`` is one of the words in ``_MEANING``, or else the status itself."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.meaning = _MEANING.get(status, status)
        self.text = text


class Request(NamedTuple):
    """What is asked; ``outputs`` empty asks for all."""

    model: str
    inputs: dict[str, Array]
    outputs: tuple[str, ...] = ("y",)
    version: str = ""
    id: str = ""
    timeout_us: int | None = None
    parameters: dict[str, Any] | None = None
    priority: int = 0
    compression: str | None = None
    headers: dict[str, str] | None = None


def carries(protocol: str, datatype: str) -> bool:
    """Whether the protocol has a form for the datatype."""
    return datatype not in ("FP16", "BF16") or protocol not in ("rest-json", "grpc-typed")


def infer(protocol: str, server: Server, model: str, inputs: dict[str, Array], **more: Any) -> Answer:
    """Ask once. ``more``: fields of ``Request``. Raises ``Refused``."""
    request = Request(model, inputs, **more)
    try:
        match protocol:
            case "rest" | "rest-json":
                return _rest(server, request, binary=protocol == "rest")
            case "rest-aio":
                return asyncio.run(_rest_aio(server, request))
            case "grpc":
                return _grpc(server, request)
            case "grpc-aio":
                return asyncio.run(_grpc_aio(server, request))
            case "grpc-typed":
                return _grpc_typed(server, request)
            case _:
                raise ValueError(protocol)
    except InferenceServerException as error:
        raise Refused(error.status(), error.message()) from error


def floats(*values: float) -> dict[str, Array]:
    """A vector as ``x``."""
    return {"x": np.array(values, np.float32)}


# --- one function for each client ------------------------------------------------------------------------------------


def _rest(server: Server, request: Request, *, binary: bool) -> Answer:
    with tritonclient.http.InferenceServerClient(server.http, network_timeout=PATIENCE_S) as client:
        inputs, outputs = _rest_tensors(tritonclient.http, request, binary=binary)
        result = client.infer(
            request.model,
            inputs,
            outputs=outputs,
            request_compression_algorithm=request.compression,
            **_common(request),
        )
    return _rest_answer(result)


async def _rest_aio(server: Server, request: Request) -> Answer:
    async with tritonclient.http.aio.InferenceServerClient(server.http, conn_timeout=PATIENCE_S) as client:
        inputs, outputs = _rest_tensors(tritonclient.http.aio, request, binary=True)
        result = await client.infer(
            request.model,
            inputs,
            outputs=outputs,
            request_compression_algorithm=request.compression,
            **_common(request),
        )
    return _rest_answer(result)


def _grpc(server: Server, request: Request) -> Answer:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        inputs, outputs = _grpc_tensors(request)
        result = client.infer(
            request.model, inputs, outputs=outputs, compression_algorithm=request.compression, **_common_grpc(request)
        )
    return _grpc_answer(result)


async def _grpc_aio(server: Server, request: Request) -> Answer:
    async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
        inputs, outputs = _grpc_tensors(request)
        result = await client.infer(
            request.model, inputs, outputs=outputs, compression_algorithm=request.compression, **_common_grpc(request)
        )
    return _grpc_answer(result)


def _grpc_typed(server: Server, request: Request) -> Answer:
    with grpc_stub(server) as stub:
        try:
            response = stub.ModelInfer(typed_message(request), metadata=_metadata(request))
        except grpc.RpcError as error:
            raise refusal(error) from error
    return _grpc_answer(tritonclient.grpc.InferResult(response))


def typed_message(request: Request) -> Any:
    """The request with typed contents."""
    message = service_pb2.ModelInferRequest(model_name=request.model, model_version=request.version, id=request.id)
    for name, array in request.inputs.items():
        datatype = np_to_triton_dtype(array.dtype)
        tensor = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        getattr(tensor.contents, _TYPED[datatype]).extend(array.reshape(-1).tolist())
    for name in request.outputs:
        message.outputs.add(name=name)
    for name, value in (request.parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    if request.priority:
        message.parameters["priority"].int64_param = request.priority
    if request.timeout_us is not None:
        message.parameters["timeout"].int64_param = request.timeout_us
    return message


def _common(request: Request) -> dict[str, Any]:
    return {
        "model_version": request.version,
        "request_id": request.id,
        "timeout": request.timeout_us,
        "priority": request.priority,
        "parameters": request.parameters,
        "headers": dict(request.headers or {}),  # the client of REST adds its own
    }


def _common_grpc(request: Request) -> dict[str, Any]:
    return _common(request) | {"headers": dict(_metadata(request))}


def _metadata(request: Request) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in (request.headers or {}).items()]


def _rest_tensors(library: Any, request: Request, *, binary: bool) -> tuple[list[Any], list[Any] | None]:
    inputs = []
    for name, array in request.inputs.items():
        tensor = library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array, binary_data=binary))
    return inputs, [library.InferRequestedOutput(name, binary_data=binary) for name in request.outputs] or None


def _grpc_tensors(request: Request) -> tuple[list[Any], list[Any] | None]:
    inputs = []
    for name, array in request.inputs.items():
        tensor = tritonclient.grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    return inputs, [tritonclient.grpc.InferRequestedOutput(name) for name in request.outputs] or None


def _rest_answer(result: Any) -> Answer:
    head = result.get_response()
    outputs = {output["name"]: _as_bytes(result.as_numpy(output["name"])) for output in head["outputs"]}
    return Answer(outputs, head["model_name"], head["model_version"], head.get("id", ""))


def _grpc_answer(result: Any) -> Answer:
    head = result.get_response()
    outputs = {output.name: _as_bytes(result.as_numpy(output.name)) for output in head.outputs}
    return Answer(outputs, head.model_name, head.model_version, head.id)


def _as_bytes(array: Array) -> Array:
    if array.dtype != np.object_:
        return array
    elements = [item.encode() if isinstance(item, str) else item for item in array.reshape(-1).tolist()]
    plain = np.empty(len(elements), np.object_)
    plain[:] = elements
    return plain.reshape(array.shape)


# --- gRPC without a client's help ------------------------------------------------------------------------------------


@contextlib.contextmanager
def grpc_channel(server: Server) -> Iterator[grpc.Channel]:
    """A channel without a limit on messages."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        yield channel


@contextlib.contextmanager
def grpc_stub(server: Server) -> Iterator[Any]:
    """All calls of the service."""
    with grpc_channel(server) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def refusal(error: Any) -> Refused:
    """A gRPC error as ``Refused``."""
    return Refused(str(error.code()), error.details())
