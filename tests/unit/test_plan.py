"""How a wanted version differs from the one that exists: named to the field, and bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.plan import Relation, differences, plain, relation
from registry.record import ModelVersion, NewVersion, Source

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
)
CONFIGS = st.dictionaries(st.text("abc", min_size=1, max_size=2), JSON, max_size=3)


def live(config: dict[str, Any], framework: str = "onnx", digest: str = "sha256:a") -> ModelVersion:
    """Version 1 as it is kept."""
    born = datetime(2026, 1, 1, tzinfo=UTC)
    return ModelVersion("m", 1, framework, "a.onnx", "/a.onnx", digest, 1, Source.REGISTERED, True, born, config)


def wanted(config: dict[str, Any], framework: str = "onnx", digest: str = "sha256:a") -> NewVersion:
    """What is to be registered under its number."""
    return NewVersion("m", framework, "b.onnx", "/b.onnx", digest, 1, number=1, config=config)


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({}, {"max_batch_size": 4}, "config.max_batch_size is unset there and 4 here"),
        ({"max_batch_size": 4}, {}, "config.max_batch_size is 4 there and unset here"),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, "config.a.c is 2 there and 3 here"),
        ({"a": [{"dims": [1, 2]}]}, {"a": [{"dims": [1, 3]}]}, "config.a[0].dims[1] is 2 there and 3 here"),
        ({"a": [1]}, {"a": [1, 2]}, "config.a[1] is unset there and 2 here"),
        ({"a": None}, {}, "config.a is null there and unset here"),
        ({"a": {}}, {"a": []}, "config.a is {} there and [] here"),
        ({"b": 1, "a": "é"}, {}, 'config.a is "é" there and unset here, config.b is 1 there and unset here'),
    ],
)
def test_each_field_of_the_config_that_differs_is_named_with_both_values(
    there: dict[str, Any], here: dict[str, Any], said: str
) -> None:
    assert differences(live(there), wanted(here)) == said


def test_artifact_and_framework_come_first() -> None:
    assert differences(live({"a": 1}), wanted({"a": 2}, "torch", "sha256:b")) == (
        "the artifact is a.onnx (sha256:a) there and b.onnx (sha256:b) here, "
        "framework is onnx there and torch here, config.a is 1 there and 2 here"
    )


def test_neither_many_differences_nor_long_values_make_a_long_text() -> None:
    text = differences(live({}), wanted({f"key{index:03}": "x" * 10_000 for index in range(500)}))
    assert text.endswith(", and 490 more")
    assert len(text) < 2000


@given(there=CONFIGS, here=CONFIGS)
def test_something_is_named_exactly_where_the_content_is_another(there: dict[str, Any], here: dict[str, Any]) -> None:
    kept, new = live(plain(there)), wanted(here)
    assert bool(differences(kept, new)) is (relation(kept, new) is Relation.OTHER)
