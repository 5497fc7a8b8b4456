"""What another user has put where we write: no link of theirs is followed, and of theirs nothing is removed."""

from __future__ import annotations

import errno
import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.files import make_folder
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer

# ---- folders that are written


@pytest.fixture
def commands(tmp_path: Path, make_layer: MakeLayer, layers: Path) -> dict[str, list[str]]:
    """The commands that fill a folder, which is named last."""
    make_layer("base", BASE)
    make_layer("tool", LAYER + 'files = ["tool.c"]\n', tool_c="int main;\n")
    image = fabric_builder.image(tmp_path / "image")
    return {
        "module": ["module", str(image), "--name", "a/1", "--quiet", "-o"],
        "build": ["build", *f"--layers {layers} --base base --add tool --force --quiet".split(), "--definitions"],
    }


def _content(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["build", "module"])
@pytest.mark.threat
@pytest.mark.usefixtures("clean_home")
def test_no_link_in_a_folder_that_is_written_leads_out_of_it(
    tmp_path: Path, commands: dict[str, list[str]], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    assert main([*commands[command], str(whole)]) == 0
    for number, path in enumerate(sorted(whole.rglob("*"))):
        folder, outside = tmp_path / f"folder{number}", tmp_path / f"outside{number}"
        shutil.copytree(whole, folder)
        link = folder / path.relative_to(whole)
        link.rename(outside)
        for file in (outside, *outside.rglob("*")):
            if file.is_file() and file.name != "lumiimg.json":
                file.write_text("mine")
        link.symlink_to(outside)
        before = _content(outside) if outside.is_dir() else outside.read_text()
        code = main([*commands[command], str(folder)])
        said = capsys.readouterr().err
        assert (code, said.count("\n")) in {(0, 0), (2, 1)}, (link, said)
        assert before == (_content(outside) if outside.is_dir() else outside.read_text()), link
        if code == 0:
            assert _content(folder).keys() == {name.replace(str(whole), str(folder)) for name in _content(whole)}
            assert not link.is_symlink()


@pytest.mark.parametrize("command", ["build", "module"])
@pytest.mark.threat
@pytest.mark.usefixtures("clean_home")
def test_a_folder_that_is_a_link_of_somebody_else_is_refused(
    tmp_path: Path,
    commands: dict[str, list[str]],
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    if command == "build":
        assert main([*commands[command], str(tmp_path / "link")]) == 0, "by a link of one's own"
        shutil.rmtree(tmp_path / "mine")
        (tmp_path / "mine").mkdir()
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    if mine == 0:  # links of root are believed
        os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    capsys.readouterr()
    assert main([*commands[command], str(tmp_path / "link")]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.count("is a link that another user has made") == 1
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.threat
def test_a_link_to_nowhere_makes_no_folder_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInputError, match="is a link"):
        make_folder(tmp_path / "a", "b/c")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("at", ["open", "write"])
@pytest.mark.usefixtures("clean_home")
def test_a_module_is_written_whole_or_not_at_all_wherever_the_disk_is_full(
    tmp_path: Path,
    commands: dict[str, list[str]],
    at: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left, opened, make = 0, io.open, os.mkdir

    def is_full(path: object) -> bool:
        nonlocal left
        left -= "modules" in str(path)
        return left == 0 and "modules" in str(path)

    def scarce_open(path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode[0] == "r" or not is_full(path):
            return opened(path, mode, *more, **named)
        if at == "write":
            return opened("/dev/full", mode.replace("x", "w"), *more, **named)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def scarce_mkdir(path: Any, *more: Any, **named: Any) -> None:
        if is_full(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        make(path, *more, **named)

    monkeypatch.setattr(io, "open", scarce_open)
    monkeypatch.setattr(os, "mkdir", scarce_mkdir)
    for number in range(1, 100):
        folder = tmp_path / f"modules{number}"
        folder.mkdir()
        left = number
        code = main([*commands["module"], str(folder)])
        if left > 0:
            break
        said = capsys.readouterr().err
        if code == 0:
            continue  # a folder that was there already
        assert (said.count("\n"), said.count(os.strerror(errno.ENOSPC))) == (1, 1)
        assert list(folder.iterdir()) == [], number
    assert number > 8
    assert (folder / "modulefiles" / "a" / "1.lua").is_file()
