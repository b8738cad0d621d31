"""Artifact URI -> a file or folder on this machine with its content digest.

What is understood: a plain path, ``file:///path``, and ``pkg://package/path/inside`` for a file or folder inside an
installed Python package, which is found without running any of its code.

The digest is ``sha256:`` and the SHA-256 of a canonical manifest: the JSON array, without blanks and in ASCII, of
``[path, size, sha256]`` for each file, sorted by path (relative, with ``/``). A single file counts as a folder that
holds just this file: so it makes no difference which of the two is registered, and the file's name, from whose
suffix backends tell a format, is part of the content. Modes, times and empty folders are not.

Left out are only the droppings of editors, file managers, version control and Python: ``JUNK``. A link inside a folder
counts as what it points to, which has to be in the folder as well: what lies outside could change unseen.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from registry.errors import ArtifactError
from registry.locations import check_text, kind, locate, unusable

#: Names (of files and folders, shell patterns) that are no part of an artifact.
JUNK: Final = (
    ".git", ".hg", ".svn", ".bzr", "CVS",
    ".DS_Store", "Thumbs.db", "desktop.ini",
    "*~", ".*.sw[a-p]", ".#*", "#*#", ".idea", ".vscode", ".ipynb_checkpoints",
    "__pycache__",
)  # fmt: skip
#: More files than any model has: somebody gave the wrong folder.
MAX_FILES: Final = 100_000

_CHUNK_BYTES: Final = 1 << 20


class Artifact(msgspec.Struct, frozen=True):
    """A file or folder (``path`` is absolute), its digest (``sha256:...``) and the size of its files together."""

    path: str
    digest: str
    size_bytes: int


#: Path -> what its files looked like when they were read, and the result. Threads may race: both results are true.
_resolved: dict[str, tuple[tuple[tuple[str, int, int, int, int], ...], Artifact]] = {}
_MAX_RESOLVED: Final = 10_000


def resolve(uri: str) -> Artifact:
    """Find the artifact and read all of it, again only if a file has changed since: call in a thread.

    Raises ``ArtifactError`` with the mend.
    """
    path = locate(uri)
    files = [(path.name, path)] if path.is_file() else list(_files(path))
    if not files:
        raise ArtifactError(f"folder {path} has no files: if it is still being copied, wait, else name another folder")
    fingerprint = tuple(_fingerprint(name, file) for name, file in files)
    known = _resolved.get(str(path))
    if known is None or known[0] != fingerprint:
        known = fingerprint, _read(path, files)
        if len(_resolved) >= _MAX_RESOLVED:
            _resolved.clear()
        _resolved[str(path)] = known
    return known[1]


def _fingerprint(name: str, file: Path) -> tuple[str, int, int, int, int]:
    """What changes whenever a file's content does: nothing sets back the time of its last change (``ctime``)."""
    try:
        status = file.stat()
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}") from error
    return name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _read(path: Path, files: list[tuple[str, Path]]) -> Artifact:
    manifest = sorted((name, *_digest(file)) for name, file in files)
    text = json.dumps(manifest, separators=(",", ":")).encode("ascii")
    return Artifact(str(path), f"sha256:{hashlib.sha256(text).hexdigest()}", sum(size for _, size, _ in manifest))


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Each file of the folder with its path relative to it."""
    for count, found in enumerate(_walk(root, "", (os.path.realpath(root),)), start=1):
        if count > MAX_FILES:
            raise ArtifactError(f"folder {root} has more than {MAX_FILES} files: name the folder of one model")
        yield found


def _walk(folder: Path, prefix: str, above: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """``above`` holds the real paths of the folders that we are in, the root first: a link to one would never end."""
    for entry in _entries(folder):
        name, path = prefix + entry.name, Path(entry.path)
        check_text(path)
        if entry.is_symlink():
            _check_link(Path(above[0]), path)
        mode = _mode(path)
        if stat.S_ISDIR(mode):
            real = os.path.realpath(path)
            if real in above:
                raise ArtifactError(f"link {path} leads back to a folder that it is in: remove the link")
            yield from _walk(path, name + "/", (*above, real))
        elif stat.S_ISREG(mode):
            yield name, path
        else:
            raise ArtifactError(f"{path} is {kind(mode)}, and an artifact consists of files: remove it")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not any(fnmatchcase(entry.name, junk) for junk in JUNK)]
    except OSError as error:
        raise unusable(folder, error) from error


def _check_link(root: Path, link: Path) -> None:
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, on Python 3.11 and 3.12
        raise ArtifactError(f"link {link} leads nowhere: restore {link.readlink()}, or remove the link") from error
    if not real.is_relative_to(root):
        raise ArtifactError(
            f"link {link} leaves the artifact's folder (to {real}), where its content could change unseen: "
            f"copy the folder with its links followed (`cp -rL`) and use the copy"
        )


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError as error:
        raise unusable(path, error) from error


def _digest(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file that nobody changes meanwhile."""
    try:
        with path.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            buffer = memoryview(bytearray(min(_CHUNK_BYTES, before.st_size + 1)))
            digest, size = hashlib.sha256(), 0
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                size += count
            after = os.fstat(file.fileno())
    except OSError as error:
        raise unusable(path, error) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size:
        raise ArtifactError(f"file {path} changed while it was read: wait until it is copied, then try again")
    return size, digest.hexdigest()
