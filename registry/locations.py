"""Artifact URI -> path: which schemes there are, and where an installed package keeps its files."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from registry.errors import ArtifactError

_SCHEMES: Final = "a path, file:///path, or pkg://package/path/inside"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_KINDS: Final = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def locate(uri: str) -> Path:
    """The absolute path of the file or folder that ``uri`` names. Raises ``ArtifactError``, also where nothing is.

    A folder's path has no links in it; a file keeps its own name, for the suffix, even where it is a link.
    """
    match = _SCHEME.match(uri)
    scheme, rest = (match[1].lower(), uri[match.end() :]) if match else ("", uri)
    if not rest:
        raise ArtifactError(f"artifact {uri!r} is empty: give {_SCHEMES}")
    match scheme:
        case "":
            return _existing(_expanded(uri))
        case "file":
            return _existing(_file_path(uri, rest))
        case "pkg":
            return _existing(_package_path(uri, rest))
        case _:
            raise ArtifactError(f"artifact {uri!r}: scheme {scheme!r} is not supported, give {_SCHEMES}")


def unusable(path: Path, error: OSError) -> ArtifactError:
    """What is wrong with ``path``, with the mend."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        there = next(folder for folder in path.parents if _exists(folder))
        return ArtifactError(f"{path} does not exist (the last part that does is {there}): check the spelling")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return ArtifactError(f"{path} is not readable for this user: change its owner or mode (`chmod -R a+rX`)")
    return ArtifactError(f"{path} cannot be read ({error.strerror}): check the path and its disk")


def kind(mode: int) -> str:
    """What a thing of this ``st_mode`` is, where it is neither a file nor a folder."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def check_text(path: Path) -> None:
    """Raises ``ArtifactError`` for a path that no database could keep or no system call take."""
    text = str(path)
    if "\0" in text:
        raise ArtifactError(f"path {text!r} contains a NUL character: remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArtifactError(f"path {text!r} is not valid UTF-8: rename the file or folder") from error


def _existing(path: Path) -> Path:
    check_text(path)
    try:
        path = path.absolute()
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return path.resolve(strict=True)
        path = path.parent.resolve(strict=True) / path.name
    except OSError as error:
        raise unusable(path, error) from error
    if not stat.S_ISREG(mode):
        raise ArtifactError(f"{path} is {kind(mode)}, and an artifact is a file or a folder: name one")
    return path


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ArtifactError(f"path {text!r}: there is no such user, write the folder out") from error


def _file_path(uri: str, rest: str) -> Path:
    host, slash, path = rest.partition("/")
    if not slash or host.lower() not in {"", "localhost"}:
        raise ArtifactError(f"artifact {uri!r} names another machine, {host!r}: file:// takes three slashes and a path")
    return Path(unquote("/" + path, errors="surrogateescape"))


def _package_path(uri: str, rest: str) -> Path:
    package, _, encoded = rest.partition("/")
    inside = posixpath.normpath(unquote(encoded, errors="surrogateescape").strip("/"))
    if inside.split("/")[0] == "..":
        raise ArtifactError(f"artifact {uri!r} leaves the package {package!r}: give a path inside it")
    top, *below = package.split(".")
    places = [Path(folder, *below, inside) for folder in _package_folders(uri, package, top)]
    # the parts of a namespace package lie in several places
    return next((place for place in places if _exists(place)), places[0])


def _package_folders(uri: str, package: str, top: str) -> list[str]:
    if not all(part.isidentifier() for part in package.split(".")):
        raise ArtifactError(f"artifact {uri!r}: {package!r} is no import name{_hint(package)}")
    try:
        # of a top package only: to find one below, Python would run the code of those above
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        raise ArtifactError(f"artifact {uri!r}: no package {top!r} is installed here{_hint(package)}")
    folders = list(spec.submodule_search_locations or ())
    if not folders:
        raise ArtifactError(f"artifact {uri!r}: {top!r} is a module without a folder: name a package")
    return folders


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists() raises for names that are too long or out of reach


def _hint(package: str) -> str:
    """People know a package by the name under which it is installed, which may not be the one it is imported by."""
    wanted = _canonical(package)
    for name, distributions in packages_distributions().items():
        if wanted in map(_canonical, distributions):
            return f": the one that {package!r} installs is imported as {name!r}, so write pkg://{name}/..."
    return ": install what has it with pip, into this Python's environment, and give the name that `import` takes"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
