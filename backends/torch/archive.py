"""torch's zip archives, read with torch's own reader: what is checked here is what torch then loads.

Another zip library may see other members in a file that is made to confuse (two directories, doubled names).
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, Final

from backends.errors import LoadFailed
from backends.torch.framework import torch

#: An archive's members may be this many times as large as the file, beside ``_SLACK``: torch stores tensors as they
#: are, and compresses only the text of programs.
_MAX_RATIO: Final = 8
_SLACK: Final = 64 << 20
_MAX_MEMBERS: Final = 1_000_000
_NEWER: Final = re.compile(r"version (\d+), but the maximum supported version for reading is (\d+)")
#: Fields of a member's local header: signature, versions and flags, method.
_LOCAL_HEADER: Final = struct.Struct("<4s4xH")


class Archive:
    """An open archive whose members are few enough, small enough and named once."""

    def __init__(self, path: Path) -> None:
        """Raises ``LoadFailed``: half an archive, a newer format, members that do not fit the file."""
        self.path = path
        self._mapping: Any = None
        try:
            self._reader = torch._C.PyTorchFileReader(str(path))
            self.names: tuple[str, ...] = tuple(self._reader.get_all_records())
            self.sizes = {name: self._reader.get_record_size(name) for name in self.names[:_MAX_MEMBERS]}
        except RuntimeError as error:
            raise LoadFailed(_unreadable(path, str(error))) from error
        self._check()

    def _check(self) -> None:
        if len(self.sizes) != len(self.names):
            raise LoadFailed(
                f"{self.path.name} has members of the same name, or more than {_MAX_MEMBERS}: torch writes neither; "
                "save the model again"
            )
        file_size = self.path.stat().st_size
        total, limit = sum(self.sizes.values()), _MAX_RATIO * file_size + _SLACK
        if total > limit:
            raise LoadFailed(
                f"{self.path.name} would grow from {file_size} to {total} bytes when it is unpacked, more than the "
                f"{limit} bytes that are allowed for it: it is damaged or made to exhaust memory; save the model again "
                "with torch, which hardly compresses"
            )

    def __contains__(self, name: str) -> bool:
        return name in self.sizes

    def under(self, prefix: str) -> list[str]:
        """The members below a folder."""
        return [name for name in self.names if name.startswith(prefix)]

    def read(self, name: str) -> bytes:
        """A member's content. Raises ``LoadFailed`` if it is missing or damaged."""
        if name not in self.sizes:
            raise LoadFailed(f"{self.path.name} has no member {name!r}: it is no whole archive; save the model again")
        try:
            content: bytes = self._reader.get_record(name)
        except RuntimeError as error:
            raise LoadFailed(_unreadable(self.path, str(error))) from error
        return content

    def text(self, name: str) -> str:
        """A member's content as text. Raises ``LoadFailed`` as ``read`` does, and if it is no UTF-8."""
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise LoadFailed(f"{self.path.name}: member {name!r} is no text ({error}); save the model again") from error

    def storage(self, name: str) -> Any:
        """A member as an untyped storage: the file itself, mapped into memory, wherever it lies there uncompressed.

        The mapping is private: what a program writes to it is seen by this process alone.
        """
        size = self.sizes.get(name, 0)
        if size and self._is_stored(name):
            start = self._reader.get_record_offset(name)
            if self._mapping is None:
                self._mapping = torch.UntypedStorage.from_file(str(self.path), False, self.path.stat().st_size)
            return self._mapping[start : start + size]
        content = self.read(name)
        storage = torch.UntypedStorage(len(content))
        if content:
            torch.empty(0, dtype=torch.uint8).set_(storage).copy_(
                torch.frombuffer(bytearray(content), dtype=torch.uint8)
            )
        return storage

    def _is_stored(self, name: str) -> bool:
        with self.path.open("rb") as file:
            file.seek(self._reader.get_record_header_offset(name))
            header = file.read(_LOCAL_HEADER.size)
        signature, method = _LOCAL_HEADER.unpack(header)
        # a tensor that does not begin at a multiple of its elements' size cannot lie in the mapping
        return bool(signature == b"PK\x03\x04" and method == 0 and self._reader.get_record_offset(name) % 16 == 0)


def _unreadable(path: Path, text: str) -> str:
    newer = _NEWER.search(text)
    if newer:
        return (
            f"{path.name} was saved by a newer torch (file format {newer[1]}; torch {torch.__version__} reads up to "
            f"{newer[2]}): save it with this torch, or install a newer one"
        )
    if "subdirectory" in text:
        return (
            f"{path.name} is a zip archive and no model of torch; if torch 2.7 or older exported it, export it again "
            f"with torch {torch.__version__} (torch.export.save): the old format holds pickles, which are not loaded"
        )
    if 'hasRecord("version")' in text:
        return f"{path.name} is a zip archive and no model of torch: no version of the format is in it"
    reason = text.partition("\n")[0].removeprefix("PytorchStreamReader failed ")
    return f"{path.name} is no whole torch archive ({reason}); copy the whole file, or save the model again"
