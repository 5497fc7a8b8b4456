"""What the notes of a file say: the libraries that it may dlopen, and the kernel that it was built for."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lumiimg.elf.facts import ElfFacts, read_elf
from lumiimg.elf.loader import Process
from lumiimg.elf.notes import DlopenNote
from lumiimg.elf.reader import BytesReader
from lumiimg.elf.rules import LoaderSettings
from lumiimg.image import open_image
from tests.shared.elf_builder import NOTES, exe, new_runpath, note_source, so

_SYSTEMD = sorted(Path("/usr/lib/x86_64-linux-gnu/systemd").glob("libsystemd-shared-*.so"))


def _facts(path: Path, *notes: str) -> ElfFacts:
    liba = so(path / "liba.so", source=f"{NOTES}int f;{''.join(notes)}")
    return read_elf(BytesReader(liba.read_bytes()))


def _dlopen(text: str) -> str:
    return note_source(b"FDO\0", 0x407C0C0A, text.encode() + b"\0", ".note.dlopen")


def test_what_a_file_may_dlopen(tmp_path: Path) -> None:
    facts = _facts(
        tmp_path,
        _dlopen('[{"soname":["libcxi.so.1","libcxi.so.0"],"feature":"cxi","description":"NIC","priority":"required"}]'),
        _dlopen('[{"soname":["liba.so.1"]},{"soname":["libb.so.1"],"priority":"suggested","more":1}]'),
    )
    assert facts.dlopen_notes == (
        DlopenNote(("libcxi.so.1", "libcxi.so.0"), "cxi", "NIC", "required"),
        DlopenNote(("liba.so.1",), None, None, "recommended"),
        DlopenNote(("libb.so.1",), None, None, "suggested"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}",
        "null",
        "[1, null, {}]",
        '[{"soname":"libx.so"}]',
        '[{"soname":[]}]',
        '[{"soname":[1]}]',
        "[" * 10_000,
        '[{"soname":["' + "x" * 20_000 + '"]}]',
    ],
    ids=range(10),
)
def test_a_note_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    assert _facts(tmp_path, _dlopen(text)).dlopen_notes == ()


def test_notes_of_others_are_not_read(tmp_path: Path) -> None:
    text = b'[{"soname":["libx.so"]}]\0'
    assert _facts(tmp_path, note_source(b"ABC\0", 0x407C0C0A, text, ".note.dlopen")).dlopen_notes == ()
    assert _facts(tmp_path, note_source(b"FDO\0", 0x407C0C0B, text, ".note.dlopen")).dlopen_notes == ()


@pytest.mark.skipif(not _SYSTEMD, reason="no systemd here")
def test_notes_of_systemd() -> None:
    notes = read_elf(BytesReader(_SYSTEMD[0].read_bytes())).dlopen_notes
    assert {"libcryptsetup.so.12", "libseccomp.so.2"} <= {name for note in notes for name in note.sonames} or not notes


def test_an_old_glibc_passes_over_what_is_for_a_newer_kernel(tmp_path: Path) -> None:
    note = note_source(b"GNU\0", 1, struct.pack("<IIII", 0, 5, 15, 0), ".note.dlopen")
    facts = _facts(tmp_path, note)
    assert facts.linux_needed == (5, 15, 0)
    prog = exe(tmp_path / "prog", tmp_path / "liba.so", *new_runpath(tmp_path))
    with open_image(Path("/")) as image:
        assert Process(image.root, LoaderSettings(linux=(5, 14, 21))).start(str(prog)).ok  # this glibc is a newer one
