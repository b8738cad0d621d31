"""The table of errors is total, and a status is one that a client can receive."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from gateway import errors
from gateway.rpc.errors import MAX_TEXT, STATUS, status, text, trailing_metadata


def subclasses(kind: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_every_class_of_error_is_in_the_table() -> None:
    named = {kind for kind in subclasses(errors.GatewayError) if kind.__module__ == errors.__name__}
    assert len(named) > 10
    assert named - STATUS.keys() == set()
    assert STATUS.keys() - named == {errors.GatewayError}


def test_a_class_that_is_not_in_the_table_has_the_code_of_its_base() -> None:
    class QuotaReached(errors.Overloaded):
        pass

    assert status(QuotaReached("x")) is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.PayloadTooLarge("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.NotFound("x"), grpc.StatusCode.NOT_FOUND),
        (errors.ModelNotReady("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.Overloaded("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.WorkerDied("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.DeadlineExceeded("x"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.ModelFailed("x"), grpc.StatusCode.INTERNAL),
    ],
)
def test_codes(error: errors.GatewayError, code: grpc.StatusCode) -> None:
    assert status(error) is code


def test_an_error_that_knows_when_to_try_again_says_so() -> None:
    busy = errors.Overloaded("x")
    busy.retry_after_s = 0.25
    assert trailing_metadata(busy) == (("grpc-retry-pushback-ms", "250"), ("retry-after", "1"))
    busy.retry_after_s = 6.4
    assert trailing_metadata(busy) == (("grpc-retry-pushback-ms", "6400"), ("retry-after", "6"))
    assert dict(trailing_metadata(errors.WorkerDied("x"))) == {"grpc-retry-pushback-ms": "1000", "retry-after": "1"}
    assert trailing_metadata(errors.ModelNotReady("x")) == ()
    assert trailing_metadata(errors.NotFound("x")) == ()


def test_a_long_text_is_cut_between_characters() -> None:
    assert text(errors.InvalidRequest("é" * 10)) == "é" * 10
    cut = text(errors.InvalidRequest("x" + "é" * MAX_TEXT))
    assert cut == "x" + "é" * ((MAX_TEXT - 1) // 2) + "..."
    assert text(errors.InvalidRequest("\udcff")) == "?"
