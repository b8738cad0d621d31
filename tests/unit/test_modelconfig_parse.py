"""Configuration files in three formats become one message; what is wrong with one is said with its place and mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.modelconfig.parse import MAX_BYTES, ConfigError, Format, from_dict, parse, parse_file, to_dict
from gateway.proto.model_config_pb2 import TYPE_FP32, ModelConfig, ModelDynamicBatching, ModelInput, ModelParameter

PBTXT = """
name: "add"  # a comment
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1, 16 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
parameters { key: "threads" value: { string_value: "2" } }
"""
JSON = """{
  "name": "add", "max_batch_size": 8,
  "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [-1, "16"]}],
  "dynamic_batching": {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 100},
  "parameters": {"threads": {"string_value": "2"}}
}"""
TOML = """
name = "add"
max_batch_size = 8
[[input]]
name = "a"
data_type = "TYPE_FP32"
dims = [-1, 16]
[dynamic_batching]
preferred_batch_size = [4, 8]
max_queue_delay_microseconds = 100
[parameters.threads]
string_value = "2"
"""
CONFIG = ModelConfig(
    name="add",
    max_batch_size=8,
    input=[ModelInput(name="a", data_type=TYPE_FP32, dims=[-1, 16])],
    dynamic_batching=ModelDynamicBatching(preferred_batch_size=[4, 8], max_queue_delay_microseconds=100),
    parameters={"threads": ModelParameter(string_value="2")},
)


@pytest.mark.parametrize(("form", "text"), [("pbtxt", PBTXT), ("json", JSON), ("toml", TOML)])
def test_three_formats_give_the_same_message(form: Format, text: str) -> None:
    assert parse(text, form) == CONFIG


@pytest.mark.parametrize(("name", "text"), [("config.pbtxt", PBTXT), ("c.json", JSON), ("c.toml", TOML)])
def test_a_file_is_read_by_its_suffix(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert parse_file(path) == CONFIG


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(PBTXT, encoding="utf-8-sig")
    assert parse_file(path) == CONFIG


def test_the_json_form_leads_back_to_the_message() -> None:
    assert from_dict(to_dict(CONFIG)) == CONFIG
    assert to_dict(ModelConfig()) == {}


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("pbtxt", 'name: "a"\nmax_batchsize: 4', ["c:2:1", "max_batchsize", "did you mean 'max_batch_size'"]),
        ("pbtxt", "input { zzz: 4 }", ["c:1:9", "zzz", "its fields are name, data_type"]),
        ("pbtxt", "input { data_type: TYPE_FLOAT }", ["c:1:20", "TYPE_FLOAT", "use one of TYPE_BOOL", "TYPE_FP32"]),
        ("pbtxt", "max_batch_size: 99999999999", ["c:1:17", "max_batch_size", "out of range"]),
        ("pbtxt", 'name: "a" name: "b"', ["c:1:17", "name"]),
        ("pbtxt", "dynamic_batching {} sequence_batching {}", ["c:1:21", "scheduling_choice"]),
        ("pbtxt", "input {", ["c:1:7", "}"]),
        ("json", '{"max_batchsize": 4}', ["c:", "max_batchsize", "did you mean 'max_batch_size'"]),
        ("json", '{"input": [{"data_typ": 1}]}', ["input[0]", "data_typ", "did you mean 'data_type'"]),
        (
            "json",
            '{"input": [{"data_type": "TYPE_FLOAT"}]}',
            ["input[0].data_type", "TYPE_FLOAT", "use one of TYPE_BOOL"],
        ),
        ("json", '{"max_batch_size": 1.5}', ["max_batch_size", "1.5"]),
        ("json", '{"max_batch_size": 1e400}', ["max_batch_size"]),
        ("json", '{"max_batch_size": true}', ["max_batch_size", "True"]),
        ("json", '{"name": 5}', ["name"]),
        ("json", '{"name": "a", "name": "b"}', ["'name'", "twice"]),
        ("json", '{"name": "a",', ["c:", "line 1"]),
        ("json", "[]", ["object", "list"]),
        ("json", "null", ["object", "NoneType"]),
        ("json", "[" * 250_000, ["nested too deeply"]),
        ("toml", 'name = "a"\nmax_batch_size = ', ["c:", "TOML"]),
        ("toml", "name = 1979-05-27", ["name"]),
        ("toml", "name = " + "[" * 250_000, ["nested too deeply"]),
    ],
)
def test_a_mistake_is_named_with_its_place_and_mend(form: Format, text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, form, source="c")
    assert all(part in str(caught.value) for part in said), str(caught.value)
    assert "Available Fields" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.pbtxt: cannot be read: No such file"):
        parse_file(tmp_path / "none.pbtxt")
    (tmp_path / "folder.pbtxt").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.pbtxt: cannot be read: Is a directory"):
        parse_file(tmp_path / "folder.pbtxt")


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml: .*\*\.pbtxt, \*\.json, \*\.toml"):
        parse_file(tmp_path / "config.yaml")
    (tmp_path / "latin.pbtxt").write_bytes(b'name: "\xe9"')
    with pytest.raises(ConfigError, match="byte 7 is not UTF-8"):
        parse_file(tmp_path / "latin.pbtxt")
    (tmp_path / "large.json").write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=f"larger than {MAX_BYTES}"):
        parse_file(tmp_path / "large.json")
