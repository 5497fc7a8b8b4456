"""Where a disk is full, the message names the folder and what to do."""

from __future__ import annotations

import errno
import os
import tempfile
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, FailedError, MissingHereError
from lumiimg.core.files import temporary_folder
from lumiimg.engine.workspace import scratch_folder
from tests.shared.programs import needs


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
    said = capsys.readouterr().err
    assert said == (
        "lumiimg: /x: nothing can be written there or to another temporary folder; set TMPDIR to a folder with space\n"
    )
