"""`lumiimg diff` of two images reports every difference that a user of the image could see."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.core.text import count
from tests.shared.oci_builder import image, member, tar
from tests.shared.programs import needs, squashed, unwrapped

Capture = pytest.CaptureFixture[str]
_NULL = ("/null c 666 0 0 1 3", "/disk b 660 0 6 259 1048575")
_CAPABILITY = "/tool x security.capability=0x0100000200200000000000000000000000000000"
_CAPABILITY_TEXT = bytes.fromhex(_CAPABILITY.partition("0x")[2]).decode()
_TIME = 1_600_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "etc").mkdir(parents=True)
    for name in ("tool", "one", "two", "three"):
        (folder / name).write_bytes(b"the same")
    (folder / "etc/large").write_bytes(bytes(3 << 20))
    (folder / "to").symlink_to("one")
    return folder


def _pack(folder: Path, name: str, *lines: str) -> Path:
    """Return a squashfs of a folder with fixed times; pseudo definitions add devices and attributes."""
    definitions = [word for line in lines for word in ("-p", line)]
    times = ("-all-time", str(_TIME), "-root-time", str(_TIME))
    return squashed(folder, folder.with_name(name), "-all-root", *times, *definitions)


def printed_differences(capsys: Capture, first: Path, second: Path) -> list[str]:
    """Return what `diff` prints, and assert the matching exit code."""
    code = main(["diff", str(first), str(second)])
    headline, *output = re.split(r"\n\s*\n|\n(?=\S|    \S)", capsys.readouterr().out.rstrip())
    assert code == (ExitCode.GOOD if headline.startswith("no difference") else ExitCode.NO)
    assert code == ExitCode.GOOD or headline == f"{count(len(output), 'file')} differ{'s' if len(output) == 1 else ''}"
    return [unwrapped(line.strip()) for line in ([headline] if code == ExitCode.GOOD else []) + output]


def test_what_was_compared_is_reported_where_nothing_differs(folder: Path, capsys: Capture) -> None:
    os.link(folder / "one", folder / "linked")
    first, second = (_pack(folder, name, *_NULL, _CAPABILITY) for name in ("a", "b"))
    assert printed_differences(capsys, first, second) == [
        "no difference: the same files, modes, owners, content, links, devices, extended attributes and times"
    ]


def test_the_root_itself_is_compared(folder: Path, capsys: Capture) -> None:
    folder.chmod(0o755)
    first = _pack(folder, "a")
    folder.chmod(0o700)
    assert printed_differences(capsys, first, _pack(folder, "b")) == ["/: mode"]


def test_names_that_became_one_file_are_reported(folder: Path, capsys: Capture) -> None:
    (folder / "two").unlink()
    os.link(folder / "one", folder / "two")
    first = _pack(folder, "a")
    (folder / "two").unlink()
    os.link(folder / "three", folder / "two")
    assert printed_differences(capsys, first, _pack(folder, "b")) == [
        "/one: hard links",
        "/three: hard links",
        "/two: hard links",
    ]


@pytest.mark.parametrize("other", ["/null c 666 0 0 1 5", "/null b 666 0 0 1 3", "/disk b 660 0 6 259 1048574"])
def test_another_device_is_reported(folder: Path, capsys: Capture, other: str) -> None:
    """Large device numbers are decoded as the kernel does."""
    path = other.partition(" ")[0]
    second = [other if line.startswith(path) else line for line in _NULL]
    assert printed_differences(capsys, _pack(folder, "a", *_NULL), _pack(folder, "b", *second)) == [f"{path}: device"]


@pytest.mark.parametrize("line", [_CAPABILITY, "/etc x user.note=1", "/ x user.note=1"])
def test_extended_attributes_are_reported(folder: Path, capsys: Capture, line: str) -> None:
    path = line.partition(" ")[0]
    first, second = _pack(folder, "a"), _pack(folder, "b", line)
    assert printed_differences(capsys, first, second) == [f"{path}: extended attributes"]
    assert printed_differences(capsys, second, first) == [f"{path}: extended attributes"]


def test_content_of_one_size_is_read_to_its_end(folder: Path, capsys: Capture) -> None:
    first = _pack(folder, "a")
    with (folder / "etc/large").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert printed_differences(capsys, first, _pack(folder, "b")) == ["/etc/large: content"]


def test_a_folder_is_compared_by_what_it_shows_of_attributes(folder: Path, capsys: Capture) -> None:
    """SELinux labels and overlay marks belong to the machine that the folder is on."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (_TIME, _TIME), follow_symlinks=False)
    same = _pack(folder, "a", "/one x security.selinux=label", "/tool x trusted.note=1")
    needs("unsquashfs")
    argv: list[str | Path] = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-d", folder.with_name("out"), same]
    subprocess.run(argv, check=True, capture_output=True)
    reported = printed_differences(capsys, same, folder.with_name("out"))
    assert [line for line in reported if "attributes" in line and not line.startswith("no")] == []
    reported = printed_differences(capsys, _pack(folder, "b", _CAPABILITY), folder.with_name("out"))
    if os.getuid() == 0:  # else all owners differ, which is reported first
        assert reported == ["/tool: extended attributes"]


def test_a_folder_that_may_not_be_read_is_not_taken_for_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    scandir = os.scandir

    def denied(path: str) -> object:
        if path.endswith("/etc"):  # root may read all, whatever its mode
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert main(["diff", str(folder), str(folder)]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err == f"lumiimg: {folder}/etc: Permission denied\n"


def test_an_archive_is_compared_as_the_image_that_an_engine_makes_of_it(folder: Path, capsys: Capture) -> None:
    squashed_ = _pack(folder, "a", *_NULL, _CAPABILITY, "/etc x user.note=1")
    layer = [
        member("", mode=folder.stat().st_mode & 0o777),
        member("etc", pax_headers={"SCHILY.xattr.user.note": "1"}),
        member("etc/large", bytes(3 << 20)),
        *(member(name, b"the same") for name in ("one", "two", "three")),
        member("tool", b"the same", pax_headers={"SCHILY.xattr.security.capability": _CAPABILITY_TEXT}),
        member("to", b"", type=tarfile.SYMTYPE, linkname="one", mode=0o777),
        member("null", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666),
        member("disk", b"", type=tarfile.BLKTYPE, devmajor=259, devminor=1048575, mode=0o660),
    ]
    for info, _ in layer:
        info.mtime = _TIME
    archive = image(tar(*layer), pack="").write_folder(folder.with_name("layout"))
    assert main(["diff", str(archive), str(squashed_), "--json"]) == ExitCode.GOOD, capsys.readouterr().out
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "files": []}
    layer[-1] = member("disk", b"", type=tarfile.BLKTYPE, devmajor=259, devminor=5, mode=0o660)
    layer[1] = member("etc")
    archive = image(tar(*layer), pack="").write_folder(folder.with_name("other"))
    assert printed_differences(capsys, archive, squashed_) == ["/disk: device", "/etc: extended attributes"]


def test_how_far_a_long_comparison_is_stands_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for number in range(20):
        (tmp_path / f"{number}").touch()
    clock = iter(range(1000))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert main(["diff", str(tmp_path), str(tmp_path)]) == ExitCode.GOOD
    assert "compared files: 10 of 21, 47 %" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K"), "then it is gone"
