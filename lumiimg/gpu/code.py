"""Targets of the GPU code in a program, a library, a bundle or a code object. Headers are read, never the code.

A code object is an ELF file for one GPU, which its header names (LLVM `AMDGPUUsage.rst`, "ELF Header"). Clang puts
objects for several GPUs into a bundle, and bundles into section `.hip_fatbin` of a host file, one after another, each
at the start of a page (clang `docs/ClangOffloadBundler.rst`, LLVM `lib/Object/OffloadBundle.cpp`):

    plain         "__CLANG_OFFLOAD_BUNDLE__", entries u64, then for each: offset u64, size u64, length u64, id
    compressed    "CCOB", version u16, method u16 (0 zlib, 1 zstd),
                  version 1: unpacked size u32, hash u64
                  version 2: total size u32, unpacked size u32, hash u64
                  version 3: total size u64, unpacked size u64, hash u64
                  then a plain bundle, packed

All numbers are little-endian; an id is `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-`.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.core.access import zstd
from lumiimg.gpu.target import GpuCodeError, GpuTarget, parse_target, target_of_flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumiimg.core.access import RandomAccess

_ELF_HEADER_BYTES = 64
_ELF = b"\x7fELF\2\1"
"""64-bit and little-endian: ROCm has no other host."""
_EM_AMDGPU, _ELFOSABI_AMDGPU_HSA = 224, 64
_FATBIN, _SHT_NOBITS = b".hip_fatbin", 8
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MAX_NAMES_BYTES = 1 << 20
_MAX_FATBINS = 4

_PLAIN, _COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
_MAGIC = re.compile(rb"__CLANG_OFFLOAD_BUNDLE__|CCOB.\0.\0", re.DOTALL)
_COMMON = struct.Struct("<4sHH")
_SIZES = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_METHODS = ("zlib", "zstd")
_ENTRY = struct.Struct("<QQQ")
_FIRST_ENTRY = len(_PLAIN) + 8
_ID = re.compile(
    r"(?:hipv4|openmp)-(?:amdgcn|spirv64)-amd-amdhsa-(?:unknown)?-?(?P<target>(?:gfx|amdgcnspirv).*)", re.DOTALL
)
_MAX_ENTRIES, _MAX_ID_BYTES, _MAX_BUNDLES = 512, 256, 16384
_HEAD_BYTES, _MAX_HEAD_BYTES = 8192, 256 << 10
_PACKED_BYTES = 64 << 10
"""Bytes of a compressed bundle that suffice for its header: code compresses worse than a table of zeros and names."""
_PAGE_BYTES, _CHUNK_BYTES = 4096, 1 << 20
_MAX_SEARCHED_BYTES = 64 << 20
"""Limit for one section, where no size shows where the next bundle is."""


class _Head(NamedTuple):
    """Contents of the header of a bundle."""

    targets: tuple[GpuTarget, ...]
    """Targets, sorted."""
    size: int
    """Bytes up to the end of its last entry; only those of its magic where the size is not given."""


class _Entry(NamedTuple):
    end: int
    target: GpuTarget | None
    """Target; None for host code, for code of another vendor's GPU, and for an empty entry."""


def read_file(source: RandomAccess) -> tuple[tuple[GpuTarget, ...], ...]:
    """Return the targets of each bundle in a file; empty where it has no GPU code.

    Code that one bundle needs may be in any other.

    Raises GpuCodeError where a file has GPU code that cannot be read. Files of any other kind, and ELF files of the
    host that are damaged elsewhere, have none.
    """
    head = source.read_at(0, _ELF_HEADER_BYTES)
    if head.startswith((_PLAIN, _COMPRESSED)):
        return tuple(_bundles(source, 0, source.size))
    if len(head) < _ELF_HEADER_BYTES or not head.startswith(_ELF):
        return ()
    if int.from_bytes(head[18:20], "little") == _EM_AMDGPU:
        if head[7] != _ELFOSABI_AMDGPU_HSA:
            raise GpuCodeError(f"not a code object for AMD's HSA: begins with {head[:8]!r}")
        return ((target_of_flags(int.from_bytes(head[48:52], "little"), head[8]),),)
    sections = list(_fatbins(source, head))
    if len(sections) > _MAX_FATBINS:
        raise GpuCodeError(f"more than the limit of {_MAX_FATBINS} .hip_fatbin sections")
    found = [one for kind, start, size in sections if kind != _SHT_NOBITS for one in _bundles(source, start, size)]
    if sections and not found:
        raise GpuCodeError("its GPU code was split off, and nothing says where it is")
    return tuple(found)


def _fatbins(source: RandomAccess, head: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (type, offset, size) of the sections with bundles; none where the section table is wrong or absent."""
    offset = int.from_bytes(head[40:48], "little")
    entry_bytes, count, names_at = struct.unpack_from("<HHH", head, 58)
    if entry_bytes != _SECTION.size or names_at >= count or offset + count * entry_bytes > source.size:
        return
    rows = list(_SECTION.iter_unpack(source.read_at(offset, count * entry_bytes)))
    names_offset, names_bytes = rows[names_at][4:6]
    if names_offset + names_bytes > source.size or names_bytes > _MAX_NAMES_BYTES:
        return
    names = source.read_at(names_offset, names_bytes)
    yield from (
        (kind, start, size)
        for at, kind, _, _, start, size, *_ in rows
        if size and names.startswith(_FATBIN + b"\0", at)
    )


def _bundles(source: RandomAccess, start: int, size: int) -> list[tuple[GpuTarget, ...]]:
    """Return the targets of each bundle in a range of a file, in order; bundles with only host code are left out.

    Raises GpuCodeError for a range with a bundle that cannot be read, or without code for any GPU.
    """
    end = start + size
    if end > source.size:
        raise GpuCodeError(f"{size} bytes of GPU code at {start}, past the end of the file of {source.size} bytes")
    found: list[tuple[GpuTarget, ...]] = []
    left_bytes, after = _MAX_SEARCHED_BYTES, start
    while (at := _find_bundle(source, after, end, left_bytes)) is not None:
        if len(found) >= _MAX_BUNDLES:
            raise GpuCodeError(f"more than the limit of {_MAX_BUNDLES} bundles")
        left_bytes -= at - after
        head = _read_head(source, at, end)
        found.append(head.targets)
        after = at + head.size
    if not any(found):
        raise GpuCodeError("a bundle that names no GPU" if found else f"no bundle in the {size} bytes of its GPU code")
    return [bundle for bundle in found if bundle]


def _find_bundle(source: RandomAccess, start: int, end: int, limit_bytes: int) -> int | None:
    """Return where the next bundle begins. Gaps are usually shorter than two pages, so little is read."""
    at, step = start, 2 * _PAGE_BYTES
    while at < end:
        if at - start >= limit_bytes:
            raise GpuCodeError(f"{end - at} bytes are too far from any bundle to search")
        found = _MAGIC.search(source.read_at(at, min(step + len(_PLAIN), end - at)))
        if found is not None and found.start() < step:
            return at + found.start()
        at, step = at + step, _CHUNK_BYTES
    return None


def _read_head(source: RandomAccess, at: int, end: int) -> _Head:
    data = source.read_at(at, min(_HEAD_BYTES, end - at))
    if data.startswith(_COMPRESSED):
        return _read_compressed(source, at, end, data)
    entries = _entries(data)
    if entries is None:
        entries = _entries(source.read_at(at, min(_MAX_HEAD_BYTES, end - at)))
    if entries is None:
        raise GpuCodeError("a bundle with a truncated table")
    return _Head(_targets(entries, end - at), max([_FIRST_ENTRY, *(entry.end for entry in entries)]))


def _read_compressed(source: RandomAccess, at: int, end: int, data: bytes) -> _Head:
    _, version, method = _COMMON.unpack_from(data)
    sizes = _SIZES.get(version)
    if sizes is None or method >= len(_METHODS):
        raise GpuCodeError(f"a compressed bundle of unknown version {version} or method {method}")
    begin = _COMMON.size + sizes.size
    if len(data) < begin:
        raise GpuCodeError("a compressed bundle with a truncated header")
    *total, unpacked, _ = sizes.unpack_from(data, _COMMON.size)
    if total and not begin < total[0] <= end - at:
        raise GpuCodeError(f"a compressed bundle that claims {total[0]} bytes, but has {end - at}")
    limit = total[0] if total else end - at
    head = _unpack(source.read_at(at + begin, min(_PACKED_BYTES, limit - begin)), _METHODS[method])
    if head.startswith(_COMPRESSED):
        raise GpuCodeError("a compressed bundle in a compressed bundle")
    entries = _entries(head) if head.startswith(_PLAIN) else None
    if entries is None:
        raise GpuCodeError("a compressed bundle that does not start with a bundle table")
    return _Head(_targets(entries, unpacked), total[0] if total else len(_COMPRESSED))


def _entries(data: bytes) -> list[_Entry] | None:
    """Return the entries of a plain bundle; None where its table extends past the data."""
    if len(data) < _FIRST_ENTRY:
        return None
    count = int.from_bytes(data[len(_PLAIN) : _FIRST_ENTRY], "little")
    if count > _MAX_ENTRIES:
        raise GpuCodeError(f"a bundle of {count} entries, more than the limit of {_MAX_ENTRIES}")
    entries = []
    at = _FIRST_ENTRY
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            return None
        offset, size, length = _ENTRY.unpack_from(data, at)
        if length > _MAX_ID_BYTES:
            raise GpuCodeError(f"a bundle with an id of {length} bytes")
        at += _ENTRY.size + length
        if at > len(data):
            return None
        found = _ID.fullmatch(data[at - length : at].decode("ascii", "backslashreplace")) if size else None
        entries.append(_Entry(offset + size, parse_target(found["target"]) if found else None))
    return entries


def _targets(entries: list[_Entry], size: int) -> tuple[GpuTarget, ...]:
    """Return the targets of the entries. Raises GpuCodeError where one ends beyond `size` bytes."""
    last = max((entry.end for entry in entries), default=0)
    if last > size:
        raise GpuCodeError(f"a bundle with an entry that ends at {last}, past the {size} bytes available")
    return tuple(sorted({entry.target for entry in entries if entry.target}, key=str))


def _unpack(packed: bytes, method: str) -> bytes:
    """Return the beginning of the unpacked data. Raises GpuCodeError for damaged data."""
    decompressor = zlib.decompressobj() if method == "zlib" else zstd().ZstdDecompressor()
    errors = (zlib.error,) if method == "zlib" else (zstd().ZstdError, EOFError)
    try:
        return bytes(decompressor.decompress(packed, _MAX_HEAD_BYTES))
    except errors as error:
        raise GpuCodeError(f"a damaged compressed bundle: {error}") from error
