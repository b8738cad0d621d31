"""SavedModels and LiteRT models that are served, or refused for their types. Runs in the builder's process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.tf_saving import ROWS, TYPE, Shape, save, save_version_1


def identities(folder: Path, datatypes: Sequence[str], shape: Shape | None = ROWS) -> None:
    """One input ``IN_<datatype>`` and output ``OUT_<datatype>`` for each."""
    import tensorflow as tf

    def function(**tensors: Any) -> Any:
        return {f"OUT_{name.removeprefix('IN_')}": tf.identity(tensor) for name, tensor in tensors.items()}

    save(folder, function, {f"IN_{datatype}": (datatype, shape) for datatype in datatypes})


def add_one(folder: Path, shape: Shape | None = ROWS, datatype: str = "FP32") -> None:
    """``y = x + 1``, where the 1 is a variable; by default any number of rows of any length."""
    import tensorflow as tf

    one = tf.Variable(tf.cast(1, TYPE[datatype]))
    save(folder, lambda x: {"y": x + one}, {"x": (datatype, shape)}, one=one)


def same_names(folder: Path) -> None:
    """``x = x + 1``: an input and an output of the same name."""
    save(folder, lambda x: {"x": x + 1}, {"x": ("FP32", ROWS)})


def add_sub(folder: Path, shape: Shape = (None, 16)) -> None:
    """Triton's "simple" model."""

    def function(**tensors: Any) -> Any:
        a, b = tensors["INPUT0"], tensors["INPUT1"]
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}

    save(folder, function, {"INPUT0": ("INT32", shape), "INPUT1": ("INT32", shape)})


def join_strings(folder: Path) -> None:
    """BYTES ``x`` and ``suffix`` [-1, 1] -> BYTES ``y`` = x + suffix."""
    shape = (None, 1)
    save(folder, lambda x, suffix: {"y": x + suffix}, {"x": ("BYTES", shape), "suffix": ("BYTES", shape)})


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
        spec = tf.TensorSpec(ROWS, "float32", name=f"{name}_in")
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
        save_version_1(folder, session, {"x": x}, {"y": y}, tags)


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
    save(folder, lambda x: {"y": table.lookup(x)}, {"x": ("BYTES", (None, 1))}, table=table)


def ragged(folder: Path, where: str) -> None:
    """The ``input`` or the ``output`` is ragged, or the output ``sparse``."""
    import tensorflow as tf

    make = tf.sparse.from_dense if where == "sparse" else tf.RaggedTensor.from_tensor
    module = tf.Module()
    if where == "input":
        spec = tf.RaggedTensorSpec([None, None], tf.int32)
        module.function = tf.function(lambda x: {"y": x.to_tensor()}, input_signature=[spec])
    else:
        spec = tf.TensorSpec(ROWS, tf.int32, name="x")
        module.function = tf.function(lambda x: {"y": make(x)}, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.function)


def complex_numbers(folder: Path) -> None:
    """Its output is of a type that the protocol lacks."""
    import tensorflow as tf

    save(folder, lambda x: {"y": tf.cast(x, tf.complex64)}, {"x": ("FP32", ROWS)})


def distinct(folder: Path) -> None:
    """The rows of ``y`` are the different ones of ``x``: their number depends on the data."""
    import tensorflow as tf

    save(folder, lambda x: {"y": tf.raw_ops.UniqueV2(x=x, axis=[0])[0]}, {"x": ("INT32", ROWS)})


def mixes_rows(folder: Path) -> None:
    """Gives two rows for every row."""
    import tensorflow as tf

    save(folder, lambda x: {"y": tf.concat([x, x], 0)}, {"x": ("FP32", ROWS)})


def picks_from_table(folder: Path) -> None:
    """``y = 10 * x`` for indices INT64 x [-1, 1] below 4; any other index fails while running."""
    import tensorflow as tf

    save(folder, lambda x: {"y": tf.gather([0.0, 10.0, 20.0, 30.0], x)}, {"x": ("INT64", (None, 1))})


def fails(folder: Path) -> None:
    """Fails for a reason that is no fault of the request."""
    import tensorflow as tf

    def function(x: Any) -> Any:
        table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.float32)
        return {"y": x + tf.raw_ops.LookupTableFindV2(table_handle=table, keys=["a"], default_value=0.0)}

    save(folder, function, {"x": ("FP32", ROWS)})


def spells(folder: Path) -> None:
    """``y`` is the number of letters of ``x`` as text, which only a processor can do."""
    import tensorflow as tf

    save(folder, lambda x: {"y": tf.strings.length(tf.strings.as_string(x))}, {"x": ("FP32", ROWS)})


def slow(folder: Path, rounds: int = 50, size: int = 100) -> None:
    """``y = x`` after that many products of matrices."""
    import tensorflow as tf

    def function(x: Any) -> Any:
        state = tf.eye(size) + 0 * tf.reduce_sum(x)
        for _ in tf.range(rounds):
            state = tf.matmul(state, state)
        return {"y": x + 0 * tf.reduce_sum(state)}

    save(folder, function, {"x": ("FP32", ROWS)})


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
