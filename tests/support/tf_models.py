"""Small TensorFlow models for tests, built in a process of their own: the tests' process has no need of TensorFlow.

``build("add_one", folder, shape=[None, 4])`` has the child run the function of that name below. The child is started
with the first model, imports TensorFlow once, and ends with the tests.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import traceback
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

_ROWS: Final = (None, None)


def build(kind: str, folder: Path, **arguments: Any) -> Path:
    """Write a model into ``folder``, making it; returns the folder. Arguments have to be JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    _builder().ask(kind, str(folder), arguments)
    return folder


class _Builder:
    """The child: a line of JSON in, a line of JSON out."""

    def __init__(self) -> None:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "KERAS_HOME": f"{os.devnull}/keras"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **quiet},
        )  # fmt: skip
        atexit.register(self.end)

    def ask(self, kind: str, folder: str, arguments: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, folder, arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the builder of TensorFlow models ended with {self._process.wait()}")
        failure = json.loads(answer)
        if failure:
            raise RuntimeError(failure)

    def end(self) -> None:
        if self._process.returncode is None:
            self._process.communicate()


@functools.cache
def _builder() -> _Builder:
    return _Builder()


def stop() -> None:
    """End the builder, if there is one: other tests count this process's children."""
    if _builder.cache_info().currsize:
        _builder().end()
        _builder.cache_clear()


# --- what follows runs in the child --------------------------------------------------------------------------------


def _save(folder: Path, function: Callable[..., Any], inputs: dict[str, tuple[str, Shape | None]], **held: Any) -> None:
    """A SavedModel with one signature; ``held`` are the variables and tables that the function uses."""
    import tensorflow as tf

    module = tf.Module()
    for name, each in held.items():
        setattr(module, name, each)
    specs = {name: tf.TensorSpec(shape, TYPE[datatype], name=name) for name, (datatype, shape) in inputs.items()}
    module.function = tf.function(function)
    tf.saved_model.save(module, str(folder), signatures=module.function.get_concrete_function(**specs))


# SavedModels that work


def identities(folder: Path, datatypes: Sequence[str], shape: Shape | None = _ROWS) -> None:
    """One input ``IN_<datatype>`` and output ``OUT_<datatype>`` for each."""
    import tensorflow as tf

    def function(**tensors: Any) -> Any:
        return {f"OUT_{name.removeprefix('IN_')}": tf.identity(tensor) for name, tensor in tensors.items()}

    _save(folder, function, {f"IN_{datatype}": (datatype, shape) for datatype in datatypes})


def add_one(folder: Path, shape: Shape | None = _ROWS, datatype: str = "FP32") -> None:
    """``y = x + 1``, where the 1 is a variable; by default any number of rows of any length."""
    import tensorflow as tf

    one = tf.Variable(tf.cast(1, TYPE[datatype]))
    _save(folder, lambda x: {"y": x + one}, {"x": (datatype, shape)}, one=one)


def same_names(folder: Path) -> None:
    """``x = x + 1``: an input and an output of the same name."""
    _save(folder, lambda x: {"x": x + 1}, {"x": ("FP32", _ROWS)})


def add_sub(folder: Path, shape: Shape = (None, 16)) -> None:
    """Triton's "simple" model."""

    def function(**tensors: Any) -> Any:
        a, b = tensors["INPUT0"], tensors["INPUT1"]
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}

    _save(folder, function, {"INPUT0": ("INT32", shape), "INPUT1": ("INT32", shape)})


def join_strings(folder: Path) -> None:
    """BYTES ``x`` and ``suffix`` [-1, 1] -> BYTES ``y`` = x + suffix."""
    shape = (None, 1)
    _save(folder, lambda x, suffix: {"y": x + suffix}, {"x": ("BYTES", shape), "suffix": ("BYTES", shape)})


def signatures(folder: Path, names: Sequence[str]) -> None:
    """For each name a signature ``<name>_in`` -> ``<name>_out``, which adds 1, 2, ..."""
    import tensorflow as tf

    module = tf.Module()
    module.functions = {}
    concrete = {}
    for number, name in enumerate(names, 1):

        def function(number: int = number, name: str = name, **tensors: Any) -> Any:
            return {f"{name}_out": tensors[f"{name}_in"] + number}

        module.functions[name] = tf.function(function)
        spec = tf.TensorSpec(_ROWS, "float32", name=f"{name}_in")
        concrete[name] = module.functions[name].get_concrete_function(**{f"{name}_in": spec})
    tf.saved_model.save(module, str(folder), signatures=concrete)


def first_versions(folder: Path, tags: Sequence[str] = ("serve",)) -> None:
    """A model of TensorFlow 1: ``y = x * [1, 2, 3, 4]``."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.multiply(x, v1.get_variable("w", initializer=[1.0, 2.0, 3.0, 4.0]), name="y")
        session.run(v1.global_variables_initializer())
        _save_version_1(folder, session, {"x": x}, {"y": y}, tags)


def _save_version_1(folder: Path, session: Any, inputs: Any, outputs: Any, tags: Any, **more: Any) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    folder.rmdir()  # the builder wants to make it
    builder = v1.saved_model.Builder(str(folder))
    signature = v1.saved_model.predict_signature_def(inputs, outputs)
    builder.add_meta_graph_and_variables(session, list(tags), {"serving_default": signature}, **more)
    builder.save()


def vocabulary(folder: Path) -> None:
    """INT64 ``y``: the place of each of BYTES ``x`` in the file of words (red, green, blue), or -1."""
    import tensorflow as tf

    words = folder.parent / f"{folder.name}-words.txt"
    words.write_text("red\ngreen\nblue\n")
    table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            str(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        ),
        -1,
    )
    _save(folder, lambda x: {"y": table.lookup(x)}, {"x": ("BYTES", (None, 1))}, table=table)


def ragged(folder: Path, where: str) -> None:
    """The ``input`` or the ``output`` is ragged, or the output ``sparse``."""
    import tensorflow as tf

    make = tf.sparse.from_dense if where == "sparse" else tf.RaggedTensor.from_tensor
    module = tf.Module()
    if where == "input":
        spec = tf.RaggedTensorSpec([None, None], tf.int32)
        module.function = tf.function(lambda x: {"y": x.to_tensor()}, input_signature=[spec])
    else:
        spec = tf.TensorSpec(_ROWS, tf.int32, name="x")
        module.function = tf.function(lambda x: {"y": make(x)}, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.function)


def complex_numbers(folder: Path) -> None:
    """Its output is of a type that the protocol lacks."""
    import tensorflow as tf

    _save(folder, lambda x: {"y": tf.cast(x, tf.complex64)}, {"x": ("FP32", _ROWS)})


def distinct(folder: Path) -> None:
    """The rows of ``y`` are the different ones of ``x``: their number depends on the data."""
    import tensorflow as tf

    _save(folder, lambda x: {"y": tf.raw_ops.UniqueV2(x=x, axis=[0])[0]}, {"x": ("INT32", _ROWS)})


def mixes_rows(folder: Path) -> None:
    """Gives two rows for every row."""
    import tensorflow as tf

    _save(folder, lambda x: {"y": tf.concat([x, x], 0)}, {"x": ("FP32", _ROWS)})


def picks_from_table(folder: Path) -> None:
    """``y = 10 * x`` for indices INT64 x [-1, 1] below 4; any other index fails while running."""
    import tensorflow as tf

    _save(folder, lambda x: {"y": tf.gather([0.0, 10.0, 20.0, 30.0], x)}, {"x": ("INT64", (None, 1))})


def fails(folder: Path) -> None:
    """Fails for a reason that is no fault of the request."""
    import tensorflow as tf

    def function(x: Any) -> Any:
        table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.float32)
        return {"y": x + tf.raw_ops.LookupTableFindV2(table_handle=table, keys=["a"], default_value=0.0)}

    _save(folder, function, {"x": ("FP32", _ROWS)})


def spells(folder: Path) -> None:
    """``y`` is the number of letters of ``x`` as text, which only a processor can do."""
    import tensorflow as tf

    _save(folder, lambda x: {"y": tf.strings.length(tf.strings.as_string(x))}, {"x": ("FP32", _ROWS)})


def slow(folder: Path, rounds: int = 50, size: int = 100) -> None:
    """``y = x`` after that many products of matrices."""
    import tensorflow as tf

    def function(x: Any) -> Any:
        state = tf.eye(size) + 0 * tf.reduce_sum(x)
        for _ in tf.range(rounds):
            state = tf.matmul(state, state)
        return {"y": x + 0 * tf.reduce_sum(state)}

    _save(folder, function, {"x": ("FP32", _ROWS)})


# SavedModels that reach out


def reaches_out(folder: Path, how: str, target: str) -> None:
    """``y = x``, and a graph that would read or create the file ``target`` for every request."""
    import tensorflow as tf

    def inner(x: Any) -> Any:
        operation = _REACHES[how](target, x)
        with tf.control_dependencies([] if operation is None else [operation]):
            return tf.identity(x)

    # inside of a function inside of a branch, where only a look at all functions finds it
    function = tf.function(inner)
    _save(folder, lambda x: {"y": tf.cond(tf.size(x) > 0, lambda: function(x), lambda: x)}, {"x": ("FP32", _ROWS)})


def doubles(folder: Path, target: str) -> None:
    """A harmless function that is called, and another one that would write a file and says that it does the same."""
    import tensorflow as tf

    def harmless(x: Any) -> Any:
        return tf.identity(x)

    def harmful(x: Any) -> Any:
        with tf.control_dependencies([_save_checkpoint(target, x)]):
            return tf.identity(x)

    attributes = {"api_implements": "same", "api_preferred_device": "CPU"}
    spec = tf.TensorSpec(_ROWS, tf.float32, name="x")
    one, other = (
        tf.function(each, input_signature=[spec], experimental_attributes=attributes) for each in (harmless, harmful)
    )
    _save(folder, lambda x: {"y": one(x)}, {"x": ("FP32", _ROWS)}, other=other)


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
        _save_version_1(folder, session, {"x": x}, {"y": y}, ["serve"], main_op=main)


# Keras


def keras_dense(folder: Path) -> None:
    """``model.keras``: a Sequential of one layer, ``scores = 2 * x`` for x [-1, 3], with a batch normalisation."""
    import keras
    import numpy as np

    layers = [keras.layers.Dense(3, name="twice", use_bias=False), keras.layers.BatchNormalization(name="scores")]
    model = keras.Sequential([keras.Input((3,), name="x"), *layers])
    model.get_layer("twice").set_weights([2 * np.eye(3)])
    model.get_layer("scores").epsilon = 0.0
    model.compile("adam", "mse")
    model.save(folder / "model.keras")


def keras_pass(folder: Path) -> None:
    """``model.keras``: ``y = 2 * x`` for x [-1, 4]."""
    import keras

    x = keras.Input((4,), name="x")
    keras.Model(x, keras.layers.Rescaling(2.0, name="y")(x)).save(folder / "model.keras")


def keras_nested(folder: Path, outputs: str = "dictionary") -> None:
    """``model.keras``: ``sum = left + right`` and ``difference = left - right``, by their keys or as a list."""
    import keras

    left, right = (keras.Input((3,), name=name) for name in ("left", "right"))
    plus, minus = keras.layers.Add(name="plus"), keras.layers.Subtract(name="minus")
    results = {"sum": plus([left, right]), "difference": minus([left, right])}
    if outputs == "dictionary":
        model = keras.Model({"left": left, "right": right}, results)
    else:
        model = keras.Model([left, right], list(results.values()))
    model.save(folder / "model.keras")


def keras_states(folder: Path) -> None:
    """``model.keras``: one layer with three outputs."""
    import keras

    x = keras.Input((4, 2), name="x")
    keras.Model(x, keras.layers.LSTM(3, return_state=True, name="lstm")(x)).save(folder / "model.keras")


def keras_words(folder: Path) -> None:
    """``model.keras``: INT64 ``places`` of BYTES ``words`` [-1, 1] in (red, green), from 1; 0 for others."""
    import keras

    words = keras.Input((1,), dtype="string", name="words")
    places = keras.layers.StringLookup(vocabulary=["red", "green"], name="places")(words)
    keras.Model(words, places).save(folder / "model.keras")


def keras_spoken(folder: Path) -> None:
    """``model.keras``: the reverse of ``keras_words``, BYTES ``words`` for INT64 ``places`` [-1, 1]."""
    import keras

    places = keras.Input((1,), dtype="int64", name="places")
    words = keras.layers.StringLookup(vocabulary=["red", "green"], invert=True, name="words")(places)
    keras.Model(places, words).save(folder / "model.keras")


def keras_sparse(folder: Path) -> None:
    """``model.keras`` whose input is sparse."""
    import keras

    x = keras.Input((3,), sparse=True, name="x")
    keras.Model(x, keras.layers.Dense(2)(x)).save(folder / "model.keras")


def keras_lambda(folder: Path, target: str) -> None:
    """``model.keras`` with a Lambda layer that would create the file ``target``."""
    import keras

    x = keras.Input((3,), name="x")
    layer = keras.layers.Lambda(
        lambda tensor, path=target: (__import__("pathlib").Path(path).touch(), tensor)[1],
        output_shape=(3,),
        name="evil",
    )
    keras.Model(x, layer(x)).save(folder / "model.keras")
    Path(target).unlink(missing_ok=True)  # Keras may have tried it


def keras_custom(folder: Path) -> None:
    """``model.keras`` with a layer of somebody's own."""
    import keras

    @keras.saving.register_keras_serializable("mine")
    class Own(keras.layers.Layer):  # type: ignore[misc]
        def call(self, tensor: Any) -> Any:
            return tensor

    x = keras.Input((3,), name="x")
    keras.Model(x, Own(name="special")(x)).save(folder / "model.keras")


def keras_unbuilt(folder: Path) -> None:
    """``model.keras`` that does not know its inputs."""
    import keras

    keras.Sequential([keras.layers.Dense(3)]).save(folder / "model.keras")


def keras_exported(folder: Path) -> None:
    """What ``model.export`` makes of a Keras model: a SavedModel with two signatures."""
    import keras

    model = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Rescaling(2.0)])
    model.export(str(folder), verbose=False)


# LiteRT


def lite(folder: Path, model: str) -> None:
    """``model.tflite``: ``add_sub``; ``no_signature``, which adds 1; ``strings``, which gives the second and the first;
    ``picks`` from a table of two; or ``flex``, with an operator of TensorFlow's own.
    """
    import tensorflow as tf

    def row(name: str, dtype: Any = tf.float32) -> Any:
        return tf.TensorSpec([None, 4] if dtype != tf.string else [None], dtype, name=name)

    functions = {
        "add_sub": (lambda x, z: {"sum": x + z, "difference": x - z}, [row("x"), row("z")]),
        "no_signature": (lambda x: x + 1, [row("x")]),
        "strings": (lambda x: {"y": tf.gather(x, [1, 0])}, [row("x", tf.string)]),
        "picks": (lambda x: {"y": tf.gather([0.0, 10.0], x)}, [row("x", tf.int32)]),
        "flex": (lambda x: {"y": tf.strings.lower(x)}, [row("x", tf.string)]),
    }
    function, specs = functions[model]
    module = tf.Module()
    module.function = tf.function(function, input_signature=specs)
    concrete = module.function.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.experimental_lower_to_saved_model = model != "no_signature"
    if model == "flex":
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    (folder / "model.tflite").write_bytes(converter.convert())


def main() -> None:
    """Build what the lines of standard input ask for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever TensorFlow prints is no answer
    for line in sys.stdin:
        kind, folder, arguments = json.loads(line)
        failure = ""
        try:
            globals()[kind](Path(folder), **arguments)
        except Exception:  # noqa: BLE001 - it is raised again where the model was asked for
            failure = traceback.format_exc()
        print(json.dumps(failure), file=answers, flush=True)


if __name__ == "__main__":
    main()
