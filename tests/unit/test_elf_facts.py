"""ELF facts: those of real libraries are what pyelftools says; whatever the bytes, ElfError is the only error."""

from __future__ import annotations

import struct
import time
import tracemalloc
from functools import cache
from pathlib import Path

import pytest

from lumiimg.elf.facts import exported_symbols, read_elf
from lumiimg.elf.reader import BytesReader, ElfError
from tests.shared.elf_builder import gcc, library, rpath, runpath
from tests.shared.elf_oracles import assert_facts_of_pyelftools

_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/bin")


def _real_files(count: int) -> list[Path]:
    found = [
        path
        for directory in _DIRECTORIES
        for path in sorted(Path(directory).glob("*"))
        if path.is_file() and not path.is_symlink() and 64 < path.stat().st_size < 2 << 20
        if path.read_bytes()[:4] == b"\x7fELF"
    ]
    return found[:: max(1, len(found) // count)][:count]


@pytest.mark.parametrize("path", _real_files(40), ids=lambda path: path.name)
def test_facts_are_those_of_pyelftools(path: Path) -> None:
    assert_facts_of_pyelftools(path.read_bytes())


def test_facts_of_a_file_without_section_headers(tmp_path: Path) -> None:
    liba = library(tmp_path / "liba.so.1", *runpath("$ORIGIN/x"), "-Wl,-z,nodefaultlib")
    data = bytearray(liba.read_bytes())
    whole = read_elf(BytesReader(bytes(data)))
    data[40:48] = bytes(8)
    data[60:64] = bytes(4)
    assert read_elf(BytesReader(bytes(data))) == whole
    assert (whole.soname, whole.runpath, whole.rpath) == ("liba.so.1", "$ORIGIN/x", None)
    assert whole.flags_1 & 0x800


@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
def test_exported_symbols_are_counted_by_either_hash_table(tmp_path: Path, style: str) -> None:
    source = (
        "int ncclNetPlugin_v8; int ncclNetPlugin_v6; int other; static int hidden; int undefined(void);"
        '__attribute__((visibility("hidden"))) int ncclNetPlugin_hidden;'
        "int call(void) { return undefined() + hidden; }"
    )
    path = library(tmp_path / "libnet.so", f"-Wl,--hash-style={style}", source=source)
    reader = BytesReader(path.read_bytes())
    assert exported_symbols(reader, "ncclNetPlugin_v") == {"ncclNetPlugin_v8", "ncclNetPlugin_v6"}
    assert exported_symbols(reader) == {"ncclNetPlugin_v8", "ncclNetPlugin_v6", "other", "call"}


def test_stack_tls_rpath_and_isa(tmp_path: Path) -> None:
    path = library(
        tmp_path / "liba.so",
        "-Wl,-z,execstack",
        "-Wl,-z,x86-64-v3",
        "-Wl,--no-warn-execstack",
        *rpath("/x"),
        source="__thread char block[4096]; void *f(void) { return block; }",
    )
    facts = read_elf(BytesReader(path.read_bytes()))
    assert facts.executable_stack
    assert facts.tls_size_bytes == 4096
    assert facts.rpath == "/x"
    assert facts.isa_needed is not None
    assert facts.isa_needed & 4


def test_relative_relocations_are_seen(tmp_path: Path) -> None:
    path = library(
        tmp_path / "liba.so", "-Wl,-z,pack-relative-relocs", source="static int a; int *p[4] = {&a, &a, &a, &a};"
    )
    assert read_elf(BytesReader(path.read_bytes())).has_relr


def test_static_program_has_no_dynamic_segment(tmp_path: Path) -> None:
    path = gcc(tmp_path / "prog", "-static", "-Wl,-e,start", source="void start(void) {}")
    facts = read_elf(BytesReader(path.read_bytes()))
    assert not facts.is_dynamic
    assert facts.needed == ()


TAGS = (1, 5, 10, 14, 0x6FFFFFFC, 0x6FFFFFFE)
"""DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_VERDEF, DT_VERNEED."""


@cache
def _good_file() -> bytes:
    """A small library of this machine that needs versions and defines some."""
    small = (path for path in _real_files(2000) if ".so" in path.name and path.stat().st_size < 200_000)
    return next(data for path in small if set(TAGS) <= set(_entries(data := path.read_bytes())))


def _with(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


@pytest.mark.parametrize(
    "mutate",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda d: d[:4], id="magic-only"),
        pytest.param(lambda d: d[:63], id="63-bytes"),
        pytest.param(lambda d: d[:64], id="header-only"),
        pytest.param(lambda d: _with(d, 4, b"\3"), id="class-3"),
        pytest.param(lambda d: _with(d, 5, b"\0"), id="no-byte-order"),
        pytest.param(lambda d: _with(d, 56, b"\xff\xff"), id="65535-program-headers"),
        pytest.param(lambda d: _with(d, 54, b"\0\0"), id="entry-size-0"),
        pytest.param(lambda d: _with(d, 54, b"\x39\0"), id="entry-size-57"),
        pytest.param(lambda d: _with(d, 32, b"\xff" * 8), id="program-headers-past-end"),
        pytest.param(lambda _: b"INPUT(libc.so.6)\n" * 20, id="linker-script"),
    ],
)
def test_hostile_header_is_an_elf_error(mutate: object) -> None:
    assert callable(mutate)
    with pytest.raises(ElfError):
        read_elf(BytesReader(mutate(_good_file())))


def _dynamic_offset(data: bytes) -> int:
    count = int.from_bytes(data[56:58], "little")
    for index in range(count):
        at = 64 + 56 * index
        if data[at : at + 4] == b"\2\0\0\0":
            return int.from_bytes(data[at + 8 : at + 16], "little")
    raise AssertionError


def _entries(data: bytes) -> dict[int, int]:
    """Where in the file the entry of each dynamic tag is."""
    at = _dynamic_offset(data)
    found = {}
    while tag := int.from_bytes(data[at : at + 8], "little"):
        found[tag] = at
        at += 16
    return found


@pytest.mark.parametrize("tag", TAGS)
def test_dynamic_entry_that_points_nowhere_is_an_elf_error(tag: int) -> None:
    data = _good_file()
    at = _entries(data)[tag]
    if tag == 10:  # DT_STRSZ: too small for the names in use
        with pytest.raises(ElfError):
            read_elf(BytesReader(_with(data, at + 8, struct.pack("<Q", 1))))
        return
    with pytest.raises(ElfError):
        read_elf(BytesReader(_with(data, at + 8, b"\xff" * 8)))


def test_facts_of_one_file_take_a_fraction_of_a_millisecond() -> None:
    readers = [BytesReader(path.read_bytes()) for path in _real_files(100)]
    start = time.process_time()
    for reader in readers:
        read_elf(reader)
    assert (time.process_time() - start) / len(readers) < 0.001


def test_names_that_end_one_long_string_do_not_fill_the_memory() -> None:
    """Each of 32,767 needs names a longer end of the same 60,000 bytes: gigabytes of text in half a megabyte."""
    count, strings_bytes = 32_767, 60_000
    dynamic_at = 64 + 2 * 56
    strings_at = dynamic_at + 4 * 16
    needs_at = strings_at + strings_bytes
    need = struct.pack("<HHIII", 1, 1, 0, 16, 0)
    records = (struct.pack("<IHHII", 0, 0, 0, n % 1000, 16 if n < count - 1 else 0) for n in range(count))
    needs = need + b"".join(records)
    size = needs_at + len(needs)
    dynamic = struct.pack("<qQqQqQqQ", 5, strings_at, 10, strings_bytes, 0x6FFFFFFE, needs_at, 0, 0)
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    segments += struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, dynamic_at, dynamic_at, 64, 64, 8)
    data = header + segments + dynamic + b"a" * (strings_bytes - 1) + b"\0" + needs
    tracemalloc.start()
    try:
        with pytest.raises(ElfError):
            read_elf(BytesReader(data))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
