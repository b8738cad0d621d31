"""Each transport has one table from the gateway's errors to its own; none may lack a class, whoever adds one."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from gateway import errors
from gateway.errors import GatewayError
from gateway.rest import errors as rest
from gateway.rpc import errors as rpc


def tree(base: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for error in base.__subclasses__():
        yield error
        yield from tree(error)


ERRORS = [error for error in tree(GatewayError) if error.__module__ == errors.__name__]
by_name = pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)

#: HTTP status -> the gRPC codes that mean the same to a client.
SAME_MEANING = {
    400: {grpc.StatusCode.INVALID_ARGUMENT},
    401: {grpc.StatusCode.UNAUTHENTICATED},
    404: {grpc.StatusCode.NOT_FOUND},
    409: {grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED},
    412: {grpc.StatusCode.ABORTED},
    413: {grpc.StatusCode.RESOURCE_EXHAUSTED},
    415: {grpc.StatusCode.UNIMPLEMENTED},
    429: {grpc.StatusCode.RESOURCE_EXHAUSTED},
    499: {grpc.StatusCode.CANCELLED},
    500: {grpc.StatusCode.INTERNAL},
    501: {grpc.StatusCode.UNIMPLEMENTED},
    503: {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED},
    504: {grpc.StatusCode.DEADLINE_EXCEEDED},
}


def test_the_module_tells_of_every_class_in_its_tree() -> None:
    assert errors.__doc__ is not None
    assert [error.__name__ for error in ERRORS if error.__name__ not in errors.__doc__] == []
    assert len(ERRORS) >= 15


@by_name
def test_every_error_has_a_status_in_both_tables(error: type[GatewayError]) -> None:
    assert error in rest.STATUS
    assert error in rpc.STATUS
    assert rest.status_of(error("text")) == rest.STATUS[error]
    assert rpc.status(error("text")) is rpc.STATUS[error]


@by_name
def test_both_tables_mean_the_same(error: type[GatewayError]) -> None:
    assert rpc.STATUS[error] in SAME_MEANING[rest.STATUS[error]]


def test_no_table_knows_a_class_that_does_not_exist() -> None:
    assert set(rest.STATUS) - {GatewayError} == set(rpc.STATUS) - {GatewayError} == set(ERRORS)


@by_name
def test_whoever_may_try_again_is_told_when_by_both(error: type[GatewayError]) -> None:
    instance = error("text")
    after = dict(rest.headers_of(instance)).get(b"retry-after")
    pushback = dict(rpc.trailing_metadata(instance)).get(rpc.PUSHBACK)
    assert (after is None) == (pushback is None)
    if after is not None and pushback is not None:
        assert isinstance(instance, errors.Unavailable)
        assert int(after) >= 1
        assert int(pushback) >= 1


@pytest.mark.parametrize("error", [errors.Overloaded, errors.WorkerDied])
def test_a_client_may_try_again_after_an_overload_or_the_death_of_a_worker(error: type[GatewayError]) -> None:
    assert b"retry-after" in dict(rest.headers_of(error("text")))
    assert rpc.PUSHBACK in dict(rpc.trailing_metadata(error("text")))


def test_without_a_key_a_client_is_told_which_kind_to_bring() -> None:
    assert (b"www-authenticate", b"Bearer") in rest.headers_of(errors.Unauthenticated("text"))
