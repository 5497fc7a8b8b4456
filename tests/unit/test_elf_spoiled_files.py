"""Files that are no libraries, or damaged ones: what the real ld.so says of each, the model says too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shared.elf_builder import exe, header_at, new_runpath, patched, so
from tests.shared.elf_oracles import Ask, compare


def _first_of_two(tmp: Path, spoil: Callable[[Path], object]) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "bad").mkdir()
    bad = tmp / "bad/liba.so"
    bad.write_bytes(good.read_bytes())
    spoil(bad)
    return Ask(exe(tmp / "prog", good, *new_runpath(tmp / "bad", tmp / "good")))


def _made_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _made_link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


_SPOILED: dict[str, Callable[[Path], object]] = {
    "other machine": lambda path: patched(path, 18, b"\xb7\0"),
    "32 bits": lambda path: patched(path, 4, b"\1"),
    "class 3": lambda path: patched(path, 4, b"\3"),
    "text": lambda path: path.write_text("INPUT(libreal.so)\n" * 10),
    "empty": lambda path: path.write_bytes(b""),
    "four bytes": lambda path: path.write_bytes(b"\x7fELF"),
    "63 bytes": lambda path: path.write_bytes(path.read_bytes()[:63]),
    "header only": lambda path: path.write_bytes(path.read_bytes()[:64]),
    "cut in the program headers": lambda path: path.write_bytes(path.read_bytes()[:150]),
    "program headers past the end": lambda path: patched(path, 32, b"\xff\xff\xff\x7f"),
    "65535 program headers": lambda path: patched(path, 56, b"\xff\xff"),
    "no program headers": lambda path: patched(path, 56, b"\0\0"),
    "big endian": lambda path: patched(path, 5, b"\2"),
    "ident version 9": lambda path: patched(path, 6, b"\x09"),
    "OS ABI 77": lambda path: patched(path, 7, b"\x4d"),
    "OS ABI FreeBSD": lambda path: patched(path, 7, b"\x09"),
    "OS ABI GNU": lambda path: patched(path, 7, b"\x03"),
    "ABI version 1 of System V": lambda path: patched(path, 8, b"\x01"),
    "ABI version 3 of GNU": lambda path: patched(path, 7, b"\x03\x03"),
    "ABI version 4 of GNU": lambda path: patched(path, 7, b"\x03\x04"),
    "padding": lambda path: patched(path, 12, b"\1"),
    "version 5": lambda path: patched(path, 20, b"\5"),
    "relocatable": lambda path: patched(path, 16, b"\1"),
    "core": lambda path: patched(path, 16, b"\4"),
    "executable": lambda path: patched(path, 16, b"\2"),
    "phentsize 57": lambda path: patched(path, 54, b"\x39"),
    "phentsize 0": lambda path: patched(path, 54, b"\0"),
    "no dynamic segment": lambda path: patched(path, header_at(path, 2), b"\0\0\0\x60"),
    "dynamic segment without bytes": lambda path: patched(path, header_at(path, 2) + 32, bytes(8)),
    "dynamic segment of one byte": lambda path: patched(path, header_at(path, 2) + 32, b"\1" + bytes(7)),
    "misplaced segment": lambda path: patched(path, header_at(path, 1) + 8, b"\x10"),
    "unaligned segment": lambda path: patched(path, header_at(path, 1) + 48, b"\x10\0\0\0"),
    "PIE": exe,
    "directory": _made_directory,
    "dangling link": lambda path: _made_link(path, "nowhere"),
    "link to itself": lambda path: _made_link(path, "liba.so"),
    "link through a file": lambda path: _made_link(path, "/etc/passwd/x"),
    "no permission": lambda path: path.chmod(0),
}


@pytest.mark.parametrize("spoil", _SPOILED.values(), ids=_SPOILED.keys())
def test_a_spoiled_file_in_front_of_a_good_one_and_alone(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    ask = _first_of_two(tmp_path, spoil)
    compare(ask)
    (tmp_path / "good/liba.so").unlink()
    compare(ask)
