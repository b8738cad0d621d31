"""The ``padding.`` parameters of a configuration: to the batcher's rules, and shown as they were given."""

from __future__ import annotations

import pytest

from backends.spec import ModelSpec, PaddingSpec, Signature, TensorSpec
from gateway.modelconfig.parse import ConfigError, Format, parse, to_dict
from gateway.modelconfig.render import render
from gateway.modelconfig.spec import to_spec
from gateway.proto.model_config_pb2 import ModelConfig

TENSORS = """
    input { name: "ids" data_type: TYPE_INT32 dims: -1 }
    input { name: "mask" data_type: TYPE_BOOL dims: -1 }
    input { name: "text" data_type: TYPE_STRING dims: -1 }
    input { name: "fixed" data_type: TYPE_FP32 dims: 4 }
    output { name: "hidden" data_type: TYPE_FP32 dims: [ -1, 384 ] }
    output { name: "vector" data_type: TYPE_FP32 dims: 384 }
"""
FULL = {"value.ids": "0", "value.scale": "-1.5e3", "mask.mask": "ids", "crop.hidden": "ids", "max_ratio": "2.5"}
SPEC = PaddingSpec({"ids": 0, "scale": -1500.0}, {"mask": "ids"}, {"hidden": "ids"}, 2.5)


def config(given: dict[str, str], more: str = "") -> ModelConfig:
    lines = (f'parameters {{ key: "padding.{key}" value {{ string_value: "{text}" }} }}' for key, text in given.items())
    return parse("\n".join((*lines, more)), "pbtxt")


def spec(config: ModelConfig) -> ModelSpec:
    return to_spec(config, name="m", version=1, path="m/1", framework="onnx")


def padding(given: dict[str, str], more: str = "") -> PaddingSpec | None:
    rules = spec(config(given, more)).batching
    assert rules is not None
    return rules.padding


def test_every_parameter_has_its_place_and_is_no_option_of_the_backend() -> None:
    found = spec(config(FULL, "dynamic_batching { max_queue_delay_microseconds: 5 }"))
    assert found.batching is not None
    assert found.batching.padding == SPEC
    assert found.batching.max_queue_delay_us == 5
    assert found.options == {}


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", '{"parameters": {"padding.value.ids": {"string_value": "0"}}}'),
        ("toml", 'parameters = { "padding.value.ids" = { string_value = "0" } }'),
        ("toml", 'parameters."padding.value.ids".string_value = "0"'),
    ],
)
def test_it_is_the_same_in_json_and_toml(form: Format, text: str) -> None:
    rules = spec(parse(text, form)).batching
    assert rules is not None
    assert rules.padding == PaddingSpec({"ids": 0})


def test_the_complete_configuration_shows_it_and_means_the_same() -> None:
    given = config(FULL)
    model = spec(given)
    tensors = (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("scale", "FP32", (-1, -1)))
    masks = (TensorSpec("mask", "INT64", (-1, -1), optional=True),)
    signature = Signature("onnx", (*tensors, *masks), (TensorSpec("hidden", "FP32", (-1, -1, 8)),), 8, model.batching)
    shown = render(model, signature, given, [1])
    assert to_dict(shown)["parameters"] == to_dict(given)["parameters"]
    assert [entry.optional for entry in shown.input] == [False, False, True]
    again = spec(shown).batching
    assert again is not None
    assert again.padding == SPEC


def test_without_the_parameters_nothing_is_padded() -> None:
    assert padding({}) is None


def test_what_the_model_may_still_have_is_left_to_the_load() -> None:
    assert padding({"value.ids": "0.5", "crop.what": "ever"}) == PaddingSpec({"ids": 0.5}, crops={"what": "ever"})


def test_names_of_tensors_may_have_dots() -> None:
    assert padding({"value.encoder.ids": "0"}) == PaddingSpec({"encoder.ids": 0})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"value.idx": "0"}, "padding.value.idx: the model has no input 'idx'; use one of 'ids', 'mask', 'text'"),
        ({"value.text": "0"}, "padding.value.text: a BYTES input cannot be padded with a number: take it out"),
        ({"value.fixed": "0"}, "padding.value.fixed: input 'fixed' of shape [-1, 4] has no variable axis (-1)"),
        (
            {"value.ids": "2147483648"},
            "padding.value.ids: 2147483648 is no INT32: give a whole number from -2147483648",
        ),
        ({"value.ids": "0.5"}, "padding.value.ids: 0.5 is no INT32"),
        ({"value.ids": "0", "mask.idx": "ids"}, "padding.mask.idx: the model has no input 'idx'"),
        ({"value.ids": "0", "mask.text": "ids"}, "padding.mask.text: a BYTES input"),
        (
            {"value.ids": "0", "crop.hiden": "ids"},
            "padding.crop.hiden: the model has no output 'hiden'; use one of 'hi",
        ),
        ({"value.ids": "0", "crop.vector": "ids"}, "padding.crop.vector: output 'vector' of shape [-1, 384] has no va"),
        ({"value.ids": "0", "crop.hidden": "idx"}, "padding.crop.hidden: the model has no input 'idx'"),
    ],
)
def test_what_contradicts_the_declared_tensors_is_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        padding(given, "max_batch_size: 8" + TENSORS)
    assert str(caught.value).startswith("parameters." + complaint)


@pytest.mark.parametrize("text", ["", " ", "x", "1_0", "0x10", "nan", "inf", "1e999", "\u0663", "1" * 41, "--1", "."])
def test_a_value_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^parameters\.padding\.value\.ids is .*; it has to be a number"):
        padding({"value.ids": text})


@pytest.mark.parametrize(
    ("text", "value"), [("-1", -1), ("+7", 7), ("1e3", 1000.0), (".5", 0.5), ("9" * 20, int("9" * 20))]
)
def test_a_number_is_read_as_it_is_written(text: str, value: float) -> None:
    assert padding({"value.ids": text}) == PaddingSpec({"ids": value})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"mask.mask": "ids"}, "mask.mask is set, but no input is padded: add padding.value.<input>"),
        ({"max_ratio": "2"}, "max_ratio is set, but no input is padded"),
        ({"value.ids": "0", "mask.mask": "idx"}, "mask.mask is 'idx'; it has to be a padded input: 'ids'"),
        (
            {"value.ids": "0", "value.mask": "0", "mask.mask": "ids"},
            "mask.mask is set, and parameters.padding.value.mask",
        ),
        ({"value.ids": "0", "max_ratio": "1"}, "max_ratio is '1'; it has to be over 1"),
        ({"value.ids": "0", "max_ratio": "no"}, "max_ratio is 'no'; it has to be a number"),
        ({"valu.ids": "0"}, "valu.ids is not known; use padding.value.<name of a tensor>"),
        ({"value.": "0"}, "value. is not known"),
        (
            {"mask": "attention_mask"},
            "mask is not known; use padding.value.<name of a tensor>, padding.mask.<name of a te",
        ),
    ],
)
def test_what_the_parameters_contradict_among_themselves_is_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        padding(given)
    assert str(caught.value).startswith("parameters.padding." + complaint)


@pytest.mark.parametrize("more", ["max_batch_size: 1", TENSORS])
def test_a_model_that_does_not_batch_cannot_pad(more: str) -> None:
    with pytest.raises(ConfigError, match=r"^parameters\.padding\.value\.ids is set, but max_batch_size is [01]"):
        padding({"value.ids": "0"}, more)
