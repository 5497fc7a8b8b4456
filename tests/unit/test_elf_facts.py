"""ELF facts: those of real libraries are what pyelftools says; whatever the bytes, ElfError is the only error."""

from __future__ import annotations

import contextlib
import struct
from functools import cache
from pathlib import Path

import pytest

from lumiimg.elf.facts import exported_symbols, read_elf
from lumiimg.elf.reader import BytesReader, ElfError
from tests.shared.elf_builder import library, runpath
from tests.shared.elf_oracles import assert_facts_of_pyelftools
from tests.shared.programs import tenth_of

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


def test_facts_are_those_of_pyelftools() -> None:
    for path in _real_files(tenth_of(150)):
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


TAGS = (1, 5, 10, 14, 0x6FFFFFFC, 0x6FFFFFFE)
"""DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_VERDEF, DT_VERNEED."""


@cache
def _good_file() -> bytes:
    """A small library of this machine that needs versions and defines some."""
    small = (path for path in _real_files(2000) if ".so" in path.name and path.stat().st_size < 200_000)
    return next(data for path in small if set(TAGS) <= set(_entries(data := path.read_bytes())))


def _with(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


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


def test_hostile_headers_and_entries_are_elf_errors() -> None:
    good = _good_file()
    spoiled = {f"cut at {size}": good[:size] for size in (0, 4, 63, 64)} | {"text": b"INPUT(libc.so.6)\n" * 20}
    for at, value in ((4, b"\3"), (5, b"\0"), (56, b"\xff\xff"), (54, b"\0\0"), (54, b"\x39\0"), (32, b"\xff" * 8)):
        spoiled[f"{value!r} at {at}"] = _with(good, at, value)
    for tag, at in _entries(good).items():
        if tag in TAGS:  # DT_STRSZ: too small for the names in use
            spoiled[f"tag {tag}"] = _with(good, at + 8, struct.pack("<Q", 1) if tag == 10 else b"\xff" * 8)
    taken = []
    for name, data in spoiled.items():
        with contextlib.suppress(ElfError):
            taken.append((name, read_elf(BytesReader(data))))
    assert taken == []
