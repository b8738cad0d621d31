"""The administrator's key: made at the first start, kept in a file that only its owner can read."""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.settings.errors import ConfigurationError

log = logging.getLogger("tensorgate.keys")

_KEY: Final = re.compile(r"[A-Za-z0-9_-]{20,256}")


def ensure_admin_key(path: Path) -> str:
    """The key in ``path``, made if there is none. Several processes may start at once: all get the same key.

    Raises ``ConfigurationError`` if the file cannot be made or read, if others than its owner can read it, or if it
    holds no key; the text says how to mend that.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            key = read_admin_key(path)
            log.info("the admin key is in %s", path)
            return key
        _create(path, f"tg_{secrets.token_urlsafe(32)}")
        log.info("made an admin key, in %s", path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the admin key to {path}: {error.strerror}. Make its folder writable for this user, "
            "or set data_dir (or database) to one that is"
        ) from error
    return read_admin_key(path)


def read_admin_key(path: Path) -> str:
    """The key in ``path``. Raises ``FileNotFoundError``, or ``ConfigurationError`` as ``ensure_admin_key`` does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(f"cannot read the admin key {path}: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        _check_private(path, os.fstat(file.fileno()))
        text = file.read(4096).decode("ascii", "replace").strip()
    if not _KEY.fullmatch(text):
        raise ConfigurationError(f"{path} holds no admin key: remove it, and the next start makes a new one")
    return text


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{path} is not a regular file: remove it, and the next start makes a new key")
    if status.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} belongs to another user (uid {status.st_uid}): remove it, or run as that user"
        )
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigurationError(
            f"{path} can be read by others (mode {mode:04o}). The key may be known: remove the file for a new key, "
            f"or keep it with: chmod 600 {path}"
        )


def _create(path: Path, key: str) -> None:
    """Write a private file beside ``path`` and link it there: nobody sees a half-written key, the first one wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(draft, path)
    finally:
        draft.unlink()
