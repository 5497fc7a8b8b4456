"""Hostile images, layers and scripts: whatever links they leave, no file of this machine is written."""

from __future__ import annotations

import io
import os
import py_compile
import shutil
import stat
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from lumiimg.build import safe_fs, sandbox
from lumiimg.build.capabilities import BuildMachine
from lumiimg.build.engine_metadata import begin_base, begin_layer, kept, write_facts
from lumiimg.build.layer_build import LayerBuild
from lumiimg.build.layer_root import LayerRoot
from lumiimg.build.userns_helper import clear, tidy
from lumiimg.definition.definition import Definition, Header, Sections, StagedFile
from lumiimg.definition.engine_reader import read_definition
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.errors import FailedError
from lumiimg.image import open_image
from tests.shared.programs import needs, squashed

ENGINE = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset())
DEFINITION = "Bootstrap: scratch\n%environment\n    export A=1\n\n"
SECTIONS = Sections(Header("localimage", "01-b.sif"), post="true\n")


class Trap:
    """A root folder, and what a link in it may lead to."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.file = folder / "victim"
        self.file.write_text("mine")
        self.file.chmod(0o600)
        self.folder = folder / "victims"
        self.folder.mkdir(0o700)
        self.before = self.seen()

    def seen(self) -> dict[str, tuple[int, bytes]]:
        paths = (self.file, self.folder, *self.folder.rglob("*"))
        return {f"{path}": (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths}

    def is_whole(self) -> bool:
        return self.seen() == self.before


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@pytest.fixture
def step(tmp_path: Path) -> LayerBuild:
    file = tmp_path / "k"
    file.write_text("content")
    definition = Definition("02-a", ("a",), "01-b", SECTIONS, (StagedFile("files/a/files/k", file),))
    machine = BuildMachine(ENGINE, True, True, True, None, None, None, None, ())
    made = LayerBuild(machine, {}, definition, tmp_path / "step", io.BytesIO(), print)
    (made.folder / "files/a/files").mkdir(parents=True)
    (made.folder / "files/a/files/k").write_text("content")
    return made


def placed(step: LayerBuild, root: Path) -> None:
    with open_image(root) as image, step.placed(root, image.root):
        assert (root / ".post.script").read_text().endswith("true\n")
        assert not (root / ".post.script").is_symlink()


def _link(folder: Path) -> None:
    folder.symlink_to("opt")


def _hide(folder: Path) -> None:
    folder.mkdir()
    os.setxattr(folder, "user.overlay.opaque", b"y")


@pytest.mark.parametrize("change", [_link, _hide, Path.mkdir, Path.touch, lambda _: None])
@pytest.mark.parametrize("is_overlay", [True, False])
def test_a_script_that_takes_the_engines_folder_away_is_refused(
    change: Callable[[Path], None], is_overlay: bool, tmp_path: Path
) -> None:
    below, upper = tmp_path / "below", tmp_path / "upper"
    (below / ".singularity.d").mkdir(parents=True)
    (below / ".singularity.d/labels.json").write_text("{}")
    upper.mkdir()
    root = upper if is_overlay else below
    is_gone = not is_overlay or change in (_link, _hide, Path.touch)
    refused = pytest.raises(FailedError, match=r"layer a: its script takes /\.singularity\.d/labels\.json away")
    with open_image(below) as image, refused if is_gone else nullcontext(), kept(("a",), root, image.root):
        shutil.rmtree(root / ".singularity.d", ignore_errors=True)
        change(root / ".singularity.d")


# the script of a layer, and what it copies


@pytest.mark.threat
def test_a_link_in_the_place_of_the_script_makes_way(step: LayerBuild, trap: Trap) -> None:
    (trap.root / ".post.script").symlink_to(trap.file)
    (trap.root / ".lumiimg.kept").symlink_to(trap.folder)
    placed(step, trap.root)
    assert trap.is_whole()
    assert not os.path.lexists(trap.root / ".post.script")
    assert not step.kept.exists()


def test_what_is_no_folder_in_the_image_is_told_and_not_hidden(step: LayerBuild, trap: Trap, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (below / "opt").write_text("a file")
    with open_image(below) as image, pytest.raises(FailedError, match="/opt: is not a folder"):  # noqa: SIM117
        with step.placed(trap.root, image.root):
            pass


def test_a_root_folder_that_is_closed_to_its_owner_is_written_and_stays_so(step: LayerBuild, trap: Trap) -> None:
    """As in the images of Red Hat's family."""
    (trap.root / "opt").mkdir(mode=0o555)
    trap.root.chmod(0o555)
    placed(step, trap.root)
    assert (trap.root / "opt/lumiimg/build/a/files/k").is_file()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (trap.root, trap.root / "opt")] == [0o555, 0o555]


def test_what_the_system_refuses_is_told_with_the_layer(step: LayerBuild) -> None:
    with pytest.raises(FailedError, match=r"^layer a: /x: No space left on device"), step.named():
        raise OSError(28, "No space left on device", "/x")


def test_a_program_that_makes_a_base_and_says_nothing_more_is_ended(step: LayerBuild, tmp_path: Path) -> None:
    heard: list[str] = []
    path = {"PATH": os.environ["PATH"]}
    with (tmp_path / "log").open("wb") as log:
        here = replace(step, machine=replace(step.machine, maps_ids=False), log=log, tell=heard.append)
        here.own_root(["sh", "-c", "for i in 1 2 3 4; do sleep 1; echo $i; done"], path, silent_s=3)
        assert heard == ["1", "2", "3", "4"], "slow is not silent"
        with pytest.raises(FailedError, match=r"layer a: sh printed nothing for 0\.01 minutes, and was ended"):
            here.own_root(["sh", "-c", "echo fetching; sleep 60"], path, silent_s=0.6)


# what is written of an image before and after its script


def put(trap: Trap, name: str, target: Path | str) -> None:
    (trap.root / name).parent.mkdir(parents=True, exist_ok=True)
    (trap.root / name).symlink_to(target)


def seen_in(root: Path) -> set[str]:
    return {f"{path.relative_to(root)}" for path in root.rglob("*")}


@pytest.mark.threat
@pytest.mark.parametrize(
    "name", [".singularity.d", ".singularity.d/env", ".singularity.d/labels.json", "environment", "etc", "var"]
)
def test_a_link_leads_no_engines_file_out_of_the_image(name: str, trap: Trap) -> None:
    (trap.folder / "labels.json").write_text('{"mine": "1"}')
    trap.before = trap.seen()
    put(trap, name, trap.file if name.endswith("json") else trap.folder)
    root = LayerRoot(trap.root)
    begin_base(root, {"Env": ["A=b"]})
    write_facts(root, read_definition(DEFINITION))
    assert trap.is_whole()
    assert (trap.root / ".singularity.d/env/90-environment.sh").read_text().endswith("\n    export A=1\n\n\n")
    assert "mine" not in (trap.root / ".singularity.d/labels.json").read_text()


def test_a_layer_holds_what_its_definition_says_and_no_copy_of_what_is_below(trap: Trap, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    begin_base(LayerRoot(below))
    write_facts(LayerRoot(below), read_definition(DEFINITION))
    (below / ".singularity.d/env").chmod(0o711)
    with open_image(below) as image:
        root = LayerRoot(trap.root, image.root)
        begin_layer(root)
        assert seen_in(trap.root) == set()
        write_facts(root, read_definition(DEFINITION))
    assert seen_in(trap.root) == {
        ".singularity.d",
        ".singularity.d/bootstrap_history",
        ".singularity.d/bootstrap_history/Apptainer0",
        ".singularity.d/env",
        ".singularity.d/env/90-environment.sh",
    }
    assert stat.S_IMODE((trap.root / ".singularity.d/env").stat().st_mode) == 0o711
    text = (trap.root / ".singularity.d/env/90-environment.sh").read_text()
    assert text.count("export A=1") == 2


# compiled Python


def test_compiled_python_of_this_machine_is_not_dated(trap: Trap) -> None:
    source = trap.root / "lib/module.py"
    source.parent.mkdir()
    source.write_text("value = 1\n")
    compiled = Path(py_compile.compile(str(source), doraise=True) or "")
    trap.file.write_bytes(compiled.read_bytes())
    compiled.unlink()
    compiled.symlink_to(trap.file)
    os.mkfifo(compiled.with_name("pipe.pyc"))
    (source.parent / "pipe.py").touch()
    other = trap.root / "other/module.py"
    other.parent.mkdir()
    shutil.copy2(source, other)
    (trap.folder / compiled.name).write_bytes(trap.file.read_bytes())
    (other.parent / "__pycache__").symlink_to(trap.folder)
    trap.before = trap.seen()
    tidy(trap.root, [])
    assert trap.is_whole()


# layers over a sandbox


def unpacked_over(trap: Trap, delta: Path) -> None:
    needs("unsquashfs")
    image = squashed(delta, delta.with_suffix(".sqfs"))
    clear(trap.root, image)
    subprocess.run(["unsquashfs", "-q", "-n", "-f", "-d", trap.root, image], check=True)
    clear(trap.root, image)


@pytest.mark.threat
def test_a_layer_is_not_unpacked_through_a_link(trap: Trap, tmp_path: Path) -> None:
    delta = tmp_path / "delta"
    for name in ("folder/deep/file", "file"):
        (delta / name).parent.mkdir(parents=True, exist_ok=True)
        (delta / name).write_text("theirs")
    (trap.root / "folder").symlink_to(trap.folder)
    (trap.root / "file").symlink_to(trap.file)
    unpacked_over(trap, delta)
    assert trap.is_whole()
    assert (trap.root / "folder/deep/file").read_text() == (trap.root / "file").read_text() == "theirs"
    assert not (trap.root / "folder").is_symlink()


def unsquashfs_that_does_nothing(tmp_path: Path) -> Path:
    """A stand-in: what is there already stays, as where unsquashfs fails at it."""
    program = tmp_path / "unsquashfs"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    return program


def test_permissions_of_this_machines_files_stay(step: LayerBuild, trap: Trap, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    for name in ("file", "folder/inner"):
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).touch()
        (layer / name).chmod(0o4755)
    image = squashed(layer, tmp_path / "layer.sqfs")
    (trap.folder / "inner").touch(0o600)
    trap.before = trap.seen()
    (trap.root / "file").symlink_to(trap.file)
    (trap.root / "folder").symlink_to(trap.folder)
    step.machine = replace(step.machine, maps_ids=False, unsquashfs=unsquashfs_that_does_nothing(tmp_path))
    with pytest.raises(FailedError, match="is a link in the image"), step.named():
        sandbox._unpack(step, image, trap.root)
    assert trap.is_whole()


def test_a_file_that_nobody_may_read_is_opened_to_its_owner(step: LayerBuild, trap: Trap, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    squashed(empty, tmp_path / "e.sqfs")
    (trap.root / "closed").touch(0o000)
    (trap.root / "folder").mkdir(0o000)
    trap.file.chmod(0o000)
    (trap.root / "link").symlink_to(trap.file)
    step.machine = replace(step.machine, maps_ids=False, unsquashfs=unsquashfs_that_does_nothing(tmp_path))
    sandbox._unpack(step, tmp_path / "e.sqfs", trap.root)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (trap.root / "closed", trap.root / "folder", trap.file)]
    assert modes == [0o400, 0o700, 0]


# the one way in which all of these write


@pytest.mark.parametrize("path", ["..", "a/../../x", "/../x", "", "/", "a\0b"])
@pytest.mark.threat
def test_a_path_that_leads_upwards_is_none(path: str, trap: Trap) -> None:
    def write() -> None:
        with safe_fs.new_file(trap.root, path, 0o644):
            pass

    with pytest.raises(FailedError):
        write()
    assert list(trap.root.iterdir()) == []


def links_file(trap: Trap) -> None:
    (trap.root / "x").symlink_to(trap.file)


def links_folder(trap: Trap) -> None:
    (trap.root / "x").symlink_to(trap.folder)


@pytest.mark.parametrize("lay", [links_file, links_folder])
@pytest.mark.threat
def test_no_link_is_followed_whatever_is_done(lay: Callable[[Trap], None], trap: Trap) -> None:
    (trap.folder / "y").write_text("mine")
    trap.before = trap.seen()
    lay(trap)
    for path in ("/x", "/x/y"):
        with pytest.raises(FailedError, match="is a link"):
            safe_fs.read_file(trap.root, path, 100)
    assert safe_fs.mode_of(trap.root, "/x/y") is None
    with pytest.raises(FailedError, match="/x: is a link"):
        safe_fs.remove(trap.root, "/x/y")
    safe_fs.take_folder(trap.root, "x", trap.root.parent / "taken")
    assert not (trap.root.parent / "taken").exists()
    with safe_fs.folder(trap.root, "/") as at:
        safe_fs.set_mode(at, "x", 0o777)
    assert trap.is_whole()
    safe_fs.new_link(trap.root, "/x/y", "z")
    assert trap.is_whole()
    assert (trap.root / "x/y").is_symlink()
    safe_fs.remove(trap.root, "/x/y")
    assert [path.name for path in trap.root.rglob("*")] == ["x"]


@pytest.mark.threat
def test_a_link_that_comes_between_a_look_and_what_is_done_is_not_followed(
    trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trap.folder / "y").write_text("mine")
    trap.before = trap.seen()
    look = safe_fs._mode

    def swapped(at: int, name: str) -> int | None:
        seen = look(at, name)
        if name in {"folder", "file"}:
            place = trap.root / name
            place.rename(trap.root / "moved")
            place.symlink_to(trap.folder if name == "folder" else trap.file)
        return seen

    monkeypatch.setattr(safe_fs, "_mode", swapped)
    (trap.root / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        safe_fs.remove(trap.root, "/folder/y")
    (trap.root / "moved").rmdir()
    (trap.root / "file").write_text("theirs")
    with pytest.raises(OSError, match="file"):
        safe_fs.read_file(trap.root, "/file", 100)
    assert trap.is_whole()
