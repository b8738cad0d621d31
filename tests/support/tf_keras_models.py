"""Keras models. Runs in the builder's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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

    Own.__module__ = "__main__"  # as that of a script, which Keras does not write down
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
