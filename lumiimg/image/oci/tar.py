"""The members of a tar, from its headers (POSIX pax, GNU tar).

One header is 512 bytes, read by the standard library. What stands before it to extend it (pax records, long names of
GNU) is read here: its size is a number of the file, and is bounded as Go's `archive/tar` bounds it, so that what the
engines unpack is what is read. Like them, records meant for all members that follow (type `g`) are passed over.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from lumiimg.image.tree import FileKind, ImageError

if TYPE_CHECKING:
    from lumiimg.image.byte_source import ByteSource

BLOCK_BYTES = 512
MAGIC, MAGIC_OFFSET = b"ustar", 257

_PAX, _PAX_OF_ALL, _GNU_NAME, _GNU_TARGET, _GNU_SPARSE = b"x", b"g", b"L", b"K", b"S"
_HARD_LINK = b"1"
_KINDS = {
    b"0": FileKind.FILE,
    b"\0": FileKind.FILE,
    b"7": FileKind.FILE,
    _HARD_LINK: FileKind.FILE,
    b"2": FileKind.SYMLINK,
    b"3": FileKind.DEVICE,
    b"4": FileKind.DEVICE,
    b"5": FileKind.DIRECTORY,
    b"6": FileKind.FIFO,
}
# maxSpecialFileSize of Go's archive/tar
_MAX_EXTENSION_BYTES = 1 << 20
_MAX_EXTENSIONS = 16
_MAX_CONTENT_BYTES = 1 << 50
_MAX_DIGITS = 20
# the headers of small files lie together
_AHEAD_BYTES = 64 << 10


class SequentialReader(Protocol):
    """Bytes that are read from the front to the back."""

    @property
    def position(self) -> int:
        """How many bytes were read or passed over."""

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end. Raises ImageError."""

    def skip(self, size: int) -> None:
        """Pass over bytes. Raises ImageError where there are fewer."""


class TarReader:
    """A tar that lies in a file; what is passed over is not read."""

    def __init__(self, source: ByteSource, cut_off: str) -> None:
        """Begin at the front; `cut_off` is what is said where it ends too soon."""
        self.position = 0
        self._source = source
        self._cut_off = cut_off
        self._data = b""
        self._start = 0

    def take(self, size: int) -> bytes:
        at = self.position - self._start
        if at + size > len(self._data):
            end = min(self.position + max(size, _AHEAD_BYTES), self._source.size)
            self._data = self._source.read_exactly(self.position, end - self.position)
            self._start, at = self.position, 0
        data = self._data[at : at + size]
        self.position += len(data)
        return data

    def skip(self, size: int) -> None:
        if self.position + size > self._source.size:
            raise ImageError(self._cut_off, where=self._source.name, hint="download or copy it again")
        self.position += size


@dataclass(frozen=True, slots=True)
class Member:
    """One member, as its headers describe it."""

    name: str
    kind: FileKind
    permissions: int
    uid: int
    gid: int
    mtime_s: int
    size_bytes: int
    """Of its content; 0 for whatever has none."""
    start: int
    """Where the content is, from the start of the tar."""
    target: str
    """Of a symlink or a hard link."""
    is_hard_link: bool


def read_members(reader: SequentialReader, where: str) -> Iterator[Member]:
    """Yield the members up to the end mark; content is passed over. Raises ImageError."""
    records: dict[str, str] = {}
    extensions = 0
    while header := _header(reader, where):
        if header.type in (_PAX, _PAX_OF_ALL, _GNU_NAME, _GNU_TARGET):
            extensions += 1
            if extensions > _MAX_EXTENSIONS:
                raise ImageError("a tar member with too many extended headers", where=where)
            records |= _extension(reader, header, where)
            continue
        member = _member(header, records, reader.position, where)
        records, extensions = {}, 0
        end = reader.position + _padded(member.size_bytes)
        yield member
        reader.skip(end - reader.position)
    if extensions:
        raise ImageError("a tar that ends after an extended header", where=where)


def _header(reader: SequentialReader, where: str) -> tarfile.TarInfo | None:
    """Return the next header; None at the end mark, a block of zeros, or where the tar just ends."""
    position = reader.position
    block = reader.take(BLOCK_BYTES)
    if not block or block == bytes(BLOCK_BYTES):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        _damaged(f"at byte {position}: {error}", where, error)
    if not 0 <= header.size <= _MAX_CONTENT_BYTES:
        _damaged(f"at byte {position}: a size of {header.size}", where)
    return header


def _extension(reader: SequentialReader, header: tarfile.TarInfo, where: str) -> dict[str, str]:
    if header.size > _MAX_EXTENSION_BYTES:
        _damaged(f"an extended header of {header.size} bytes", where)
    data = reader.take(_padded(header.size))[: header.size]
    if len(data) < header.size:
        _damaged("cut off in an extended header", where)
    if header.type == _PAX_OF_ALL:
        return {}
    if header.type == _PAX:
        return _pax_records(data, where)
    key = "path" if header.type == _GNU_NAME else "linkpath"
    return {key: _text(data.partition(b"\0")[0])}


def _pax_records(data: bytes, where: str) -> dict[str, str]:
    r"""Return `key: value` of records `LENGTH KEY=VALUE\n`, the length counting all of it."""
    records: dict[str, str] = {}
    position = 0
    while position < len(data):
        digits = data[position : position + _MAX_DIGITS].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = data[position + len(digits) + 1 : position + length]
        key, equals, value = record[:-1].partition(b"=")
        if position + length > len(data) or not record.endswith(b"\n") or not equals:
            _damaged("a pax record that contradicts its length", where)
        records[_text(key)] = _text(value)
        position += length
    return records


def _member(header: tarfile.TarInfo, records: dict[str, str], start: int, where: str) -> Member:
    kind = _KINDS.get(header.type)
    name = records.get("path", header.name)
    if header.type == _GNU_SPARSE or any(key.startswith("GNU.sparse.") for key in records):
        raise ImageError(
            f"the sparse tar member {name} is not read", where=where, hint="pack the layer without sparse files"
        )
    if kind is None:
        raise ImageError(f"the tar member {name} has the unknown type {header.type!r}", where=where)
    is_hard_link = header.type == _HARD_LINK
    if kind is FileKind.FILE and not is_hard_link and name.endswith("/"):
        kind = FileKind.DIRECTORY  # of tars before POSIX
    size = _number(records, "size", header.size, where) if kind is FileKind.FILE and not is_hard_link else 0
    if "\0" in name or size > _MAX_CONTENT_BYTES:
        _damaged(f"a member {name!r} of {size} bytes", where)
    return Member(
        name=name,
        kind=kind,
        permissions=header.mode & 0o7777,
        uid=_number(records, "uid", header.uid, where),
        gid=_number(records, "gid", header.gid, where),
        mtime_s=_number(records, "mtime", int(header.mtime), where),
        size_bytes=size,
        start=start,
        target=records.get("linkpath", header.linkname).partition("\0")[0],
        is_hard_link=is_hard_link,
    )


def _number(records: dict[str, str], key: str, default: int, where: str) -> int:
    """Return a number of the records, without its fraction."""
    text = records.get(key)
    if text is None:
        return default
    whole = text.partition(".")[0]
    if len(whole) > _MAX_DIGITS or not (whole.isascii() and whole.lstrip("-").isdigit()) or "-" in whole[1:]:
        _damaged(f"a pax record {key}={text[:_MAX_DIGITS]!r}", where)
    if key != "mtime" and whole.startswith("-"):
        _damaged(f"a pax record {key}={whole}", where)
    return int(whole)


def _padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _damaged(what: str, where: str, cause: Exception | None = None) -> NoReturn:
    raise ImageError(f"a damaged tar: {what}", where=where) from cause
