"""One inference, asked over REST (binary extension) and over gRPC, as any client of the protocol does it."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from backends.tensor import NUMPY_DTYPE, datatype_of
from gateway.cli.errors import CommandFailed
from gateway.proto import SERVICE
from gateway.proto.inference_pb2 import ModelInferRequest, ModelInferResponse

Arrays = dict[str, npt.NDArray[Any]]
_HEADER: Final = "Inference-Header-Content-Length"
_TIMEOUT_S: Final = 60.0


class Answer(msgspec.Struct, frozen=True):
    """Outputs by name, and how long the call took from the client's side."""

    outputs: Arrays
    seconds: float

    @property
    def output(self) -> npt.NDArray[Any]:
        """The only one."""
        (array,) = self.outputs.values()
        return array


class Both(msgspec.Struct, frozen=True):
    """The same question's answers over both protocols."""

    rest: Answer
    grpc: Answer

    @property
    def agree(self) -> bool:
        """Whether they are equal bit for bit."""
        rest, grpc = self.rest.outputs, self.grpc.outputs
        return rest.keys() == grpc.keys() and all(
            array.shape == grpc[name].shape and array.tobytes() == grpc[name].tobytes() for name, array in rest.items()
        )

    @property
    def figures(self) -> tuple[str, str, str]:
        """For a table: milliseconds of each, and whether they agree."""
        rest, grpc = (f"{answer.seconds * 1000:.1f}" for answer in (self.rest, self.grpc))
        return rest, grpc, "yes" if self.agree else "NO"


class Caller:
    """Asks one server. Whatever goes wrong is a ``CommandFailed``."""

    def __init__(self, http_url: str, grpc_address: str) -> None:
        import grpc

        self._http = httpx.Client(base_url=http_url, trust_env=False, timeout=_TIMEOUT_S)
        self._channel = grpc.insecure_channel(grpc_address, options=[("grpc.enable_http_proxy", 0)])
        self._infer = self._channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )

    def close(self) -> None:
        """Close both connections."""
        self._http.close()
        self._channel.close()

    def ask(self, model: str, inputs: Arrays, *outputs: str) -> Both:
        """These outputs over REST, then over gRPC."""
        return Both(self.rest(model, inputs, *outputs), self.grpc(model, inputs, *outputs))

    def rest(self, model: str, inputs: Arrays, *outputs: str) -> Answer:
        """``POST /v2/models/MODEL/infer``: a JSON head, then the raw bytes of the tensors."""
        tensors = [
            {"name": name, "shape": array.shape, "datatype": datatype_of(array.dtype),
             "parameters": {"binary_data_size": array.nbytes}}
            for name, array in inputs.items()
        ]  # fmt: skip
        wanted = [{"name": output, "parameters": {"binary_data": True}} for output in outputs]
        head = json.dumps({"inputs": tensors, "outputs": wanted}).encode()
        body = b"".join([head, *(array.tobytes() for array in inputs.values())])
        started = time.perf_counter()
        try:
            response = self._http.post(f"/v2/models/{model}/infer", content=body, headers={_HEADER: str(len(head))})
        except httpx.HTTPError as error:
            raise CommandFailed(f"REST inference on {model} failed: {error}") from error
        seconds = time.perf_counter() - started
        if response.status_code != 200:
            raise CommandFailed(f"REST inference on {model} answered {response.status_code}: {response.text}")
        size = int(response.headers[_HEADER])
        return Answer(_arrays(json.loads(response.content[:size])["outputs"], response.content[size:]), seconds)

    def grpc(self, model: str, inputs: Arrays, *outputs: str) -> Answer:
        """``ModelInfer`` with raw contents."""
        import grpc

        request = ModelInferRequest(model_name=model)
        for name, array in inputs.items():
            request.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        for output in outputs:
            request.outputs.add(name=output)
        started = time.perf_counter()
        try:
            response = self._infer(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise CommandFailed(f"gRPC inference on {model} failed: {error.code().name}: {error.details()}") from error
        seconds = time.perf_counter() - started
        contents = zip(response.outputs, response.raw_output_contents, strict=True)
        found = {tensor.name: _array(tensor.datatype, list(tensor.shape), data) for tensor, data in contents}
        return Answer(found, seconds)


def _arrays(tensors: list[dict[str, Any]], data: bytes) -> Arrays:
    """The tensors of a JSON head, whose bytes follow each other in ``data``."""
    found, begin = {}, 0
    for tensor in tensors:
        end = begin + tensor["parameters"]["binary_data_size"]
        found[tensor["name"]] = _array(tensor["datatype"], tensor["shape"], data[begin:end])
        begin = end
    return found


def _array(datatype: str, shape: list[int], data: bytes) -> npt.NDArray[Any]:
    return np.frombuffer(data, NUMPY_DTYPE[datatype]).reshape(shape)
