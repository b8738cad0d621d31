"""How the builder of TensorFlow models writes SavedModels. Runs in the builder's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

#: Datatype of the protocol -> type of TensorFlow.
TYPE: Final = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "BF16": "bfloat16", "FP32": "float32", "FP64": "float64", "BYTES": "string",
}  # fmt: skip

#: A shape as TensorFlow knows it, None for what is variable.
Shape = Sequence[int | None]

ROWS: Final = (None, None)


def save(folder: Path, function: Callable[..., Any], inputs: dict[str, tuple[str, Shape | None]], **held: Any) -> None:
    """A SavedModel with one signature; ``held`` are the variables and tables that the function uses."""
    import tensorflow as tf

    module = tf.Module()
    for name, each in held.items():
        setattr(module, name, each)
    specs = {name: tf.TensorSpec(shape, TYPE[datatype], name=name) for name, (datatype, shape) in inputs.items()}
    module.function = tf.function(function)
    tf.saved_model.save(module, str(folder), signatures=module.function.get_concrete_function(**specs))


def save_version_1(folder: Path, session: Any, inputs: Any, outputs: Any, tags: Any, **more: Any) -> None:
    """A SavedModel as TensorFlow 1 wrote them; ``more`` goes to its builder."""
    import tensorflow as tf

    v1 = tf.compat.v1
    folder.rmdir()  # the builder wants to make it
    builder = v1.saved_model.Builder(str(folder))
    signature = v1.saved_model.predict_signature_def(inputs, outputs)
    builder.add_meta_graph_and_variables(session, list(tags), {"serving_default": signature}, **more)
    builder.save()
