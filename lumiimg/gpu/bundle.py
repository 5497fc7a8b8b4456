"""Offload bundles: code for several GPUs in one piece, as clang puts it into programs and libraries.

    plain         "__CLANG_OFFLOAD_BUNDLE__", entries u64, then of each: offset u64, size u64, length u64, id
    compressed    "CCOB", version u16, method u16 (0 zlib, 1 zstd),
                  version 1: unpacked size u32, hash u64
                  version 2: whole size u32, unpacked size u32, hash u64
                  version 3: whole size u64, unpacked size u64, hash u64
                  then a plain bundle, packed

All numbers are little-endian; an id is `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-`. A section has one bundle after
another, each at a page. Sources: clang `docs/ClangOffloadBundler.rst`, LLVM `lib/Object/OffloadBundle.cpp`.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.gpu.code_object import read_code_object
from lumiimg.gpu.source import GpuCodeError, read_exactly
from lumiimg.gpu.target import GpuTarget, parse_target

if TYPE_CHECKING:
    from lumiimg.core.access import RandomAccess

PLAIN, COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
_COMMON = struct.Struct("<4sHH")
_SIZES = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_METHODS = ("zlib", "zstd")
_ENTRY = struct.Struct("<QQQ")
_FIRST_ENTRY = len(PLAIN) + 8
_MAX_ENTRIES, _MAX_ID_BYTES = 512, 256
_HEAD_BYTES, _MAX_HEAD_BYTES = 8192, 256 << 10
_PACKED_BYTES = 64 << 10
"""Of a compressed bundle, enough for its head: the code behind it packs worse than the table of zeros and names."""
_MAX_BUNDLES = 16384
PAGE_BYTES = 4096
_CHUNK_BYTES = 1 << 20
_MAX_SEARCHED_BYTES = 64 << 20
"""In one file, where no size says where the next bundle is."""
_MAGIC = re.compile(rb"__CLANG_OFFLOAD_BUNDLE__|CCOB.\0.\0", re.DOTALL)
_ID = re.compile(
    r"(?P<kind>hipv4|hip|hcc|openmp)-(?P<isa>amdgcn|spirv64)-amd-amdhsa-(?:unknown)?-?(?P<target>(?:gfx|amdgcnspirv).*)",
    re.DOTALL,
)

Bundle = tuple[GpuTarget, ...]
"""The targets that one bundle has code for, sorted."""


class _Entry(NamedTuple):
    offset: int
    size: int
    target: GpuTarget | None
    """None for code of the host or of another's GPU, and where there is none."""
    is_old: bool
    """Whether the id may leave modes out, so that the runtime asks the code object (clr, getTripleTargetID)."""


class _Head(NamedTuple):
    """What the head of a bundle says."""

    bundle: Bundle
    size: int | None
    """From its first byte to the end of its last entry; None where nothing says it."""


def read_bundles(source: RandomAccess, start: int, size: int) -> list[Bundle]:
    """Return the bundles of a range of a file, one after another.

    Raises GpuCodeError for a range with a bundle that cannot be read, or without code for any GPU.
    """
    end = start + size
    if end > source.size:
        raise GpuCodeError(f"{size} bytes of GPU code at {start}, behind the end of the file of {source.size} bytes")
    found: list[Bundle] = []
    left_bytes = _MAX_SEARCHED_BYTES
    at: int | None = start
    while at is not None:
        if len(found) >= _MAX_BUNDLES:
            raise GpuCodeError(f"more than the {_MAX_BUNDLES} bundles that are read")
        head = _read_head(source, at, end)
        found.append(head.bundle)
        at, searched = _next(source, at + (len(COMPRESSED) if head.size is None else head.size), end, left_bytes)
        left_bytes -= searched
    if not any(found):
        raise GpuCodeError("a bundle that names no GPU")
    return [bundle for bundle in found if bundle]  # one for the host alone has no code


def find_bundle(source: RandomAccess, start: int, size: int, align: int = 1) -> int | None:
    """Return where the first bundle of a range is, at a multiple of `align` bytes of the file; None without one.

    Raises GpuCodeError where the range is too long to be searched.
    """
    return _next(source, start, start + size, _MAX_SEARCHED_BYTES, align)[0]


def _next(source: RandomAccess, at: int, end: int, limit_bytes: int, align: int = 1) -> tuple[int | None, int]:
    """Return (where the next bundle begins, how many bytes were searched for it).

    Between two bundles there is less than two pages as a rule, so what is read at first is little.
    """
    start, step = at, 2 * PAGE_BYTES
    while at < end:
        if at - start >= limit_bytes:
            raise GpuCodeError(f"{end - at} bytes are too far from any bundle to be searched for one")
        data = source.read_at(at, min(step + len(PLAIN), end - at))
        if align == 1:
            places: Iterable[int] = (found.start() for found in _MAGIC.finditer(data))
        else:
            places = (place for place in range(-at % align, step, align) if _MAGIC.match(data, place))
        if (found := next(iter(places), step)) < step:
            return at + found, at - start
        at, step = at + step, _CHUNK_BYTES
    return None, min(at, end) - start


def _read_head(source: RandomAccess, at: int, end: int) -> _Head:
    data = source.read_at(at, min(_HEAD_BYTES, end - at))
    if data.startswith(PLAIN):
        return _read_plain(source, at, end, data)
    if data.startswith(COMPRESSED):
        return _read_compressed(source, at, end, data)
    raise GpuCodeError(f"neither a bundle nor a code object: begins with {data[:8]!r}")


def _read_plain(source: RandomAccess, at: int, end: int, data: bytes) -> _Head:
    entries = _entries(data)
    if entries is None:
        entries = _entries(source.read_at(at, min(_MAX_HEAD_BYTES, end - at)))
    if entries is None:
        raise GpuCodeError("a bundle whose table is cut off")
    size = _refuse_outside(entries, end - at)
    with_code = [entry for entry in entries if entry.target]
    old = {read_code_object(source, at + entry.offset) for entry in with_code if entry.is_old}
    targets = old | {entry.target for entry in with_code if entry.target and not entry.is_old}
    return _Head(tuple(sorted(targets, key=str)), max(size, _FIRST_ENTRY))


def _read_compressed(source: RandomAccess, at: int, end: int, data: bytes) -> _Head:
    if len(data) < _COMMON.size:
        raise GpuCodeError("a compressed bundle whose head is cut off")
    _, version, method = _COMMON.unpack_from(data)
    sizes = _SIZES.get(version)
    if sizes is None or method >= len(_METHODS):
        raise GpuCodeError(f"a compressed bundle of version {version}, method {method}, which are not known here")
    begin = _COMMON.size + sizes.size
    if len(data) < begin:
        raise GpuCodeError("a compressed bundle whose head is cut off")
    *whole, unpacked, _ = sizes.unpack_from(data, _COMMON.size)
    size = whole[0] if whole else None
    if size is not None and not begin < size <= end - at:
        raise GpuCodeError(f"a compressed bundle that says it has {size} bytes, where {end - at} are")
    limit = end - at if size is None else size
    packed = read_exactly(source, at + begin, min(_PACKED_BYTES, limit - begin), "a compressed bundle")
    head = _unpacked(packed, _METHODS[method])
    if head.startswith(COMPRESSED):
        raise GpuCodeError("a compressed bundle in a compressed bundle")
    entries = _entries(head) if head.startswith(PLAIN) else None
    if entries is None:
        raise GpuCodeError("a compressed bundle whose beginning is not the table of a bundle")
    _refuse_outside(entries, unpacked)
    return _Head(tuple(sorted({entry.target for entry in entries if entry.target}, key=str)), size)


def _entries(data: bytes) -> list[_Entry] | None:
    """Return the entries of a plain bundle; None where its table goes on behind the data."""
    if len(data) < _FIRST_ENTRY:
        return None
    count = int.from_bytes(data[len(PLAIN) : _FIRST_ENTRY], "little")
    if count > _MAX_ENTRIES:
        raise GpuCodeError(f"a bundle of {count} entries, more than the {_MAX_ENTRIES} that are read")
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
        entries.append(_entry(offset, size, data[at - length : at].decode("ascii", "backslashreplace")))
    return entries


def _entry(offset: int, size: int, name: str) -> _Entry:
    found = _ID.fullmatch(name) if size else None
    is_old = found is not None and found["isa"] == "amdgcn" and found["kind"] in ("hip", "hcc")
    return _Entry(offset, size, parse_target(found["target"]) if found else None, is_old)


def _refuse_outside(entries: list[_Entry], size: int) -> int:
    """Return where the last entry ends. Raises GpuCodeError where that is outside of `size` bytes."""
    last = max((entry.offset + entry.size for entry in entries), default=0)
    if last > size:
        raise GpuCodeError(f"a bundle with an entry that ends at {last}, where {size} bytes are")
    return last


def _unpacked(packed: bytes, method: str) -> bytes:
    """Return the beginning of what was packed. Raises GpuCodeError for damaged data."""
    if method == "zlib":
        try:
            return zlib.decompressobj().decompress(packed, _MAX_HEAD_BYTES)
        except zlib.error as error:
            raise GpuCodeError(f"a damaged compressed bundle: {error}") from error
    if sys.version_info >= (3, 14):  # imported here: the import costs milliseconds, and few files need it
        from compression import zstd
    else:
        from backports import zstd
    try:
        return zstd.ZstdDecompressor().decompress(packed, _MAX_HEAD_BYTES)
    except (zstd.ZstdError, EOFError) as error:
        raise GpuCodeError(f"a damaged compressed bundle: {error}") from error
