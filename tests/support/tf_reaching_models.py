"""SavedModels that reach out of the process. Runs in the builder's process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from support.tf_saving import ROWS, save, save_version_1


def reaches_out(folder: Path, how: str, target: str) -> None:
    """``y = x``, and a graph that would read or create the file ``target`` for every request."""
    import tensorflow as tf

    def inner(x: Any) -> Any:
        operation = _REACHES[how](target, x)
        with tf.control_dependencies([] if operation is None else [operation]):
            return tf.identity(x)

    # inside of a function inside of a branch, where only a look at all functions finds it
    function = tf.function(inner)
    save(folder, lambda x: {"y": tf.cond(tf.size(x) > 0, lambda: function(x), lambda: x)}, {"x": ("FP32", ROWS)})


def doubles(folder: Path, target: str) -> None:
    """A harmless function that is called, and another one that would write a file and says that it does the same."""
    import tensorflow as tf

    def harmless(x: Any) -> Any:
        return tf.identity(x)

    def harmful(x: Any) -> Any:
        with tf.control_dependencies([_save_checkpoint(target, x)]):
            return tf.identity(x)

    attributes = {"api_implements": "same", "api_preferred_device": "CPU"}
    spec = tf.TensorSpec(ROWS, tf.float32, name="x")
    one, other = (
        tf.function(each, input_signature=[spec], experimental_attributes=attributes) for each in (harmless, harmful)
    )
    save(folder, lambda x: {"y": one(x)}, {"x": ("FP32", ROWS)}, other=other)


def _write_file(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.io.write_file(target, tf.strings.as_string(tf.reduce_sum(x)))


def _read_file(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.print(tf.io.read_file(target))


def _match_files(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.print(tf.io.matching_files(target))


def _print_to_file(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.print(x, output_stream=f"file://{target}")


def _save_checkpoint(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.raw_ops.SaveV2(prefix=target, tensor_names=["x"], shape_and_slices=[""], tensors=[x])


def _restore_checkpoint(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.print(tf.raw_ops.RestoreV2(prefix=target, tensor_names=["x"], shape_and_slices=[""], dtypes=["float32"]))


def _write_summary(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.raw_ops.CreateSummaryFileWriter(
        writer=tf.raw_ops.SummaryWriter(), logdir=target, max_queue=1, flush_millis=1, filename_suffix=""
    )


def _call_python(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.print(tf.py_function(_touch(target), [], tf.int64))


def _call_numpy(target: str, x: Any) -> Any:
    import tensorflow as tf

    return tf.print(tf.numpy_function(_touch(target), [], tf.int64))


def _touch(target: str) -> Callable[[], int]:
    def touch() -> int:
        Path(target).touch()
        return 1

    return touch


_REACHES: Final[dict[str, Callable[[str, Any], Any]]] = {
    "WriteFile": _write_file,
    "ReadFile": _read_file,
    "MatchingFiles": _match_files,
    "PrintV2": _print_to_file,
    "SaveV2": _save_checkpoint,
    "RestoreV2": _restore_checkpoint,
    "CreateSummaryFileWriter": _write_summary,
    "EagerPyFunc": _call_python,
    "PyFunc": _call_numpy,
}


def writes_while_loading(folder: Path, target: str) -> None:
    """Its initialiser would create the file ``target``."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.identity(x, name="y")
        main = tf.io.write_file(target, "written")
        save_version_1(folder, session, {"x": x}, {"y": y}, ["serve"], main_op=main)
