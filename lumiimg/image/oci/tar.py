"""The members of a tar, from its headers (POSIX pax, GNU tar).

One header is 512 bytes, parsed by the standard library. The extensions in front of it (pax records, GNU long names) are
parsed here: their size comes from the file and is limited as in Go's `archive/tar`, so that this module reads what the
engines unpack. As in the engines, records for all following members (type `g`) are skipped.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from lumiimg.image.tree import Device, FileKind, FileStat, ImageError

if TYPE_CHECKING:
    from io import BufferedIOBase

MAGIC, MAGIC_OFFSET = b"ustar", 257
BLOCK_BYTES = tarfile.BLOCKSIZE
_KINDS = {
    tarfile.REGTYPE: FileKind.FILE,
    tarfile.AREGTYPE: FileKind.FILE,
    tarfile.CONTTYPE: FileKind.FILE,
    tarfile.LNKTYPE: FileKind.FILE,
    tarfile.SYMTYPE: FileKind.SYMLINK,
    tarfile.CHRTYPE: FileKind.DEVICE,
    tarfile.BLKTYPE: FileKind.DEVICE,
    tarfile.DIRTYPE: FileKind.DIRECTORY,
    tarfile.FIFOTYPE: FileKind.FIFO,
}
_NAMED_BY_GNU = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_EXTENSIONS = (tarfile.XHDTYPE, tarfile.XGLTYPE, *_NAMED_BY_GNU)
NO_XATTRS: Mapping[bytes, bytes] = MappingProxyType({})
_XATTR = b"SCHILY.xattr."
_SPARSE = b"GNU.sparse."
_NUMBER = re.compile(rb"(-?[0-9]{1,19})(?:\.[0-9]*)?")
# maxSpecialFileSize of Go's archive/tar
_MAX_EXTENSION_BYTES = 1 << 20
_MAX_EXTENSIONS = 16


@dataclass(frozen=True, slots=True)
class Member:
    """One member, as described by its headers."""

    name: str
    stat: FileStat
    """Attributes; the size is 0 for members without content, and a tar does not show links and identity."""
    start: int
    """Offset of the content in the tar."""
    target: str
    """Target of a symlink or a hard link."""
    is_hard_link: bool
    xattrs: Mapping[bytes, bytes]

    @property
    def kind(self) -> FileKind:
        """File type."""
        return self.stat.kind


def read_members(stream: BufferedIOBase, limit_bytes: int, where: str) -> Iterator[Member]:
    """Yield the members of a tar up to its end mark, or to its last byte; their contents are skipped.

    Raises ImageError, also if a member ends after `limit_bytes`.
    """
    records: dict[bytes, bytes] = {}
    position = extensions = 0
    while (block := stream.read(BLOCK_BYTES)).rstrip(b"\0"):
        header = _header(block, position, where)
        position += BLOCK_BYTES
        if header.type in _EXTENSIONS:
            extensions += 1
            if extensions > _MAX_EXTENSIONS or header.size > _MAX_EXTENSION_BYTES:
                _refuse_damaged(f"at byte {position}: extended headers above the limit", where)
            records |= _extension(header, stream.read(header.size), where)
            end = position + header.size
        else:
            member = _member(header, records, position, where)
            yield member
            records, extensions, end = {}, 0, position + member.stat.size_bytes
        end += -end % BLOCK_BYTES
        if end > limit_bytes or stream.seek(end) < end:
            what = f"cut off: the tar member {header.name} ends at byte {end}, the tar at {limit_bytes} or before"
            raise ImageError(what, where=where, hint="fetch or save it again")
        position = end
    if extensions:
        _refuse_damaged("it ends after an extended header", where)


def _header(block: bytes, position: int, where: str) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        _refuse_damaged(f"at byte {position}: {error}", where)
    if min(header.size, header.uid, header.gid) < 0:
        _refuse_damaged(f"at byte {position}: a negative number", where)
    return header


def _extension(header: tarfile.TarInfo, data: bytes, where: str) -> dict[bytes, bytes]:
    r"""Return the records of an extended header; pax records are `LENGTH KEY=VALUE\n`, with the length of all of it."""
    if len(data) < header.size:
        _refuse_damaged("cut off in an extended header", where)
    if header.type == tarfile.XGLTYPE:
        return {}
    if header.type in _NAMED_BY_GNU:
        return {_NAMED_BY_GNU[header.type]: data.partition(b"\0")[0]}
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        digits = data[position : position + 20].partition(b" ")[0]
        end = position + (int(digits) if digits.isdigit() else 0)
        record = data[position + len(digits) + 1 : end]
        key, equals, value = record[:-1].partition(b"=")
        if end > len(data) or not record.endswith(b"\n") or not equals:
            _refuse_damaged("a pax record that contradicts its length", where)
        records[key] = value
        position = end
    return records


def _member(header: tarfile.TarInfo, records: Mapping[bytes, bytes], start: int, where: str) -> Member:
    name = _text(records[b"path"]) if b"path" in records else header.name
    kind = _KINDS.get(header.type)
    if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith(_SPARSE) for key in records):
        hint = "pack the layer without sparse files"
        raise ImageError(f"the sparse tar member {name} is not supported", where=where, hint=hint)
    if kind is None:
        raise ImageError(f"the tar member {name} has the unknown type {header.type!r}", where=where)
    numbers = {key: _number(records, key, where) for key in (b"size", b"uid", b"gid", b"mtime") if key in records}
    has_content = kind is FileKind.FILE and not header.islnk()
    size = numbers.get(b"size", header.size) if has_content else 0
    uid, gid = numbers.get(b"uid", header.uid), numbers.get(b"gid", header.gid)
    if "\0" in name or min(size, uid, gid) < 0:
        _refuse_damaged(f"a member {name!r} of {size} bytes, of {uid}:{gid}", where)
    seen = FileStat(
        kind=kind,
        permissions=header.mode & 0o7777,
        uid=uid,
        gid=gid,
        size_bytes=size,
        mtime_s=numbers.get(b"mtime", int(header.mtime)),
        links=1,
        identity=None,
        device=Device(header.isblk(), header.devmajor, header.devminor) if kind is FileKind.DEVICE else None,
    )
    target = _text(records[b"linkpath"]) if b"linkpath" in records else header.linkname
    xattrs = {key.removeprefix(_XATTR): value for key, value in records.items() if key.startswith(_XATTR)} or NO_XATTRS
    return Member(name, seen, start, target.partition("\0")[0], header.islnk(), xattrs)


def _number(records: Mapping[bytes, bytes], key: bytes, where: str) -> int:
    """Return a number from the pax records, without its fraction."""
    found = _NUMBER.fullmatch(records[key])
    if found is None:
        _refuse_damaged(f"a pax record {_text(key)}={_text(records[key][:20])!r}", where)
    return int(found[1])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _refuse_damaged(what: str, where: str) -> NoReturn:
    raise ImageError(f"a damaged tar: {what}", where=where)
