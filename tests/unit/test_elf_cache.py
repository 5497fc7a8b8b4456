"""The loader's cache: what `ldconfig -p` lists is found, and a damaged cache is an ElfError and nothing else."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from lumiimg.elf.cache import OldCacheError, parse_cache
from lumiimg.elf.reader import ElfError
from tests.shared.elf_builder import loader_cache

_REAL = Path("/etc/ld.so.cache")


def test_every_entry_of_this_machine_is_found() -> None:
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if not _REAL.exists() or not Path(ldconfig).exists():
        pytest.skip("no loader cache here")
    cache = parse_cache(_REAL.read_bytes())
    listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    first: dict[str, str] = {}
    for name, path in re.findall(r"^\t(\S+) \(libc6,x86-64\) => (\S+)$", listed, re.MULTILINE):
        first.setdefault(name, path)
    assert first
    assert {name: cache.lookup(name) for name in first} == first
    assert cache.lookup("libnowhere.so.1") is None
    assert cache.glibc_version is not None
    assert cache.generator is not None
    assert cache.glibc_version in cache.generator


def test_digits_count_by_value_and_the_order_is_descending() -> None:
    names = ["libz.so.1", "liba.so.10", "liba.so.9", "liba.so.2"]
    cache = parse_cache(loader_cache([(name, f"/lib/{name}", 0) for name in names]))
    assert [cache.lookup(name) for name in names] == [f"/lib/{name}" for name in names]
    assert cache.lookup("liba.so.010") == "/lib/liba.so.10"
    assert cache.generator == "ldconfig (GNU libc) stable release version 2.31"
    assert cache.glibc_version == "2.31"


def test_the_best_level_of_the_cpu_wins() -> None:
    marked = 1 << 62
    cache = parse_cache(
        loader_cache(
            [("liba.so", "/lib/v3", marked | 1), ("liba.so", "/lib/v2", marked), ("liba.so", "/lib/plain", 0)],
            hwcaps=("x86-64-v2", "x86-64-v3"),
        )
    )
    assert cache.lookup("liba.so", hwcaps=("x86-64-v3", "x86-64-v2")) == "/lib/v3"
    assert cache.lookup("liba.so", hwcaps=("x86-64-v2",)) == "/lib/v2"
    assert cache.lookup("liba.so") == "/lib/plain"


def test_entry_of_another_machine_is_passed_over() -> None:
    assert parse_cache(loader_cache([("liba.so", "/lib/liba.so", 0)], flags=0x0A03)).lookup("liba.so") is None


def test_the_old_format_is_skipped_before_the_new_one_and_not_read_alone() -> None:
    old = struct.pack("<12sI", b"ld.so-1.7.0", 1) + struct.pack("<iII", 0x303, 0, 8)
    with pytest.raises(OldCacheError):
        parse_cache(old + b"liba.so\0/lib/liba.so\0")
    both = old + bytes(-len(old) % 8) + loader_cache([("libb.so", "/lib/libb.so", 0)])
    assert parse_cache(both).lookup("libb.so") == "/lib/libb.so"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"glibc-ld.so.cache1.1", id="magic-only"),
        pytest.param(loader_cache([("a", "/a", 0)])[:60], id="cut-off"),
        pytest.param(loader_cache([("a", "/a", 0)], endian=3), id="big-endian"),
        pytest.param(loader_cache([("a", "/a", 0)], endian=1), id="invalid-endian"),
        pytest.param(b"glibc-ld.so.cache1.1" + b"\xff" * 28, id="huge-counts"),
        pytest.param(b"ld.so-1.7.0\0" + b"\xff" * 4, id="huge-old-count"),
        pytest.param(b"#!/bin/sh\n", id="text"),
    ],
)
def test_damaged_cache_is_an_elf_error(data: bytes) -> None:
    with pytest.raises(ElfError):
        parse_cache(data)


def test_name_outside_of_the_strings_is_not_found() -> None:
    data = bytearray(loader_cache([("liba.so", "/lib/liba.so", 0)]))
    data[52:56] = b"\xff\xff\xff\x7f"
    assert parse_cache(bytes(data)).lookup("liba.so") is None
