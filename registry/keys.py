"""API keys: what is kept of them, and which roles there are. Pure.

A key is ``tg_ID_SECRET``. Kept are its ID, which may be shown, and the SHA-256 of the whole: the secret has 256 random
bits, so there is nothing that a slow hash would protect, and the look-up of a hash tells nothing by its time.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from datetime import datetime

import msgspec

_PREFIX = "tg"
_ID_BYTES = 5
_SECRET_BYTES = 32


class Role(enum.StrEnum):
    """What a key is for; each may do what those before it may."""

    INFER = "infer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, needed: Role) -> bool:
        """Whether this role suffices where ``needed`` is."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class ApiKey(msgspec.Struct, frozen=True):
    """A key as it is kept. ``tenant`` "" belongs to none; ``expires_at`` None never does."""

    id: str
    digest: str
    role: Role
    tenant: str
    note: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_valid(self, now: datetime) -> bool:
        """Whether it opens anything at that moment."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class NewKey(msgspec.Struct, frozen=True):
    """A key to be kept; ``id`` and ``digest`` are from ``make``."""

    id: str
    digest: str
    role: Role
    tenant: str = ""
    note: str = ""
    expires_at: datetime | None = None


def make() -> tuple[str, str, str]:
    """A new key: its id, the key itself (which only its owner keeps), and its digest."""
    id = secrets.token_hex(_ID_BYTES)
    key = f"{_PREFIX}_{id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return id, key, digest_of(key)


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
