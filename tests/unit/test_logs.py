"""Logs: one line an event, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry import logs


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_is_one_line_with_time_level_logger_message_and_fields() -> None:
    stream = io.StringIO()
    logs.configure("text", "info", stream)
    logging.getLogger("a.b").info("ready %d", 1, extra={"model": "add", "why": "of old age"})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d INFO    a\.b: ready 1 model=add why='of old age'\n",
        stream.getvalue(),
    )


def test_json_is_one_object_with_the_same_facts() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    logging.getLogger("a.b").warning("ready %d", 1, extra={"model": "add", "path": logs.JsonFormatter})
    event = json.loads(stream.getvalue())
    assert event["time"].endswith("+00:00")
    assert (event["level"], event["logger"], event["message"], event["model"]) == ("warning", "a.b", "ready 1", "add")
    assert "JsonFormatter" in event["path"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_request_at_hand_is_named(form: str) -> None:
    stream = io.StringIO()
    logs.configure(form, "info", stream)
    token = logs.request_id.set("r-17")
    logging.getLogger("x").info("inside")
    logs.request_id.reset(token)
    logging.getLogger("x").info("outside")
    inside, outside = stream.getvalue().splitlines()
    assert "r-17" in inside
    assert "request_id" not in outside


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_stays_on_the_line_of_its_event(form: str) -> None:
    stream = io.StringIO()
    logs.configure(form, "info", stream)
    try:
        int("first\nsecond")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError" in line
    assert "second" in line
    assert "test_logs.py" in line


@given(*[st.text(st.characters(exclude_categories=()))] * 2)
def test_no_text_of_a_client_can_make_a_second_line(message: str, field: str) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (message,), "levelname": "INFO", "name": "x", "field": field})
    for formatter in (logs.TextFormatter(), logs.JsonFormatter()):
        assert len(formatter.format(record).splitlines()) == 1


def test_below_the_level_nothing_is_written_and_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("text", "info", first)
    logs.configure("text", "warning", second)
    logging.getLogger("x").info("unheard")
    logging.getLogger("x").warning("heard")
    assert first.getvalue() == ""
    assert "unheard" not in second.getvalue()
    assert "heard" in second.getvalue()


def test_a_client_that_left_during_its_answer_is_no_error() -> None:
    """gRPC's own class cannot be made here: its constructor is closed."""
    stream = io.StringIO()
    logs.configure("text", "info", stream)
    for error in (type("ExecuteBatchError", (Exception,), {})("gone"), ValueError("ours")):
        logging.getLogger("grpc._cython.cygrpc").error("raised in core", exc_info=error)
    assert "gone" not in stream.getvalue()
    assert "ours" in stream.getvalue()
