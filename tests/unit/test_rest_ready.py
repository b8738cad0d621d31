"""What the server says while it is not ready: which models are away."""

from __future__ import annotations

import pytest

from gateway.rest.v2.app import _not_ready_text
from gateway.serving.dataplane import IndexEntry


def entry(name: str, state: str, version: str = "1", reason: str = "") -> IndexEntry:
    """A line of the repository index."""
    return IndexEntry(name, version, state, reason)


@pytest.mark.parametrize(
    ("index", "names"),
    [
        ([entry("b", "LOADING"), entry("a", "UNAVAILABLE"), entry("c", "READY")], "a, b"),
        ([entry("a", "READY"), entry("a", "LOADING", "2"), entry("b", "LOADING")], "b"),
        ([entry("a", "READY"), entry("a", "UNAVAILABLE", "2", "no model")], "a"),
        (
            [entry("folder", "UNAVAILABLE", "", "it has no version"), entry("idle", "UNAVAILABLE", "", "unloaded")],
            "folder",
        ),
        (
            [entry(f"m{number:02}", "LOADING") for number in range(12)],
            ", ".join(f"m{n:02}" for n in range(10)) + ", and 2 more",
        ),
    ],
)
def test_the_models_that_are_away_are_named(index: list[IndexEntry], names: str) -> None:
    assert _not_ready_text(index) == f"not ready: {names} (POST /v2/repository/index says why)"


@pytest.mark.parametrize("index", [[], [entry("a", "READY")], [entry("idle", "UNAVAILABLE", "", "unloaded")]])
def test_where_no_model_is_away_none_is_blamed(index: list[IndexEntry]) -> None:
    assert _not_ready_text(index) == "not ready"
