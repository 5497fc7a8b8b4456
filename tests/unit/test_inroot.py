"""Hostile images, layers and scripts: whatever links they leave, no file of this machine is written."""

from __future__ import annotations

import io
import json
import os
import py_compile
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lumiimg.build import safe_fs
from lumiimg.build.changes import tidy, unpack
from lumiimg.build.layer_build import LayerBuild
from lumiimg.build.metadata import date_labels, write_config, write_metadata
from lumiimg.build.safe_fs import MOUNT_FILES, MOUNT_FOLDERS, mount_points
from lumiimg.build.strategy import _open_to_owner, require_own_folder
from lumiimg.core.errors import FailedError
from lumiimg.definition.definition import BUILD_FOLDER, Definition, Header, Sections, StagedFile
from lumiimg.image import open_image
from tests.shared.build_machine import build_machine
from tests.shared.programs import needs, squashed

SECTIONS = Sections(Header("localimage", "01-b.sif"), environment=(("A", "1"),), post="true\n")
BASE = Definition("01-b", ("b",), None, replace(SECTIONS, header=Header("docker", "x"), labels=(("of", "base"),)), ())


class Trap:
    """A root folder, and a target outside that a link in it may lead to."""

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

    def is_intact(self) -> bool:
        return self.seen() == self.before


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@pytest.fixture
def step(tmp_path: Path) -> LayerBuild:
    file = tmp_path / "k"
    file.write_text("content")
    definition = Definition("02-a", ("a",), "01-b", SECTIONS, (StagedFile("files/a/files/k", file),))
    machine = build_machine()
    made = LayerBuild(machine, {}, definition, tmp_path / "step", io.BytesIO(), print)
    (made.folder / "files/a/files").mkdir(parents=True)
    (made.folder / "files/a/files/k").write_text("content")
    return made


def mounted(root: Path) -> str:
    """Return the folder of a build in the image, which exists during the build and is removed afterwards."""
    with open_image(root) as image, mount_points(root, image.root) as place:
        assert (root / place[1:]).is_dir()
    assert not os.path.lexists(root / place[1:])
    return place


def _link(folder: Path) -> None:
    folder.symlink_to("opt")


def _delete(folder: Path) -> None:
    os.mknod(folder, stat.S_IFCHR, os.makedev(0, 0))


@pytest.mark.parametrize("change", [_link, _delete, Path.mkdir, Path.touch])
def test_a_script_that_takes_the_engines_folder_away_is_refused(
    change: Callable[[Path], None], step: LayerBuild, tmp_path: Path
) -> None:
    base, layer = tmp_path / "base", tmp_path / "layer"
    (base / ".singularity.d/env").mkdir(parents=True)
    layer.mkdir()
    change(layer / ".singularity.d")
    below = squashed(base, tmp_path / "base.sqfs")
    images = [below, squashed(layer, tmp_path / "layer.sqfs")]
    if change is Path.mkdir:
        require_own_folder(step, [below], images[1])
    else:
        with pytest.raises(FailedError, match=r"layer a: its script removes /\.singularity\.d/env"):
            require_own_folder(step, [below], images[1])


# mounts in the folder where a script is run


@pytest.mark.threat
@pytest.mark.parametrize("name", ["opt", "opt/lumiimg", "etc", "var", "var/tmp", "etc/hosts", ".singularity.d", "proc"])
@pytest.mark.parametrize("leads_to", ["folder", "file", "nowhere"])
def test_no_place_for_a_mount_is_made_through_a_link(name: str, leads_to: str, trap: Trap) -> None:
    put(trap, name, {"folder": trap.folder, "file": trap.file, "nowhere": trap.root.parent / "new"}[leads_to])
    if name.startswith("opt"):
        with pytest.raises(FailedError, match="/opt/lumiimg/build: is not a folder in the image"):
            mounted(trap.root)
    else:
        mounted(trap.root)
    assert trap.is_intact()
    assert not (trap.root.parent / "new").exists()


def test_places_for_mounts_are_made_where_links_lead_in_the_image_and_in_the_upper_folder_alone(tmp_path: Path) -> None:
    below, upper = tmp_path / "below", tmp_path / "upper"
    for name in ("data", "run", "etc"):
        (below / name).mkdir(parents=True)
    (below / "data").chmod(0o750)
    (below / "opt").symlink_to("/data")
    (below / "etc/resolv.conf").symlink_to("../run/resolv.conf")  # to nothing
    upper.mkdir()
    with open_image(below) as image, mount_points(upper, image.root) as place:
        assert place == "/data/lumiimg/build"
        assert (upper / "data/lumiimg/build").is_dir()
        assert stat.S_IMODE((upper / "data").stat().st_mode) == 0o750
    there = {"data", "data/lumiimg", *(path[1:] for path in (*MOUNT_FOLDERS, MOUNT_FILES[0]))}
    assert seen_in(upper) == {*there, "var", ".singularity.d"}
    assert seen_in(below) == {"data", "run", "etc", "opt", "etc/resolv.conf"}


def test_a_root_folder_that_is_closed_to_its_owner_is_written_and_stays_so(trap: Trap) -> None:
    """As in images of the Red Hat family."""
    (trap.root / "opt").mkdir(mode=0o555)
    trap.root.chmod(0o555)
    assert mounted(trap.root) == BUILD_FOLDER
    assert (trap.root / "opt/lumiimg").is_dir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (trap.root, trap.root / "opt")] == [0o555, 0o555]


def test_a_script_has_its_files_to_read_what_it_writes_elsewhere_and_a_tmp_of_its_own(
    step: LayerBuild, tmp_path: Path
) -> None:
    step.exports = "export B='2'"
    argv = step.script("/data/build")
    assert argv == ["/bin/bash", "/data/build/.script"]
    assert not step.has_ended
    with step.binds("/data/build", step.work) as binds:
        shown = {bind.target: bind for bind in binds}
        assert [*shown][:2] == ["/data/build", "/data/build/a/files"]
        assert shown["/data/build/a/files"].read_only
        assert Path(shown["/data/build/a/files"].source, "k").read_text() == "content"
        assert (step.work / "a/files").is_dir(), "the place for it"
        for private in (Path(shown["/tmp"].source), Path(shown["/var/tmp"].source)):
            assert stat.S_IMODE(private.stat().st_mode) == 0o1777
            assert stat.S_IMODE(private.parent.stat().st_mode) == 0o700
            assert list(private.iterdir()) == []
            assert not private.is_relative_to(step.folder)
    assert not private.exists()
    script = (step.work / ".script").read_text().replace(BUILD_FOLDER, str(step.work))
    for text in ("test $B = 2", "test $B = 3; exit 1"):
        step.script("/x")
        done = subprocess.run(["bash", "-c", f"{script}{text}"], check=False)
        assert (done.returncode, step.has_ended) == (int("3" in text), True)
    assert not list(tmp_path.glob("lumiimg*"))


# what is written to an image before and after its script


def put(trap: Trap, name: str, target: Path | str) -> None:
    (trap.root / name).parent.mkdir(parents=True, exist_ok=True)
    (trap.root / name).symlink_to(target)


def seen_in(root: Path) -> set[str]:
    return {f"{path.relative_to(root)}" for path in root.rglob("*")}


@pytest.mark.threat
@pytest.mark.parametrize(
    "name",
    [".singularity.d", ".singularity.d/env", ".singularity.d/labels.json", "environment", "etc", "var", "var/tmp"],
)
def test_a_link_of_an_image_leads_nothing_that_is_written_for_it_out_of_a_folder_of_ours(
    name: str, trap: Trap, tmp_path: Path
) -> None:
    (trap.folder / "labels.json").write_text('{"mine": "1"}')
    trap.before = trap.seen()
    put(trap, name, trap.file if name.endswith("json") else trap.folder)
    ours = tmp_path / "ours"
    ours.mkdir()
    with open_image(trap.root) as image:
        write_metadata(ours, image.root, [BASE], {})
    assert trap.is_intact()
    assert (ours / ".singularity.d/env/90-environment.sh").read_text().endswith("follow\n\n    export A=1\n\n\n")
    assert json.loads((ours / ".singularity.d/labels.json").read_text())["of"] == "base"
    assert "mine" not in (ours / ".singularity.d/labels.json").read_text()
    assert not (ours / ".singularity.d").is_symlink()
    assert name != "etc" or not os.path.lexists(ours / "etc"), "a link of the image stays"


def test_the_last_layer_has_what_definitions_say_and_what_the_image_lacks(trap: Trap, tmp_path: Path) -> None:
    base, ours, top = tmp_path / "base", tmp_path / "ours", tmp_path / "top"
    for folder in (base, ours, top):
        folder.mkdir()
    with open_image(base) as image:
        write_metadata(ours, image.root, [BASE], {})
    assert {"proc", "etc/hosts", ".run", ".singularity.d/actions/exec", ".singularity.d/runscript"} <= seen_in(ours)
    (ours / ".singularity.d/env").chmod(0o711)
    above = Definition("02-a", ("a",), "01-b", replace(SECTIONS, labels=(("of", "a"),), test="#!/bin/bash\ntrue\n"), ())
    with open_image(ours) as image:
        write_metadata(top, image.root, [above], {"with": "more"})
    own = ("labels.json", "Singularity", "env", "test")
    changed = {".singularity.d", *(f".singularity.d/{name}" for name in (*own, "env/90-environment.sh"))}
    assert seen_in(top) == changed
    assert stat.S_IMODE((top / ".singularity.d/env").stat().st_mode) == 0o711
    assert (top / ".singularity.d/env/90-environment.sh").read_text().count("export A=1") == 2
    labels = json.loads((top / ".singularity.d/labels.json").read_text())
    assert (labels["of"], labels["with"]) == ("base", "more"), "a definition replaces no label"
    assert (top / ".singularity.d/Singularity").read_text() == above.sections.body
    assert trap.is_intact()


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_what_an_image_of_a_registry_says_of_itself_is_run_as_it_says(shell: str, tmp_path: Path) -> None:
    needs(shell)
    root, image = tmp_path / "root", tmp_path / "image"
    nasty = "a  b $HOME `id` \\ \" ' } \n"
    config = {
        "Env": [f"NASTY={nasty}", "SET=image", "EMPTY", "1=x", f"PATH={os.environ['PATH']}"],
        "Entrypoint": ["printf", "%s|"],
        "Cmd": ["a b", "$x", "'"],
        "Labels": {"one": "ü"},
    }
    root.mkdir()
    write_config(root, config)
    script = root / ".singularity.d/env/10-docker2singularity.sh"
    asked = f'. {script}; printf \'%s|\' "$NASTY" "$SET" "$EMPTY"'
    done = subprocess.run([shell, "-c", asked], env={"SET": "user"}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{nasty}|user||"
    for words, expected in (([], "a b|$x|'|"), (["x y"], "x y|")):
        run = [shell, f"{root}/.singularity.d/runscript", *words]
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == expected
    # files of the image in that place are not mistaken for it
    (image / ".singularity.d").mkdir(parents=True)
    (image / ".singularity.d/runscript").write_text("theirs")
    (image / "file").touch()
    unpack(root, squashed(image, tmp_path / "image.sqfs"), keeps_own=True)
    assert "theirs" not in (root / ".singularity.d/runscript").read_text()
    assert (root / "file").is_file()


@pytest.mark.threat
def test_labels_that_an_engine_has_written_are_dated_and_no_link_is_followed(trap: Trap) -> None:
    labels = trap.root / ".singularity.d/labels.json"
    labels.parent.mkdir()
    labels.write_text('{"a": "b", "org.label-schema.build-date": "today"}')
    date_labels(trap.root)
    assert json.loads(labels.read_text()) == {
        "a": "b",
        "org.label-schema.build-date": "Tuesday_1_January_1980_00:00:00_UTC".replace("_1_", "_01_"),
    }
    labels.unlink()
    labels.symlink_to(trap.file)
    with pytest.raises(OSError, match="labels"):
        date_labels(trap.root)
    assert trap.is_intact()


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
    assert trap.is_intact()


# layers over a sandbox


@pytest.mark.threat
@pytest.mark.parametrize("as_user", [True, False])
def test_a_layer_is_not_unpacked_through_a_link(trap: Trap, tmp_path: Path, as_user: bool) -> None:
    delta = tmp_path / "delta"
    for name in ("folder/deep/file", "file", "one"):
        (delta / name).parent.mkdir(parents=True, exist_ok=True)
        (delta / name).write_text("theirs")
    (delta / "two").hardlink_to(delta / "one")
    (delta / "link").symlink_to(trap.folder)
    (delta / "file").chmod(0o4000)
    _delete(delta / "gone")
    for name, target in (("folder", trap.folder), ("file", trap.file), ("two", trap.file), ("gone", trap.folder)):
        (trap.root / name).symlink_to(target)
    (trap.root / "link/below").mkdir(parents=True)
    unpack(trap.root, squashed(delta, tmp_path / "delta.sqfs"), as_user=as_user)
    assert trap.is_intact()
    assert (trap.root / "folder/deep/file").read_text() == (trap.root / "two").read_text() == "theirs"
    assert (trap.root / "one").samefile(trap.root / "two")
    kinds = {path.name: (path.is_symlink(), path.is_dir()) for path in trap.root.iterdir()}
    assert kinds == {
        "folder": (False, True),
        "link": (True, True),
        **dict.fromkeys(("file", "one", "two"), (False, False)),
    }
    assert stat.S_IMODE((trap.root / "file").stat().st_mode) == (0o4400 if as_user else 0o4000), "open to its owner"


def test_a_folder_has_the_attributes_of_the_uppermost_layer_alone(tmp_path: Path) -> None:
    lower, upper, root = (tmp_path / name for name in ("lower", "upper", "root"))
    for folder, attribute in ((lower, "user.one"), (upper, "user.two")):
        (folder / "a").mkdir(parents=True)
        os.setxattr(folder / "a", attribute, b"1")
        unpack(root, squashed(folder, tmp_path / f"{folder.name}.sqfs"))
    assert os.listxattr(root / "a") == ["user.two"]


def test_a_mark_of_an_overlay_in_a_folder_that_lies_over_nothing_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    os.setxattr(tmp_path / "a", "user.overlay.opaque", b"y")
    tidy(tmp_path, [])
    assert seen_in(tmp_path) == {"a", "a/b"}
    assert os.listxattr(tmp_path / "a") == []


def test_a_file_that_nobody_may_read_is_opened_to_its_owner(trap: Trap) -> None:
    (trap.root / "closed").touch(0o000)
    (trap.root / "folder").mkdir(0o000)
    trap.file.chmod(0o000)
    (trap.root / "link").symlink_to(trap.file)
    _open_to_owner(trap.root)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (trap.root / "closed", trap.root / "folder", trap.file)]
    assert modes == [0o400, 0o700, 0]


# the one function by which all of these reach a file


@pytest.mark.parametrize("path", ["..", "a/../../x", "/../x", "a\0b"])
@pytest.mark.threat
def test_a_path_that_leads_upwards_is_none(path: str, trap: Trap) -> None:
    with pytest.raises(FailedError), safe_fs.folder(trap.root, path):
        pass
    assert list(trap.root.iterdir()) == []


@pytest.mark.threat
def test_no_link_is_followed_whatever_is_done(trap: Trap) -> None:
    (trap.folder / "y").write_text("mine")
    trap.before = trap.seen()
    (trap.root / "folder").symlink_to(trap.folder)
    (trap.root / "file").symlink_to(trap.file)
    os.mkfifo(trap.root / "pipe")
    for path in ("/folder", "/folder/y"):
        with pytest.raises(OSError, match="folder"), safe_fs.folder(trap.root, path):
            pass
    with safe_fs.folder(trap.root, "/") as at:
        safe_fs.set_mode(at, "file", 0o777)
        safe_fs.set_mode(at, "folder", 0o777)
        for name in ("file", "folder", "pipe"):
            with pytest.raises(OSError, match=name):
                safe_fs.open_file(at, name, os.O_RDWR)
    assert trap.is_intact()


@pytest.mark.threat
def test_a_link_that_comes_between_a_look_and_what_is_done_is_not_followed(trap: Trap) -> None:
    """The mount points are found in what a container shows; meanwhile they have become links."""
    shown = trap.root.parent / "shown"
    (shown / "opt/lumiimg").mkdir(parents=True)
    (shown / "etc").mkdir()
    for name in ("opt", "etc"):
        (trap.root / name).symlink_to(trap.folder)
    with open_image(shown) as image, pytest.raises(OSError, match=r"etc|opt"), mount_points(trap.root, image.root):
        pass
    assert trap.is_intact()
