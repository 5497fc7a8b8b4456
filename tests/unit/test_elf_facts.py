"""The files of this machine: their facts compared with pyelftools, loading with ld.so; bad bytes are an ElfError."""

from __future__ import annotations

import platform
import random
from pathlib import Path

import pytest

from lumiimg.core.access import BytesInMemory
from lumiimg.core.text import numbers_of
from lumiimg.elf import ElfCache, Process, c_library_of, glibc_version, read_elf
from lumiimg.image import open_image
from tests.shared.elf_builder import (
    LOADER,
    assert_same,
    library,
    runpath,
    settings_here,
    trace,
)
from tests.shared.elf_oracles import assert_facts_of_pyelftools
from tests.shared.programs import tenth_of


def _real_files(count: int) -> list[Path]:
    found = [
        path
        for directory in ("/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")
        for path in sorted(Path(directory).glob("*"))
        if path.is_file() and path.read_bytes()[:5] == b"\x7fELF\x02"
    ]
    return random.Random(2026).sample(found, min(count, len(found)))  # noqa: S311


def test_facts_are_those_of_pyelftools() -> None:
    for path in _real_files(tenth_of(150)):
        assert_facts_of_pyelftools(path.read_bytes())


@pytest.mark.skipif(not Path(LOADER).exists(), reason="no glibc of x86-64 here")
def test_names_order_paths_and_words_are_those_of_ld_so(tmp_path: Path) -> None:
    with open_image(Path("/")) as image:
        cache = ElfCache(image.root)
        for path in _real_files(tenth_of(1200)):
            real = trace(path, cwd=Path("/"))
            outcome = Process(image.root, settings_here({}, Path("/")), cache=cache).start(str(path))
            if not real.crashed:  # ld.so crashes on a few programs that are linked to its own addresses
                assert_same(outcome, real)
        assert (c_library_of(image.root).kind, glibc_version(image.root)) == ("glibc", platform.libc_ver()[1])
    with open_image(tmp_path) as image:
        assert c_library_of(image.root).kind is glibc_version(image.root) is None


def test_facts_of_a_file_without_section_headers(tmp_path: Path) -> None:
    liba = library(tmp_path / "liba.so.1", *runpath("$ORIGIN/x"), "-Wl,-z,nodefaultlib")
    data = bytearray(liba.read_bytes())
    whole = read_elf(BytesInMemory(bytes(data)))
    data[40:48] = bytes(8)
    data[60:64] = bytes(4)
    assert read_elf(BytesInMemory(bytes(data))) == whole
    assert (whole.soname, whole.runpath, whole.rpath) == ("liba.so.1", "$ORIGIN/x", None)
    assert whole.flags_1 & 0x800


def test_the_numbers_of_a_version_are_compared_as_numbers() -> None:
    for version, numbers in (
        ("GLIBC_2.38", (2, 38)),
        ("2.38", (2, 38)),
        ("V_1.2.3.4.5.6", (1, 2, 3, 4, 5, 6)),
        *((none, ()) for none in ("GLIBC_ABI_DT_RELR", "", "FABRIC_1.", "V_1.2.3.4.5.6.7", "V_1234567890")),
    ):
        assert numbers_of(version) == numbers
