"""Addresses: how they are written, and whether they can be bound."""

from __future__ import annotations

import errno
import socket

import pytest

from gateway.network import bind, endpoint


@pytest.mark.parametrize(
    ("host", "written"), [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("[::1]", "[::1]:80"), ("a.b", "a.b:80")]
)
def test_an_endpoint_has_an_ipv6_address_in_brackets(host: str, written: str) -> None:
    assert endpoint(host, 80) == written


def test_port_0_takes_a_free_one_and_a_port_in_use_is_refused() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            bind("127.0.0.1", port)
    assert caught.value.errno == errno.EADDRINUSE
    with bind("127.0.0.1", port) as again:
        assert again.getsockname() == ("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        bind("192.0.2.1", 0)


def test_brackets_around_an_ipv6_address_are_understood() -> None:
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    try:
        bound = bind("[::1]", 0)
    except OSError as error:
        pytest.skip(f"needs IPv6: {error}")
    with bound:
        assert bound.getsockname()[0] == "::1"
