"""The loader model over this machine's own root, against this machine's own ld.so."""

from __future__ import annotations

import platform
import random
from pathlib import Path

import pytest

from lumiimg.elf.files import Files
from lumiimg.elf.loader import Process
from lumiimg.elf.system import glibc_version, libc_kind
from lumiimg.image import open_image
from tests.shared.elf_builder import LOADER, assert_same, settings_here, trace
from tests.shared.programs import tenth_of

_SAMPLE = tenth_of(1200)


def _elf_files() -> list[Path]:
    found: list[Path] = []
    for directory in ("/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        for path in sorted(Path(directory).glob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    if file.read(20)[:5] == b"\x7fELF\x02":
                        found.append(path)
    return random.Random(2026).sample(found, min(_SAMPLE, len(found)))  # noqa: S311


@pytest.mark.skipif(not Path(LOADER).exists(), reason="no glibc of x86-64 here")
def test_names_order_paths_and_words_are_those_of_ld_so() -> None:
    with open_image(Path("/")) as image:
        files = Files(image.root)
        for path in _elf_files():
            real = trace(path, cwd=Path("/"))
            outcome = Process(image.root, settings_here({}, Path("/")), files=files).start(str(path))
            if not real.crashed:  # ld.so falls over a few programs that are linked to its own addresses
                assert_same(outcome, real)


@pytest.mark.skipif(not Path(LOADER).exists(), reason="no glibc of x86-64 here")
def test_version_and_kind_of_the_c_library(tmp_path: Path) -> None:
    with open_image(Path("/")) as image:
        assert libc_kind(image.root) == "glibc"
        assert glibc_version(image.root) == platform.libc_ver()[1]
    with open_image(tmp_path) as image:
        assert libc_kind(image.root) is glibc_version(image.root) is None
