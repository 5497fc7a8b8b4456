"""Of `elf/`, and what else is read out of libraries."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

from lumiimg.elf.cache import parse_cache
from lumiimg.elf.facts import defined_symbols, exported_symbols, read_elf, undefined_symbols
from lumiimg.elf.loader import Process
from lumiimg.elf.notes import read_notes
from lumiimg.elf.reader import BytesReader, ElfError
from lumiimg.elf.rules import LoaderSettings
from lumiimg.elf.segments import Segments
from lumiimg.elf.system import glibc_version, libc_kind
from lumiimg.fabric.rccl import read_rccl
from lumiimg.report.ldd import print_ldd
from tests.fuzz.target import Target
from tests.fuzz.targets.scratch import BORDER, parts, printed, text_of
from tests.shared.host_model import cache_file
from tests.shared.memory_root import MemoryRoot

_LOADER = "/lib64/ld-linux-x86-64.so.2"


def _facts(data: bytes) -> None:
    read_elf(BytesReader(data))


def _symbols(data: bytes) -> None:
    exported_symbols(BytesReader(data), "ncclNet")
    wanted = undefined_symbols(BytesReader(data)) | undefined_symbols(BytesReader(data), lazily=True)
    defined_symbols(BytesReader(data), wanted)


def _notes(data: bytes) -> None:
    with contextlib.suppress(ElfError):
        read_notes(Segments(BytesReader(data)))


def _cache(data: bytes) -> None:
    cache = parse_cache(data)
    for name in ("libc.so.6", "liba.so.10", "libz.so.1", "", "\udcff", "9" * 400):
        cache.lookup(name, hwcaps=("x86-64-v3", "x86-64-v2"))
        cache.lookup(name, machine=3, elf_class=32)
    str(cache.glibc_version)


def _process(data: bytes) -> str:
    """A program, its libraries, the loader and its cache: what `ldd` says of them."""
    program, one, two, loader, cache, path = parts(data, 6)
    files = {"/prog": program, "/lib/liba.so": one, "/usr/lib/libb.so": two, _LOADER: loader, "/etc/ld.so.cache": cache}
    root = MemoryRoot({name: content for name, content in files.items() if content})
    glibc_version(root)
    libc_kind(root)
    process = Process(root, LoaderSettings(library_path=text_of(path), preload=("libb.so",)))
    outcome = process.start("/prog")
    assert outcome.ok == (not outcome.errors)
    if outcome.ok and process.objects[0].facts.is_dynamic:
        process.dlopen("liba.so")
    return printed(print_ldd, {"/prog": outcome}, {"/prog": outcome}, None, (), verbose=True, stderr=False)


def _rccl(data: bytes) -> None:
    read_rccl(BytesReader(data))


def small_elf(
    *needed: str, soname: str = "liba.so", search: str = "$ORIGIN/../lib:/x/${LIB}", bits: int = 64, order: str = "<"
) -> bytes:
    """Return a library in which every part that is read stands, a few hundred bytes of it."""
    strings = bytearray(b"\0")

    def name(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text) - 1

    header_bytes, entry_bytes, dynamic, symbol = (
        (64, 56, struct.Struct(order + "qQ"), struct.Struct(order + "IBBHQQ"))
        if bits == 64
        else (52, 32, struct.Struct(order + "iI"), struct.Struct(order + "IIIBBH"))
    )
    interpreter = _LOADER.encode() + b"\0"
    dlopen = b'[{"soname":["libcxi.so.1"],"feature":"f","description":"d","priority":"suggested"}]\0'
    note = struct.Struct(order + "III")
    notes = b"".join(
        note.pack(4, len(body), kind) + owner + body.ljust(-(-len(body) // 4) * 4, b"\0")
        for owner, kind, body in (
            (b"GNU\0", 3, bytes(range(20))),
            (b"GNU\0", 1, struct.pack(order + "IIII", 0, 3, 2, 0)),
            (b"GNU\0", 5, struct.pack(order + "IIII", 0xC0008002, 4, 5, 0)),
            (b"FDO\0", 0x407C0C0A, dlopen),
        )
    )
    entries = [(1, name(one)) for one in needed]
    entries += [(14, name(soname)), (29, name(search)), (0x7FFFFFFD, name("libaux.so"))]
    of_libc, version, own = name("libc.so.6"), name("GLIBC_2.34"), name("GLIBC_2.2.5")
    names = [name(text) for text in ("ncclNetPlugin_v8", "ncclNetPlugin_v10", "memcpy", "dlsym")]
    need = struct.pack(order + "HHIII", 1, 1, of_libc, 16, 0) + struct.pack(order + "IHHII", 1, 0, 2, version, 0)
    definition = struct.pack(order + "HHHHIII", 1, 1, 1, 1, 0, 20, 0) + struct.pack(order + "II", own, 0)
    symbols = symbol.pack(*([0] * 6))
    for at, section in zip(names, (7, 7, 0, 0), strict=True):
        symbols += symbol.pack(at, 0x12, 0, section, 1, 1) if bits == 64 else symbol.pack(at, 1, 1, 0x12, 0, section)
    hashes = struct.pack(order + "IIIIIIII", 1, 5, 1, 0, 2, 3, 4, 0)
    versions = struct.pack(order + "5H", 0, 1, 1, 2, 2)
    start = header_bytes + 6 * entry_bytes
    places: dict[str, int] = {}
    body = bytearray()
    blocks = (
        ("interpreter", interpreter),
        ("notes", notes),
        ("strings", bytes(strings)),
        ("need", need),
        ("definition", definition),
        ("symbols", symbols),
        ("hashes", hashes),
        ("versions", versions),
    )
    for key, block in blocks:
        body.extend(bytes(-(start + len(body)) % 8))
        places[key] = start + len(body)
        body.extend(block)
    body.extend(bytes(-(start + len(body)) % 8))
    entries += [(5, places["strings"]), (10, len(strings)), (6, places["symbols"]), (11, symbol.size)]
    entries += [(4, places["hashes"]), (0x6FFFFFF0, places["versions"])]
    entries += [(0x6FFFFFFE, places["need"]), (0x6FFFFFFF, 1), (0x6FFFFFFC, places["definition"]), (0x6FFFFFFD, 1)]
    entries += [(30, 0x10), (0x6FFFFFFB, 0x08000000), (0, 0)]
    places["dynamic"] = start + len(body)
    table = b"".join(dynamic.pack(*entry) for entry in entries)
    body.extend(table)
    total = start + len(body)

    def segment(kind: int, at: int, size: int, align: int = 8) -> bytes:
        if bits == 64:
            return struct.pack(order + "IIQQQQQQ", kind, 5, at, at, at, size, size, align)
        return struct.pack(order + "IIIIIIII", kind, at, at, at, size, size, 5, align)

    segments = segment(1, 0, total, 4096) + segment(3, places["interpreter"], len(interpreter), 1)
    segments += segment(2, places["dynamic"], len(table)) + segment(4, places["notes"], len(notes), 4)
    segments += segment(7, places["versions"], 8) + segment(0x6474E551, 0, 0)
    ident = b"\x7fELF" + bytes((2 if bits == 64 else 1, 1 if order == "<" else 2, 1)) + bytes(9)
    machine = {(64, "<"): 62, (32, "<"): 3}.get((bits, order), 21 if bits == 64 else 8)
    fields = (3, machine, 1, 0, header_bytes, 0, 0, header_bytes, entry_bytes, 6, 0, 0, 0)
    form = "HHIQQQIHHHHHH" if bits == 64 else "HHIIIIIHHHHHH"
    return ident + struct.pack(order + form, *fields) + segments + bytes(body)


def _elf_seeds() -> Iterator[bytes]:
    for bits in (64, 32):
        for order in "<>":
            yield small_elf("libc.so.6", "libb.so", bits=bits, order=order)
    yield small_elf(search="")
    for path in sorted(Path("/usr/lib/x86_64-linux-gnu").glob("*.so*")):
        if path.stat().st_size < 20_000:
            yield path.read_bytes()


def _cache_seeds() -> Iterator[bytes]:
    yield cache_file({"libc.so.6": "/lib/libc.so.6", "liba.so.10": "/lib/liba.so.10", "liba.so.9": "/lib/liba.so.9"})
    strings = b"libz.so.1\0/lib/libz.so.1\0"
    old = struct.pack("<12sI", b"ld.so-1.7.0", 1) + struct.pack("<iII", 0x303, 0, 10)
    yield old + strings
    new = cache_file({"libz.so.1": "/lib/libz.so.1"})
    yield old + bytes(-len(old) % 8) + new
    level = bytearray(new)
    at = -(-len(level) // 4) * 4
    level.extend(bytes(at - len(level)))
    level[32:36] = at.to_bytes(4, "little")
    level[48 + 16 : 48 + 24] = (1 << 62).to_bytes(8, "little")
    words = b"ldconfig (GNU libc) stable release version 2.39"
    names = at + 40 + len(words)
    level += struct.pack("<II", 0xEAA42174, 2) + struct.pack("<IIII", 0, 0, at + 40, len(words))
    level += struct.pack("<IIII", 1, 0, names, 4) + words + struct.pack("<I", names + 4) + b"x86-64-v3\0"
    yield bytes(level)


def _process_seeds() -> Iterator[bytes]:
    loader = b"GNU C Library (Debian) stable release version 2.36.\n\0/lib/x86_64-linux-gnu/\0/usr/lib/\0" + small_elf()
    program = small_elf("liba.so", "libb.so", soname="prog")
    cache = cache_file({"liba.so": "/lib/liba.so", "libb.so": "/usr/lib/libb.so"})
    yield BORDER.join((program, small_elf("libb.so"), small_elf(soname="libb.so"), loader, cache, b"/lib:$ORIGIN/x:"))
    yield BORDER.join((small_elf("libb.so", bits=32), small_elf(), small_elf(), small_elf(), b"", b":;/usr/lib"))


def _rccl_seeds() -> Iterator[bytes]:
    yield b"\0RCCL version : 2.22.3+hip\0\0librccl-net.so\0\0ncclNetPlugin_v8\0ncclNetPlugin_v10\0"
    yield b"NCCL version 2.20.5 \n\0libnccl-net.so\0xlibnccl-net.so\0ncclNetPlugin_v9\0"


TARGETS = (
    Target("elf-facts", ("elf.facts.read_elf", "elf.segments.Segments"), _facts, _elf_seeds, (ElfError,), "bytes"),
    Target(
        "elf-symbols",
        (
            "elf.facts.exported_symbols",
            "elf.facts.undefined_symbols",
            "elf.facts.defined_symbols",
            "elf.relocations.symbols_looked_up",
            "elf.symbols.defined_names",
        ),
        _symbols,
        _elf_seeds,
        (ElfError,),
        "bytes",
    ),
    Target(
        "elf-notes",
        ("elf.notes.read_notes",),
        _notes,
        _elf_seeds,
        (ElfError,),
        "bytes",
    ),
    Target("ld-so-cache", ("elf.cache.parse_cache",), _cache, _cache_seeds, (ElfError,), "bytes"),
    Target(
        "elf-process",
        (
            "elf.loader.Process",
            "elf.system.glibc_version",
            "elf.system.libc_kind",
            "elf.rules.split_path",
            "elf.versions.read_version_needs",
            "elf.versions.read_version_definitions",
        ),
        _process,
        _process_seeds,
        (),
        "bytes",
        rounds=10,
    ),
    Target("rccl-strings", ("fabric.rccl.read_rccl",), _rccl, _rccl_seeds, (), "bytes"),
)
