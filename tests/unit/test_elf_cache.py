"""The loader's cache: what `ldconfig -p` lists is found, and a damaged cache is an ElfError and nothing else."""

from __future__ import annotations

import contextlib
import struct

from lumiimg.elf import ElfError
from lumiimg.elf.ld_cache import LoaderCache, parse_cache
from tests.shared.elf_builder import loader_cache


def _cache(data: bytes) -> LoaderCache:
    cache = parse_cache(data)
    assert cache is not None
    return cache


def test_the_old_format_is_skipped_before_the_new_one_and_not_read_alone() -> None:
    old = struct.pack("<12sI", b"ld.so-1.7.0", 1) + struct.pack("<iII", 0x303, 0, 8)
    assert parse_cache(old + b"liba.so\0/lib/liba.so\0") is None
    both = old + bytes(-len(old) % 8) + loader_cache([("libb.so", "/lib/libb.so", 0)])
    assert _cache(both).lookup("libb.so") == "/lib/libb.so"


def test_a_damaged_cache_is_an_elf_error_and_a_damaged_entry_is_not_found() -> None:
    good = loader_cache([("a", "/a", 0)])
    taken = []
    for data in (
        *(
            b"",
            b"#!/bin/sh\n",
            b"glibc-ld.so.cache1.1",
            b"glibc-ld.so.cache1.1" + b"\xff" * 28,
            b"ld.so-1.7.0\0" + b"\xff" * 4,
        ),
        *(good[:60], loader_cache([("a", "/a", 0)], endian=3), loader_cache([("a", "/a", 0)], endian=1)),
    ):
        with contextlib.suppress(ElfError):
            taken.append((data, parse_cache(data)))
    assert taken == []
    outside = good[:52] + b"\xff\xff\xff\x7f" + good[56:]
    of_another_machine = loader_cache([("a", "/a", 0)], flags=0x0A03)
    assert [_cache(data).lookup("a") for data in (good, outside, of_another_machine)] == ["/a", None, None]
