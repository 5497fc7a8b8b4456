"""Roots of damaged libraries: the model ends soon and reports what is wrong, without any other exception."""

from __future__ import annotations

import errno
import os
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lumiimg.core.access import BytesInMemory
from lumiimg.elf import ElfError, ElfFacts, Process, SnapshotElf, read_elf
from lumiimg.elf.glibc import read_loader
from lumiimg.elf.ld_cache import parse_cache
from lumiimg.image import open_image
from tests.shared.programs import patient


@contextmanager
def peak_below(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.threat
def test_counts_in_a_cache_take_no_memory() -> None:
    count = 1 << 16
    names = 48 + 24 * count
    entries = (b"\3\3\0\0" + names.to_bytes(4, "little") * 2 + bytes(12)) * count
    head = b"glibc-ld.so.cache1.1" + count.to_bytes(4, "little") + bytes(4) + b"\2" + bytes(19)
    data = head + entries + b"x" * 5_000_000
    with peak_below(3 * len(data)):
        cache = parse_cache(data)
        assert cache is not None
        assert cache.lookup("x" * 5_000) is cache.lookup("liba.so") is None
    many = (1 << 31).to_bytes(4, "little")
    with pytest.raises(ElfError, match="claims 2147483648 entries"):
        parse_cache(b"glibc-ld.so.cache1.1" + many + bytes(24) + entries)
    with pytest.raises(ElfError, match="claims 2147483648 old entries"):
        parse_cache(b"ld.so-1.7.0\0" + many + entries)
    extended = b"glibc-ld.so.cache1.1" + bytes(12) + (48).to_bytes(4, "little") + bytes(12)
    cache = parse_cache(extended + (0xEAA42174).to_bytes(4, "little") + many)
    assert cache is not None
    assert cache.hwcaps == ()


@pytest.mark.threat
def test_long_strings_in_a_loader_take_no_time(tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    strings = (b"/lib" * 800, b"/lib/" * 1600, b"/lib" * 60 + b" ")
    data = b"".join(b"\0" + each + b"\0/usr/lib/" for each in strings) * 100 + b"\0/usr/lib64/\0"
    (tmp_path / "lib64/ld.so").write_bytes(data)
    with open_image(tmp_path) as image:
        began = time.process_time()
        loader = read_loader(image.root, 62, "/lib64/ld.so")
    assert loader.directories == ("/usr/lib/", "/usr/lib64/")
    assert time.process_time() - began < patient(2)


@pytest.mark.threat
def test_names_that_end_one_long_string_do_not_fill_the_memory() -> None:
    """Each of 32,767 needs is a longer suffix of the same 60,000 bytes: gigabytes of text in half a megabyte."""
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
    with peak_below(64 << 20), pytest.raises(ElfError):
        read_elf(BytesInMemory(data))


@pytest.mark.threat
def test_a_process_with_needs_without_number_ends() -> None:
    """4,096 libraries that each need 4,096 missing ones would give sixteen million lines."""
    libraries = {f"l{n}.so": [f"l{n}_{m}.so" for m in range(1000)] for n in range(50)}
    root = Recorded(
        {"/usr/lib/p.so": list(libraries), **{f"/usr/lib/{name}": needs for name, needs in libraries.items()}}
    )
    outcome = Process(root).start("/usr/lib/p.so")
    assert 4096 <= len(outcome.errors) < 6000
    assert outcome.errors[-1].endswith("errors in one load: the rest is ignored")


class Recorded:
    """A root with libraries that only have needs."""

    def __init__(self, needs: dict[str, list[str]]) -> None:
        self._needs = needs

    def open(self, path: str) -> SnapshotElf:
        if path not in self._needs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        needed = tuple(self._needs[path])
        facts = ElfFacts(62, 3, True, soname=path.rpartition("/")[2], needed=needed)
        return SnapshotElf(facts, 1000, path)

    open_exec = open  # noqa: A003 - of this class

    def is_dir(self, path: str) -> bool:
        return path.rstrip("/") in {"/lib", "/usr/lib"}

    def resolve(self, path: str) -> str:
        return path
