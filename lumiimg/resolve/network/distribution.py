"""What a distribution says of itself, without fetching all of it: METADATA of a wheel, files of a source archive."""

from __future__ import annotations

import gzip
import io
import posixpath
import re
import zipfile
import zlib
from itertools import islice
from typing import TYPE_CHECKING

from lumiimg.errors import FailedError, one_line
from lumiimg.image.oci.tar import read_members
from lumiimg.image.tree import FileKind, ImageError
from lumiimg.resolve.network.web import Bounds, Web, place, refuse_unproved

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lumiimg.resolve.network.index import IndexFile

_TEXT_LIMIT_BYTES = 512 * 1024
_ARCHIVE_LIMIT_BYTES = 192 << 20
"""Of a source archive as it comes: vLLM's have 47 MB."""
_UNPACKED_LIMIT_BYTES = 1 << 30
_MOST_MEMBERS = 100_000
_WHEEL_LIMIT_BYTES = 32 << 20
"""Of a wheel on a server that does not send parts, and of all parts of one."""
_BLOCK_BYTES = 128 * 1024
_WITHIN_S = 120.0
_RANGE = re.compile(r"bytes \d{1,15}-\d{1,15}/(\d{1,15})")
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError)


def metadata_of(file: IndexFile, web: Web) -> str:
    """Return the METADATA of a wheel: the one beside it, or out of it by parts. Raises FailedError."""
    refuse_unproved(file.url)
    if file.has_metadata:
        answer = web.ask(f"{file.url}.metadata", limit_bytes=_TEXT_LIMIT_BYTES)
        return answer.body.decode("utf-8", "replace")
    try:
        with zipfile.ZipFile(_Parts(file.url, web)) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            with wheel.open(name) as member:
                return member.read(_TEXT_LIMIT_BYTES).decode("utf-8", "replace")
    except (*_DAMAGED, StopIteration, OSError) as error:
        raise FailedError(f"is not a wheel that can be read: {one_line(str(error))[:200]}", where=file.name) from error


class _Parts(io.RawIOBase):
    """A file on a server, of which only the blocks come that are read."""

    def __init__(self, url: str, web: Web) -> None:
        self._url, self._web = url, web
        self._blocks: dict[int, bytes] = {}
        self._at = 0
        self._size = 0
        self._size = self._fetch(f"bytes=-{_BLOCK_BYTES}")

    def _fetch(self, asked: str) -> int:
        """Keep a part, and return the size of the whole."""
        bounds = Bounds(_WHEEL_LIMIT_BYTES, _WITHIN_S)
        with self._web.open(self._url, bounds, {"Range": asked}, allow=(416,)) as stream:
            body = b"".join(stream.chunks)
            told = _RANGE.fullmatch(stream.headers.get("content-range", ""))
        if stream.status != 206 or told is None:  # the whole of it came
            self._blocks = {0: body}
            return len(body)
        size = int(told[1])
        start = max(0, size - len(body)) if asked.startswith("bytes=-") else int(asked[6:].partition("-")[0])
        self._blocks[start] = body
        if sum(map(len, self._blocks.values())) > _WHEEL_LIMIT_BYTES:
            raise FailedError("says what it is in too many places", where=place(self._url))
        return size

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        found = b""
        while self._at < end:
            start, block = next(
                ((at, one) for at, one in self._blocks.items() if at <= self._at < at + len(one)), (0, b"")
            )
            if not block:
                last = min(self._size, max(end, self._at + _BLOCK_BYTES)) - 1
                self._fetch(f"bytes={self._at}-{last}")
                if not self._blocks.get(self._at):
                    raise EOFError("it ends early")
                continue
            piece = block[self._at - start : end - start]
            self._at += len(piece)
            found += piece
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def files_of(file: IndexFile, names: Collection[str], web: Web) -> dict[str, str]:
    """Return text files of a source archive, by their paths below its top folder, as far as it has them.

    What comes behind the last of them is not fetched. Raises FailedError.
    """
    refuse_unproved(file.url)
    with web.open(file.url, Bounds(_ARCHIVE_LIMIT_BYTES, _WITHIN_S), {}) as stream:
        return texts_in(_Chunks(stream.chunks), names, file.name)


def texts_in(archive: io.RawIOBase, names: Collection[str], where: str) -> dict[str, str]:
    """Return text files of a `.tar.gz` that comes from the front to the back. Raises FailedError."""
    found: dict[str, str] = {}
    try:
        with gzip.open(io.BufferedReader(archive)) as unpacked:
            reader = UnpackedStream(unpacked, _UNPACKED_LIMIT_BYTES)
            for member in islice(read_members(reader, where), _MOST_MEMBERS):
                path = posixpath.normpath(member.name).partition("/")[2]
                if path in names and member.kind is FileKind.FILE and member.size_bytes <= _TEXT_LIMIT_BYTES:
                    found[path] = reader.take(member.size_bytes).decode("utf-8", "replace")
                if found.keys() == {*names}:
                    break
    except (OSError, EOFError, zlib.error, ImageError) as error:
        raise FailedError(f"is not an archive that can be read: {one_line(str(error))[:200]}", where=where) from error
    return found


class _Chunks(io.RawIOBase):
    """Pieces of bytes, one behind the other."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._rest = self._rest or next(self._chunks, b"")
        piece, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def readable(self) -> bool:
        return True


class UnpackedStream:
    """What a gzip file holds, from the front to the back, as far as it may go."""

    def __init__(self, stream: gzip.GzipFile, limit_bytes: int) -> None:
        self._stream = stream
        self._limit_bytes = limit_bytes
        self.position = 0

    def take(self, size: int) -> bytes:
        self.position += size
        if self.position > self._limit_bytes:
            raise ImageError(f"unpacks to more than {self._limit_bytes} bytes")
        return self._stream.read(size)

    def skip(self, size: int) -> None:
        while size > 0:
            piece = self.take(min(size, _BLOCK_BYTES))
            if not piece:
                raise ImageError("ends early")
            size -= len(piece)
