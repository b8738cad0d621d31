"""Ask a model over gRPC with NVIDIA's client. Usage: grpc_client.py [HOST:PORT] [MODEL]

Needs `pip install tritonclient`; grpcio and protobuf, which it uses, are there where Tensorgate is installed.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import tritonclient.grpc.aio as grpc
from tritonclient.utils import InferenceServerException


def tensor(values: np.ndarray) -> grpc.InferInput:
    """magika's input."""
    made = grpc.InferInput("bytes", list(values.shape), "INT32")
    made.set_data_from_numpy(values)
    return made


async def main() -> None:
    """One call, then 64 at a time: the server batches what waits."""
    address, model = (*sys.argv[1:], *("127.0.0.1:8001", "magika")[len(sys.argv) - 1 :])
    files = np.random.default_rng(0).integers(0, 256, (64, 1, 2048)).astype(np.int32)
    async with grpc.InferenceServerClient(address) as client:
        answer = await client.infer(model, [tensor(files[0])])
        print("one call:", answer.as_numpy("target_label").shape)
        answers = await asyncio.gather(*(client.infer(model, [tensor(file)]) for file in files))
        print("64 calls:", np.concatenate([answer.as_numpy("target_label") for answer in answers]).shape)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except InferenceServerException as error:
        sys.exit(str(error))  # the status, and the server's own words
