"""The builder of TensorFlow models: a process of its own, which ``tf_models`` starts. A line of JSON in, one out."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from support import tf_keras_models, tf_reaching_models, tf_saved_models


def main() -> None:
    """Build what the lines of standard input ask for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever TensorFlow prints is no answer
    for line in sys.stdin:
        kind, folder, arguments = json.loads(line)
        failure = ""
        try:
            _function(kind)(Path(folder), **arguments)
        except Exception:  # noqa: BLE001 - it is raised again where the model was asked for
            failure = traceback.format_exc()
        print(json.dumps(failure), file=answers, flush=True)


def _function(kind: str) -> Any:
    modules = (tf_saved_models, tf_reaching_models, tf_keras_models)
    return next(getattr(module, kind) for module in modules if hasattr(module, kind))


if __name__ == "__main__":
    main()
