"""If a disk is full, the message names the folder and the remedy."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from lumiimg.build import changes
from lumiimg.build.layer_build import LayerBuild
from lumiimg.build.progress import BuildLog
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, FailedError, MissingHereError
from lumiimg.core.files import temporary_folder
from lumiimg.definition.definition import Definition, Header, Sections
from lumiimg.engine.process import Completed
from lumiimg.engine.workspace import MOVE_OUTPUT, own_folder, scratch_folder, written_by_rename
from tests.shared import oci_builder
from tests.shared.build_machine import build_machine
from tests.shared.programs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = "No space left on device"
QUOTA = "Disk quota exceeded"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmpdir"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _is_full(monkeypatch: pytest.MonkeyPatch, *, blocks: int = 0, inodes: int = 0) -> None:
    seen = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_favail=inodes)
    monkeypatch.setattr(os, "statvfs", lambda _: seen)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_full_temporary_folder_is_named_with_what_to_do(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, is_named: bool
) -> None:
    _is_full(monkeypatch, inodes=9)
    with pytest.raises(MissingHereError) as raised, scratch_folder(temporary_folder(), "lumiimg-probe-") as folder:
        raise OSError(number, os.strerror(number), *([str(folder / "a" / "b")] if is_named else []))
    assert str(raised.value) == (
        f"{temporary}: cannot be written: {os.strerror(number)}; set TMPDIR to a folder with space"
    )
    assert list(temporary.iterdir()) == []


def test_another_folder_that_is_full_is_not_called_tmpdir(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="elsewhere"), scratch_folder(temporary):
        raise OSError(errno.ENOSPC, "full", "/elsewhere/file")
    _is_full(monkeypatch, blocks=1 << 20, inodes=1 << 20)
    with pytest.raises(OSError, match="full"), scratch_folder(temporary):
        raise OSError(errno.ENOSPC, "full")
    _is_full(monkeypatch, blocks=1 << 20)
    with pytest.raises(FailedError, match="LUMIIMG_CACHE"), scratch_folder(tmp_path / "cache"):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(PermissionError), scratch_folder(temporary):
        raise PermissionError(errno.EACCES, "not yours", str(temporary / "x"))


def test_where_no_temporary_folder_can_be_written_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("strace")
    venv.create(tmp_path / "venv", symlinks=True)

    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/x', '/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setenv("TMPDIR", "/x")
    assert main(["bench", "import", str(tmp_path / "venv"), "--module", "json"]) == ExitCode.MISSING_HERE
    message = capsys.readouterr().err
    assert message == (
        "lumiimg: /x: nothing can be written there or to another temporary folder; set TMPDIR to a folder with space\n"
    )


# -- in the middle of a build: TMPDIR, the cache, or the folder of the output


@pytest.fixture
def step(tmp_path: Path) -> Iterator[LayerBuild]:
    """A layer being built in the scratch folder of a cache."""
    cache = tmp_path / "cache"
    cache.mkdir()
    definition = Definition("01-a", ("a",), None, Sections(Header("localimage", "x")), ())
    with own_folder(cache, "work-") as folder, (tmp_path / "log").open("wb") as log:
        yield LayerBuild(build_machine(), {}, definition, folder, log, print)


def _free(monkeypatch: pytest.MonkeyPatch, full: Path | None) -> None:
    """Simulate a full disk below a folder."""

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=0 if full is not None and Path(path).is_relative_to(full) else 1 << 40)

    monkeypatch.setattr(shutil, "disk_usage", usage)


def _failed(step: LayerBuild, *lines: str) -> str:
    for line in lines:
        step.on_line(line)
    with pytest.raises((FailedError, MissingHereError)) as raised:
        step.check(Completed(("x",), 1, "\n".join(lines)))
    return str(raised.value)


def test_a_layer_that_fails_for_want_of_room_names_tmpdir_or_the_cache(
    step: LayerBuild, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tmpdir = f"{temporary}: layer a: the disk or the quota is full; the whole log: {tmp_path}/log; set TMPDIR to a"
    _free(monkeypatch, temporary)
    assert _failed(step, f"head: error writing 'standard output': {FULL}").startswith(in_tmpdir)
    step.full = None
    assert "the build stopped at: gcc: no" in _failed(step, "gcc: no"), "others may have filled it"
    _free(monkeypatch, None)
    for line in (f"OSError: [Errno 122] {QUOTA}: '/tmp/pip-x/a.whl'", f"cp: error writing '/var/tmp/x': {QUOTA}"):
        step.full = None
        assert _failed(step, line).startswith(in_tmpdir), "of a quota the file shows it"
    step.full = None
    assert re.search(f"the cache or for TMPDIR, {temporary}; ", _failed(step, f"tar: {QUOTA}")), "nothing shows which"
    assert "TMPDIR" in _failed(step, f"cp: error writing '{step.folder}/tmp/x': {QUOTA}"), "nor is that its /tmp"
    assert step.full is None
    _free(monkeypatch, tmp_path / "cache")
    reported = _failed(step, "E: Couldn't download packages: libc6")
    assert reported.startswith(f"{tmp_path}/cache: layer a: the disk or the quota is full; ")
    assert reported.endswith("or move the cache: LUMIIMG_CACHE=FOLDER")


def test_the_layers_of_a_base_are_unpacked_in_the_cache_and_need_no_room_in_tmpdir(
    step: LayerBuild, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a login node, TMPDIR is in memory."""
    layer = oci_builder.tar(oci_builder.member("etc"), oci_builder.member("etc/os-release", b"ID=x\n"))
    image = oci_builder.image(layer).write_folder(step.folder / "image")
    monkeypatch.setattr(LayerBuild, "run_helper", lambda _, command, *paths: changes.main(command, *map(str, paths)))
    temporary.rmdir()
    step.unpack(image, step.folder / "root")
    assert (step.folder / "root/etc/os-release").read_bytes() == b"ID=x\n"
    assert {path.name for path in step.folder.iterdir()} == {"image", "root"}, "nothing else stays"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_lumiimg_itself_writes_for_a_layer_does_so_too(step: LayerBuild, temporary: Path, number: int) -> None:
    for folder, remedy in ((step.folder, "LUMIIMG_CACHE"), (temporary, "set TMPDIR")):
        with pytest.raises((FailedError, MissingHereError), match=remedy), step.naming_errors():
            raise OSError(number, os.strerror(number), f"{folder}/file")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_folder_of_the_output_is_named_with_o(tmp_path: Path, number: int) -> None:
    with pytest.raises(FailedError) as raised, written_by_rename(tmp_path / "x.sif"):
        raise OSError(number, os.strerror(number))
    assert str(raised.value) == f"{tmp_path}: cannot be written: {os.strerror(number)}; {MOVE_OUTPUT}"


def test_a_log_that_finds_no_room_names_the_folder_of_the_output_and_not_the_layer(
    tmp_path: Path, step: LayerBuild
) -> None:
    with BuildLog(tmp_path / "x.sif.log") as log, Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), log.fileno())
        with pytest.raises(FailedError) as raised, step.naming_errors():
            log.write(b"a line\n")
    assert str(raised.value) == f"{tmp_path}: the log cannot be written: {FULL}; {MOVE_OUTPUT}"
