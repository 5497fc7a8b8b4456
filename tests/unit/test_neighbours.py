"""What another user has put where we write: their links are not followed, and nothing of theirs is removed."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lumiimg
from lumiimg.build.cache import LayerCache, prune
from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode, FailedError
from lumiimg.core.files import make_folder
from lumiimg.engine import workspace
from lumiimg.engine.workspace import own_folder, remove_left, scratch_folder, written_by_rename
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer

# ---- folders that are written


@pytest.fixture
def commands(tmp_path: Path, make_layer: MakeLayer, layers: Path) -> dict[str, list[str]]:
    """Commands that fill a folder; their last argument is the folder."""
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
        message = capsys.readouterr().err
        assert (code, message.count("\n")) in {(0, 0), (2, 1)}, (link, message)
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
    if mine == 0:  # links of root are trusted
        os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    capsys.readouterr()
    assert main([*commands[command], str(tmp_path / "link")]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.count("is a link made by another user") == 1
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
        message = capsys.readouterr().err
        if code == 0:
            continue  # a folder that was there already
        assert (message.count("\n"), message.count(os.strerror(errno.ENOSPC))) == (1, 1)
        assert list(folder.iterdir()) == [], number
    assert number > 8
    assert (folder / "modulefiles" / "a" / "1").is_file()


# ---- folders that are removed

Lay = Callable[[Path, Path], object]
"""What another user does to the folder of a killed process, given a folder of the user."""


def killed(parent: Path, name: str = "work-") -> Path:
    """Return the folder of a process that was killed during its work."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with scratch_folder(parent, name) as folder:
            (folder / "deep" / "er").mkdir(parents=True)
            (folder / "deep" / "er" / "file").write_text("half")
            os.write(writing, os.fsencode(folder))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor has no path
        return Path(os.fsdecode(pipe.read()))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A private folder beside those of lumiimg, in a folder where others may rename it."""
    folder = tmp_path / "shared" / "thesis"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    folder.parent.chmod(0o777)
    (folder / "data.sif").write_text("years of work")
    (folder / "chapters").mkdir()
    (folder / "chapters" / "1").write_text("years of work")
    return folder


def _years(shared: Path) -> int:
    return sum(path.read_text() == "years of work" for path in shared.rglob("*") if path.is_file())


@pytest.mark.threat
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    left, elsewhere, beside = killed(tmp_path / "a"), killed(tmp_path / "a"), killed(tmp_path / "b")
    elsewhere = elsewhere.rename(elsewhere.with_name(elsewhere.name.replace("@", "@other-")))
    with scratch_folder(tmp_path / "a") as living:
        assert not left.parent.exists()
        assert elsewhere.exists(), "another node's: only it can see whether its process lives"
        assert beside.exists(), "in another folder"
        os.utime(elsewhere, (time.time() - 8 * 86400,) * 2)
        with scratch_folder(tmp_path / "a") as second:
            assert not elsewhere.exists(), "nobody builds for a week"
            assert {*(tmp_path / "a").iterdir()} == {living.parent, second.parent}
    assert [*(tmp_path / "a").iterdir()] == []


@pytest.mark.threat
def test_many_at_once_remove_what_a_killed_one_left(tmp_path: Path) -> None:
    for _ in range(3):
        killed(tmp_path / "a")
    children = []
    for _ in range(8):
        if (child := os.fork()) == 0:
            try:
                with scratch_folder(tmp_path / "a") as folder:
                    (folder / "file").write_text("x")
            except BaseException:  # noqa: BLE001
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert [*(tmp_path / "a").iterdir()] == []


def _swap(left: Path, mine: Path) -> None:
    left.parent.rename(left.parent.with_name("away"))
    mine.rename(left.parent)


def _swap_within(left: Path, mine: Path) -> None:
    left.rename(left.with_name("away"))
    left.symlink_to(mine)


def _link(left: Path, mine: Path) -> None:
    left.parent.rename(left.parent.with_name("away"))
    left.parent.symlink_to(mine)


def _with_years(change: Callable[[Path], object]) -> Lay:
    def lay(left: Path, mine: Path) -> None:
        (left / "years").write_text((mine / "data.sif").read_text())
        change(left)

    return lay


LAID: dict[str, tuple[Lay, int]] = {
    "another folder has its name": (_swap, 2),
    "another folder has a name such as ours": (lambda _, mine: mine.rename(mine.with_name("work-0.lumiimg")), 2),
    "another folder has the name of an owner": (
        lambda left, mine: mine.rename(mine.with_name(f"{left.name}.lumiimg")),
        2,
    ),
    "a link has its name": (_link, 2),
    "a link has the name within": (_swap_within, 2),
    "the name within is not of an owner": (_with_years(lambda left: left.rename(left.with_name("x"))), 3),
    "others may open it": (_with_years(lambda left: left.parent.chmod(0o750)), 3),
    "beside the name within is another": (
        lambda left, mine: shutil.copytree(mine, left.parent / "thesis"),
        4,
    ),
}


@pytest.mark.parametrize("case", LAID)
@pytest.mark.threat
def test_what_nothing_in_it_shows_as_ours_is_left_alone(tmp_path: Path, mine: Path, case: str) -> None:
    lay, years = LAID[case]
    lay(killed(mine.parent), mine)
    for _ in range(2):
        with scratch_folder(mine.parent) as folder:
            (folder / "file").touch()
        assert not folder.parent.exists(), "what a process has made itself it removes all the same"
    assert _years(tmp_path / "shared") == years


@pytest.mark.threat
def test_a_folder_of_another_user_is_left_alone(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, me = killed(mine.parent), os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: me + 1)
        remove_left(mine.parent)
    assert left.exists()
    remove_left(mine.parent)
    assert not left.parent.exists()


@pytest.mark.parametrize("taken", ["mine", "copy"])
@pytest.mark.threat
def test_who_has_taken_the_name_of_a_folder_meanwhile_loses_nothing(tmp_path: Path, mine: Path, taken: str) -> None:
    with scratch_folder(mine.parent) as folder, written_by_rename(mine.parent / "x.sif") as partial:
        (folder / "file").write_text("ours")
        partial.write_text("whole")
        folder.parent.rename(tmp_path / "elsewhere")
        (mine if taken == "mine" else shutil.copytree(mine, mine.with_name("copy"))).rename(folder.parent)
    assert _years(tmp_path) == (2 if taken == "mine" else 4)
    assert [*(tmp_path / "elsewhere").iterdir()] == [], "what was ours is gone, wherever it is"
    assert (mine.parent / "x.sif").read_text() == "whole"


def test_folders_that_an_image_closes_to_their_owner_are_removed_also_where_there_are_no_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in some distributions; and links in the image are not followed."""
    monkeypatch.setattr(workspace, "run", lambda *_, **__: None)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    if (child := os.fork()) == 0:
        try:
            os.chdir(tmp_path)
            if os.geteuid() == 0:  # to whom no folder is closed
                os.chown(tmp_path, 65534, 65534)
                os.chown(outside, 65534, 65534)
                os.setgroups([])
                os.setresuid(65534, 65534, 65534)
            with scratch_folder(Path("a")) as folder:
                for name in ("usr/bin", "closed/x"):
                    (folder / name).mkdir(parents=True)
                    (folder / name / "file").touch()
                    (folder / name / "link").symlink_to("../../../../../outside")
                    (folder / name).chmod(0o555)
                (folder / "closed").chmod(0)
            os._exit(len(list(Path("a").iterdir())))
        finally:
            os._exit(99)
    assert os.waitpid(child, 0)[1] == 0
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500


@pytest.mark.parametrize("kind", ["tree", "files"])
@pytest.mark.threat
def test_a_cache_sweeps_only_what_an_entry_has(tmp_path: Path, mine: Path, kind: str) -> None:
    cache = LayerCache(mine.parent)
    gone = mine.parent / f".{'0' * 64}.1"
    mine.rename(gone)
    if kind == "files":  # with names as in a cache entry, and other names
        shutil.rmtree(gone / "chapters")
        (gone / "entry.json").write_text("{}")
        (gone / "data.csv").write_text("years of work")
    before = {path: path.read_text() for path in gone.rglob("*") if path.is_file()}
    cache.sweep()
    assert before == {path: path.read_text() for path in gone.rglob("*") if path.is_file()}
    for number, names in enumerate((("key.json", "entry.json", "data.sqfs"), (), (f".entry.json.{'a' * 16}",))):
        half = mine.parent / f".{'1' * 63}{number}.1"
        half.mkdir()
        for file in names:
            (half / file).touch()
        cache.sweep()
        assert not half.exists()
    assert tmp_path.exists()


@pytest.mark.threat
def test_an_entry_of_a_cache_that_holds_something_else_stays_under_its_name(tmp_path: Path, mine: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    entry = tmp_path / "cache" / "layers" / ("0" * 64)
    entry.parent.mkdir(parents=True)
    mine.rename(entry)
    (entry.parent / ("1" * 64)).mkdir()  # damaged, and nothing else
    with pytest.raises(FailedError, match="manually"):
        prune(cache, 0)
    assert (_years(entry), [*entry.parent.iterdir()]) == (2, [entry])


@pytest.mark.usefixtures("clean_home")
def test_a_module_is_not_replaced_where_its_folder_holds_another(
    tmp_path: Path, commands: dict[str, list[str]], mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*commands["module"], str(tmp_path / "mods")]) == 0
    for place in ("software/a/1", "software/a/1/bin"):
        moved = mine.rename(tmp_path / "mods" / place / "thesis")
        assert main([*commands["module"], str(tmp_path / "mods")]) == ExitCode.BAD_INPUT
        assert "was not written by lumiimg" in capsys.readouterr().err
        moved.rename(mine)
    assert main([*commands["module"], str(tmp_path / "mods")]) == 0
    assert _years(mine) == 2


@pytest.mark.threat
@pytest.mark.usefixtures("clean_home")
def test_a_folder_that_takes_the_place_of_a_module_meanwhile_is_put_back(
    tmp_path: Path, commands: dict[str, list[str]], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*commands["module"], str(tmp_path / "mods")]
    assert main(words) == 0
    home = tmp_path / "mods" / "software" / "a" / "1"

    @contextmanager
    def swapped(parent: Path, prefix: str) -> Iterator[Path]:
        with own_folder(parent, prefix) as folder:
            home.rename(tmp_path / "elsewhere")
            mine.rename(home)
            yield folder

    monkeypatch.setattr("lumiimg.cluster.module.folder.own_folder", swapped)
    assert main(words) == ExitCode.NO
    assert _years(home) == 2


INSIDE = {
    "build/builder.py": "in the scratch folder of a build",
    "build/compile_cache.py": "in the scratch folder of a build",
    "build/changes.py": "in the root that a build makes",
    "build/strategy.py": "in the scratch folder of a build",
    "image/oci/layers.py": "in a folder for temporary files that tempfile makes for this process alone",
}
"""Modules that remove a folder by name, but only inside one of ours, where nobody else can rename it."""


@pytest.mark.threat
def test_only_one_module_makes_and_removes_folders_where_others_may_write() -> None:
    package = Path(lumiimg.__file__).parent
    removing = re.compile(r"\b(rmtree|mkdtemp|TemporaryDirectory|remove_tree)\(")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if removing.search(path.read_text())}
    assert found == {"engine/workspace.py", *INSIDE}
