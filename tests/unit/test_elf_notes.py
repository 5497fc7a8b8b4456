"""What the notes of a file say: the kernel that it was built for."""

from __future__ import annotations

import struct
from pathlib import Path

from lumiimg.elf.facts import read_elf
from lumiimg.elf.loader import Process
from lumiimg.elf.reader import BytesReader
from lumiimg.elf.rules import LoaderSettings
from lumiimg.image import open_image
from tests.shared.elf_builder import NOTES, exe, new_runpath, note_source, so


def test_an_old_glibc_passes_over_what_is_for_a_newer_kernel(tmp_path: Path) -> None:
    note = note_source(b"GNU\0", 1, struct.pack("<IIII", 0, 5, 15, 0), ".note.ABI-tag")
    liba = so(tmp_path / "liba.so", source=f"{NOTES}int f;{note}")
    assert read_elf(BytesReader(liba.read_bytes())).linux_needed == (5, 15, 0)
    prog = exe(tmp_path / "prog", tmp_path / "liba.so", *new_runpath(tmp_path))
    with open_image(Path("/")) as image:
        assert Process(image.root, LoaderSettings(linux=(5, 14, 21))).start(str(prog)).ok  # this glibc is a newer one
