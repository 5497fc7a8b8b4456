"""GPU code in the layout of compilers, without instructions: bundles, code objects, and libraries containing them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from lumiimg.gpu.target import table

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
PAGE = 4096
HOST_ID = "host-x86_64-unknown-linux-gnu-"


def hip(*targets: str) -> list[str]:
    return [f"hipv4-amdgcn-amd-amdhsa--{target}" for target in targets]


def code_object(target: str = "gfx90a", *, version: int = 4, flags: int = 0) -> bytes:
    """Return a code object with this EI_ABIVERSION (2 is V4, 4 is V6)."""
    mach: int = table()["processors"][target]
    ident = b"\x7fELF\2\1\1\x40" + bytes((version,)) + bytes(7)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 64, 0, mach | flags, 64, 56, 0, 64, 0, 0)


def bundle(*ids: str, codes: Sequence[bytes] = (), count: int | None = None, offset: int | None = None) -> bytes:
    """Return a plain bundle with a 64-byte entry for each id except the host's; `count` and `offset` may lie."""
    ids = (HOST_ID, *ids)
    codes = (b"", *(codes or [code_object()] * (len(ids) - 1)))
    at = 32 + sum(24 + len(name) for name in ids)
    head, body = MAGIC + struct.pack("<Q", len(ids) if count is None else count), b""
    for name, code in zip(ids, codes, strict=True):
        place = at + len(body) if offset is None else offset
        head += struct.pack("<QQQ", place, len(code), len(name)) + name.encode()
        body += code
    return head + body


def compressed(plain: bytes, version: int = 3, *, whole: int | None = None, unpacked: int | None = None) -> bytes:
    """Return a bundle compressed with zlib; `whole` and `unpacked` may lie about its sizes."""
    packed = zlib.compress(plain)
    unpacked = len(plain) if unpacked is None else unpacked
    size = 8 + {1: 12, 2: 16, 3: 24}[version] + len(packed) if whole is None else whole
    whole_and_unpacked = struct.pack("<QQ" if version == 3 else "<II", size, unpacked)
    sizes = struct.pack("<I", unpacked) if version == 1 else whole_and_unpacked
    return b"CCOB" + struct.pack("<HH", version, 0) + sizes + bytes(8) + packed


def pages(*bundles: bytes) -> bytes:
    """Return bundles one after another, each at the start of a page."""
    return b"".join(each + bytes(-len(each) % PAGE) for each in bundles)


def library(fatbin: bytes | None, *, kind: int = 1) -> bytes:
    """Return a host library with GPU code at the start of a page."""
    blocks = [(b".hip_fatbin", kind, fatbin)] if fatbin is not None else []
    names = b"\0" + b"\0".join(name for name, _, _ in blocks) + b"\0.shstrtab\0"
    data = bytearray(PAGE)
    table = bytearray(64)
    for name, kind_of, block in (*blocks, (b".shstrtab", 3, names)):
        table += struct.pack("<IIQQQQIIQQ", names.index(name), kind_of, 2, 0, len(data), len(block), 0, 0, 1, 0)
        data += pages(block) if kind_of == 1 else block
    count = len(table) // 64
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, len(data), 0, 64, 56, 1, 64, count, count - 1)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, len(data), len(data), PAGE)
    data[:120] = b"\x7fELF\2\1\1" + bytes(9) + header + load
    return bytes(data + table)


def fatbin_source(*targets: str) -> str:
    """Return C source of a library with GPU code in the section `.hip_fatbin`, where clang puts it."""
    numbers = ", ".join(map(str, bundle(*hip(*targets))))
    return f'__attribute__((section(".hip_fatbin"), aligned({PAGE}), used)) const unsigned char fat[] = {{{numbers}}};'
