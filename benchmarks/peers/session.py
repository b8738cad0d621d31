"""The model code that every peer runs, so that a difference between them is a difference of servers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Arrays = Mapping[str, np.ndarray[Any, Any]]


class OnnxModel:
    """One onnxruntime session with one intra-op thread, on the CPU."""

    def __init__(self, path: str | os.PathLike[str], intra_op_threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = intra_op_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(Path(path)), options, providers=["CPUExecutionProvider"])
        self.output_names = [output.name for output in self.session.get_outputs()]

    def run(self, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        return dict(zip(self.output_names, self.session.run(None, dict(feeds)), strict=True))
