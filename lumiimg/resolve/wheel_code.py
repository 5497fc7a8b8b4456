"""The GPU code of a wheel, read in parts where it lies: the table of its files, and of libraries as much as answers.

A library in a wheel is packed, so it is read from its beginning, until most of the bundles so far are for the GPU. Only
a library without code for it is read to its end.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Protocol

from lumiimg.gpu.bundle import Bundle, bundles_as_they_come
from lumiimg.gpu.components import component_of, is_library, kernel_file
from lumiimg.gpu.fat_file import FatFile
from lumiimg.gpu.roles import role_of
from lumiimg.gpu.rule import GpuFit, fit_of_any
from lumiimg.gpu.source import GpuCodeError
from lumiimg.image.tree import FileKind, OpenFile
from lumiimg.resolve.gpu_code import KPACK_ENDING, GpuCode, read_tree

if TYPE_CHECKING:
    from lumiimg.gpu.target import GpuTarget

_CHUNK_BYTES = 1 << 20
_KEPT_BYTES = 2 << 20
"""Behind what was read last: the table of a bundle is read after its first bytes were found."""
_MAX_MEMBERS = 200_000
_PACKED_AT_MOST, _SMALL_BYTES = 100, 8 << 20
"""How many times its size a wheel may have unpacked; what is small may be packed better."""
_ENOUGH = 0.5


class SeekableFile(Protocol):
    """What `zipfile` needs of a file."""

    def read(self, size: int = -1, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...
    def seekable(self) -> bool: ...


def wheel_code(file: SeekableFile, gpu: GpuTarget) -> GpuCode:
    """Return the GPU code of a wheel as far as it answers for one GPU; of libraries, those that people have a name for.

    Raises GpuCodeError for what is not a valid wheel, and what the file raises.
    """
    try:
        left_bytes = max(_PACKED_AT_MOST * file.seek(0, os.SEEK_END), _SMALL_BYTES)
        with zipfile.ZipFile(file) as archive:
            return read_tree(_Members(archive, left_bytes), partial(_library, gpu=gpu))
    except _DAMAGED as error:
        raise GpuCodeError(f"not a wheel that can be read: {error}") from error


_DAMAGED = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError)
"""What `zipfile` raises: RuntimeError for a password, NotImplementedError for a compression that it does not know."""


def _library(file: OpenFile, *, gpu: GpuTarget) -> FatFile | None:
    found: list[Bundle] = []
    taken = 0
    for bundle in bundles_as_they_come(file):
        found.append(bundle)
        taken += fit_of_any(bundle, gpu) is GpuFit.RUNS
        if taken >= _ENOUGH * len(found):
            break
    if not found and role_of(component_of(str(file.identity))).carries:
        raise GpuCodeError("no GPU code was found in it")
    return FatFile(tuple(found)) if found else None


@dataclass(slots=True)
class _Members:
    archive: zipfile.ZipFile
    left_bytes: int
    """That may still be unpacked."""

    def walk(self) -> Iterator[tuple[str, FileKind]]:
        names = self.archive.namelist()
        if len(names) > _MAX_MEMBERS:
            raise GpuCodeError(f"a wheel of {len(names)} files, more than the {_MAX_MEMBERS} that are looked at")
        for name in names:
            path = f"/{name}"
            if is_library(path) or kernel_file(path) or path.endswith(KPACK_ENDING):
                yield path, FileKind.FILE

    def open(self, path: str) -> _Member:
        entry = self.archive.getinfo(path[1:])
        self.left_bytes -= entry.file_size
        if self.left_bytes < 0:
            raise GpuCodeError(f"not looked at: {entry.file_size} bytes, in a wheel that would have too many unpacked")
        try:
            return _Member(self.archive.open(entry), entry.file_size, path)
        except _DAMAGED as error:
            raise GpuCodeError(f"cannot be unpacked: {error}") from error


@dataclass(slots=True)
class _Member:
    """A file that is unpacked while it is read, from its beginning on."""

    stream: IO[bytes]
    size: int
    identity: Hashable
    kept: bytearray = field(default_factory=bytearray)
    start: int = 0
    """Where what is kept begins."""

    @property
    def close(self) -> Callable[[], None]:
        return self.stream.close

    def read_at(self, offset: int, size: int) -> bytes:
        if offset < self.start:
            raise GpuCodeError("its GPU code is not in one place, and it cannot be read backwards in a wheel")
        while self.start + len(self.kept) < offset + size:
            try:
                chunk = self.stream.read(_CHUNK_BYTES)
            except _DAMAGED as error:
                raise GpuCodeError(f"cannot be unpacked: {error}") from error
            if not chunk:
                break
            self.kept += chunk
            old = min(max(offset - self.start, 0), len(self.kept)) - _KEPT_BYTES
            if old > 2 * _KEPT_BYTES:
                del self.kept[:old]
                self.start += old
        at = offset - self.start
        return bytes(self.kept[at : at + size])
