"""MLServer's custom runtime for an ONNX file; runs in MLServer's environment."""

# mypy: allow-subclassing-any
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.peers.session import OnnxModel


class OnnxRuntime(MLModel):
    """Loads the file named by ``parameters.uri`` of the model's settings."""

    async def load(self) -> bool:
        self.model = OnnxModel(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        answer = self.model.run({i.name: NumpyCodec.decode_input(i) for i in payload.inputs})
        outputs = [NumpyCodec.encode_output(name, array) for name, array in answer.items()]
        return InferenceResponse(model_name=self.name, outputs=outputs)
