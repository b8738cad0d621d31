"""Addresses of this machine: how they are written, and whether they can be bound."""

from __future__ import annotations

import ipaddress
import socket


def endpoint(host: str, port: int) -> str:
    """``host:port`` as URLs and gRPC write it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """A stream socket that is bound and does not listen yet; port 0 takes a free one.

    Raises ``OSError`` if the port is in use (``EADDRINUSE``) or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        # What lingers of a server that has just ended is not in the way.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
