"""Options of a model: read by a table, or refused with name, value, what is allowed, and the mend."""

from __future__ import annotations

import os
from typing import Any

import pytest

from backends.errors import LoadFailed
from backends.options import (
    Reader,
    Table,
    names,
    number,
    one_of,
    switch,
    thread_count,
    threads_of_one,
    usable_cores,
    words,
)

TABLE = Table(
    "test",
    {"threads": thread_count, "fast": switch, "tags": names("tags", "a,b")},
    aliases={"THREADS": "threads"},
    ignored=frozenset({"OLD"}),
    kinds={"fast": ("red", "green")},
)


def refusal(**given: str) -> str:
    with pytest.raises(LoadFailed) as refused:
        TABLE.read(given)
    return str(refused.value)


def test_values_come_under_the_options_own_names() -> None:
    assert TABLE.read({"THREADS": "3", "fast": " True ", "tags": "a, b"}) == {
        "threads": 3, "fast": True, "tags": ("a", "b"),
    }  # fmt: skip
    assert TABLE.read({}) == {}


def test_what_is_tritons_own_or_of_no_effect_is_accepted() -> None:
    given = {"OLD": "whatever", "TRITON_BATCH_STRATEGY_PATH": "/somewhere"}
    assert TABLE.read(given) == {}
    TABLE.check_kind(given, "blue")


def test_an_unknown_name_is_refused_with_its_value_and_with_what_there_is() -> None:
    assert refusal(thread="7") == (
        "the test backend has no option 'thread' (given as '7'); it takes threads, fast, tags: correct it in the "
        "configuration's parameters, or leave it out"
    )


def test_a_bad_value_is_refused_under_the_name_that_was_given() -> None:
    assert refusal(THREADS="many") == (
        "option THREADS is 'many'; it takes a number of threads (0: the backend's choice), 0 to 1024: correct it in "
        "the configuration's parameters, or leave it out"
    )


def test_one_option_under_two_names_is_refused() -> None:
    assert refusal(threads="1", THREADS="2") == "options threads and THREADS ('2') mean the same: keep one of them"


def test_an_option_of_another_kind_of_model_is_refused_with_its_kinds() -> None:
    TABLE.check_kind({"fast": "1", "threads": "1"}, "green")
    with pytest.raises(LoadFailed, match="option fast is for red and green, this is blue: remove fast = '1'"):
        TABLE.check_kind({"fast": "1"}, "blue")


READS: list[tuple[Reader, str, Any]] = [
    (number(1, 10, "things"), "1", 1),
    (number(1, 10, "things"), "10", 10),
    (number(0, 99, "things"), "07", 7),
    (one_of({"a": 1, "b": None}), "B", None),
    (switch, "1", True),
    (switch, "FALSE", False),
    (names("names", "a,b"), "a", ("a",)),
    (words("a name"), "a b", "a b"),
]


@pytest.mark.parametrize(("reader", "text", "value"), READS)
def test_a_reader_gives_the_value(reader: Reader, text: str, value: Any) -> None:
    assert reader(text) == value


REFUSES: list[tuple[Reader, str, str]] = [
    (number(1, 10, "things"), "0", "a number of things, 1 to 10"),
    (number(1, 10, "things"), "11", "a number of things, 1 to 10"),
    (number(1, 10, "things"), "-1", "a number of things"),
    (number(1, 10, "things"), "1.0", "a number of things"),
    (number(1, 10, "things"), "", "a number of things"),
    (number(1, 10, "things"), "٣", "a number of things"),
    (number(1, 10, "things"), "9" * 10_000, "a number of things"),
    (one_of({"a": 1, "b": 2}), "c", "a, b"),
    (switch, "yes", "true, false, 1, 0"),
    (names("tags", "a,b"), "a,,b", "tags with commas between them, for example a,b"),
    (names("tags", "a,b"), "", "tags with commas"),
    (words("a name"), "", "a name"),
]


@pytest.mark.parametrize(("reader", "text", "told"), REFUSES)
def test_a_reader_says_what_it_takes(reader: Reader, text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        reader(text)


def test_the_cores_are_shared_unless_a_number_of_threads_is_given() -> None:
    assert [threads_of_one(0, 8, instances) for instances in (0, 1, 3, 16)] == [8, 8, 2, 1]
    assert threads_of_one(5, 8, 2) == 5
    assert usable_cores() == len(os.sched_getaffinity(0))
