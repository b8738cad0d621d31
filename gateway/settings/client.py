"""What the command line's client is told."""

from __future__ import annotations

import os
from typing import Final

import msgspec

DEFAULT_URL: Final = "http://127.0.0.1:8000"
#: Variables with our prefix that the command line's client reads, and the server does not.
CLIENT_VARIABLES: Final = ("TENSORGATE_URL", "TENSORGATE_API_KEY")


class ClientSettings(msgspec.Struct, frozen=True):
    """Where the command line finds a server, and the key it was given; "" if none."""

    url: str
    api_key: str


def client_settings(url: str | None = None) -> ClientSettings:
    """``url`` (a flag) before ``TENSORGATE_URL`` before the default; the key comes from ``TENSORGATE_API_KEY`` only."""
    chosen = url or os.environ.get("TENSORGATE_URL") or DEFAULT_URL
    return ClientSettings(chosen.rstrip("/"), os.environ.get("TENSORGATE_API_KEY", "").strip())
