"""Parts of builds, on real squashfs files: the SIF, the cache, how a layer's files are found, a script's last words."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from lumiimg.build.base import write_files
from lumiimg.build.builder import scratch_parent
from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache, prune
from lumiimg.build.changes import difference, drop, listing, place, take_back, tidy, unpack
from lumiimg.build.compile_cache import keeping
from lumiimg.build.keys import BuildStep, compile_cache_key, image_number, layer_inputs, steps_of
from lumiimg.build.layer_build import LayerBuild
from lumiimg.build.progress import BuildStage, Progress
from lumiimg.build.provenance import bill
from lumiimg.build.strategy import Sandbox
from lumiimg.core.errors import FailedError, MissingHereError
from lumiimg.definition.definition import SCRIPT_MARK, Definition, Header, Sections, StagedFile
from lumiimg.engine import failures, process
from lumiimg.engine.engine import Engine, EngineKind, clean_environment, unpacking_in
from lumiimg.engine.failures import explain, last_words
from lumiimg.image import Image, open_image, open_stack
from lumiimg.inventory.components import Inventory
from lumiimg.report.progress import LineProgress
from lumiimg.resolve.lock import LockedSource
from tests.shared.build_machine import APPTAINER, build_machine, layers_by, stored
from tests.shared.programs import squashed

if TYPE_CHECKING:
    from lumiimg.build.build_host import BuildHost


def tree(path: Path) -> dict[str, tuple[str, int, bytes]]:
    """Return kind, permissions and content of each path of an image."""
    found = {}
    with open_image(path) as image:
        for entry in image.root.walk():
            seen = image.root.stat(entry.path, follow=False)
            content = b""
            if entry.kind.value == "file":
                content = image.root.read_bytes(entry.path, 1 << 20)
            elif entry.kind.value == "symlink":
                content = image.root.readlink(entry.path).encode()
            found[entry.path] = (entry.kind.value, seen.permissions, content)
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A small root folder."""
    root = tmp_path / "base"
    for name in ("etc/apt/conf", "etc/apt/keys/one", "usr/bin/tool", "opt/old"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "etc/link").symlink_to("apt/conf")
    return root


# what a layer changed


def changed(root: Path) -> None:
    """Change a root folder as scripts do."""
    shutil.rmtree(root / "etc/apt")
    (root / "etc/apt").mkdir()
    (root / "etc/apt/conf").write_text("anew")
    (root / "opt/old").unlink()
    (root / "opt/old").mkdir()
    (root / "opt/old/inside").write_text("a file became a folder")
    (root / "usr/bin/tool").chmod(0o4755)
    (root / "usr/bin/other").hardlink_to(root / "usr/bin/tool")
    os.mkfifo(root / "opt/pipe")
    (root / "etc/link").unlink()
    (root / "etc/link").symlink_to("nowhere")
    (root / ("n" * 255)).write_text("long")


def test_the_difference_of_a_folder_laid_over_it_is_the_folder(tmp_path: Path, base: Path) -> None:
    below = squashed(base, tmp_path / "below.sqfs")
    before = json.loads(json.dumps(listing(base)))
    changed(base)
    difference(base, before, tmp_path / "delta")
    delta = squashed(tmp_path / "delta", tmp_path / "delta.sqfs")
    expected = tree(squashed(base, tmp_path / "whole.sqfs"))
    with open_stack([below, delta]) as stacked:
        assert {entry.path for entry in stacked.root.walk()} == expected.keys()
    assert "/usr/bin/other" in expected
    names = {path.relative_to(tmp_path / "delta").as_posix() for path in (tmp_path / "delta").rglob("*")}
    assert "etc/apt/keys" in names, "a whiteout for what the folder had"
    # and back: unpacked over a copy of the base, it gives the same folder
    copy = tmp_path / "copy"
    unpack(copy, below)
    unpack(copy, delta)
    assert tree(squashed(copy, tmp_path / "copy.sqfs")) == expected


OF_ONE_BUILD = ("etc/machine-id", "var/cache/ldconfig/aux-cache", "var/lib/apt/lists/new_Packages", "var/log/dpkg.log")


@pytest.mark.threat
@pytest.mark.parametrize("way", ["overlay", "sandbox"])
def test_what_is_another_in_each_build_is_in_no_layer(way: str, tmp_path: Path, base: Path) -> None:
    def write(root: Path, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    of_image = {"var/log/dpkg.log": "the image's", "var/lib/apt/lists/old_Packages": "", "etc/shadow": "root:*:10:0:::"}
    write(base, of_image)
    (base / "var/log/apt").symlink_to(tmp_path)  # of a stranger
    write(tmp_path, {"term.log": "the user's"})
    written = dict.fromkeys(OF_ONE_BUILD, "today") | {
        "etc/shadow": "root:*:10:0:::\nada:!:20787:0:99999:7:::\nold::19:9\n",
        "var/log/own.log": "today",
    }
    delta = tmp_path / "delta"
    if way == "sandbox":
        before = json.loads(json.dumps(listing(base)))
        (base / "var/lib/apt/lists/old_Packages").unlink()
        for name in (*OF_ONE_BUILD, "etc/shadow"):
            (base / name).unlink(missing_ok=True)  # as programs do, which write by rename
        write(base, written)
        difference(base, before, delta)
    else:
        write(delta, written)
        (delta / "var/lib/apt/lists").mkdir(parents=True, exist_ok=True)
        os.mknod(delta / "var/lib/apt/lists/old_Packages", 0o020600, os.makedev(0, 0))
        drop(delta)
    tidy(delta, [])
    found = {path.relative_to(delta).as_posix() for path in delta.rglob("*") if not path.is_dir()}
    assert found == {"etc/shadow", "var/log/own.log", "var/lib/apt/lists/old_Packages"}, "with what was removed"
    assert (delta / "etc/shadow").read_text() == "root:*:10:0:::\nada:!:3652:0:99999:7:::\nold::19:9\n"
    assert (tmp_path / "term.log").exists()


@pytest.mark.threat
def test_a_folder_that_was_made_anew_hides_what_was_in_it_and_nothing_of_where_a_link_led(
    tmp_path: Path, base: Path
) -> None:
    folders = ("etc/apt", ".hidden/apt", ".other")
    for folder in folders:
        (base / folder / "keys/deep").mkdir(parents=True, exist_ok=True)
    (base / "opt/rocm-6/bin").mkdir(parents=True)
    (base / "opt/rocm-6/empty").mkdir()
    (base / "opt/rocm").symlink_to("rocm-6")
    below = squashed(base, tmp_path / "below.sqfs")
    upper = tmp_path / "upper"
    for folder in (*folders, "opt/rocm"):
        (upper / folder / "keys").mkdir(parents=True)
        os.setxattr(upper / folder, "user.overlay.opaque", b"y")
        (upper / folder / "conf").write_text("anew")
    tidy(upper, [below])
    assert sorted(path.name for path in (upper / "opt/rocm").iterdir()) == ["conf", "keys"], "no ghosts"
    with open_stack([below, squashed(upper, tmp_path / "upper.sqfs")]) as stacked:
        for folder in (*folders, "opt/rocm"):
            assert [entry.name for entry in stacked.root.list_dir(f"/{folder}")] == ["conf", "keys"], folder
            assert stacked.root.list_dir(f"/{folder}/keys") == (), folder


@pytest.mark.threat
@pytest.mark.parametrize("changed_name", ["", "usr/bin/tool", "opt/third"])
def test_all_names_of_a_file_are_one_file_over_an_overlay(changed_name: str, tmp_path: Path, base: Path) -> None:
    names = ["usr/bin/tool", "usr/bin/second", "opt/third"]
    for name in names[1:]:
        (base / name).hardlink_to(base / names[0])
    os.mkfifo(base / "opt/pipe")
    (base / "opt/other-pipe").hardlink_to(base / "opt/pipe")
    with (base / "opt/sparse").open("wb") as file:
        file.seek(9 << 20)
        file.write(b"here")
        file.truncate(24 << 20)
    (base / "opt/other-sparse").hardlink_to(base / "opt/sparse")
    (base / "usr/bin").chmod(0o2755)
    below = squashed(base, tmp_path / "below.sqfs")
    upper, noted = tmp_path / "upper", tmp_path / "noted.json"
    upper.mkdir()
    place(upper, noted, [below])
    assert (upper / "opt/other-pipe").is_fifo()
    assert (upper / names[0]).read_text() == "usr/bin/tool"
    assert (upper / names[0]).samefile(upper / names[1])
    sparse = (upper / "opt/sparse").stat()
    assert (sparse.st_size, sparse.st_nlink) == (24 << 20, 2)
    assert sparse.st_blocks * 512 < 16 << 20, "it keeps its holes"
    assert (upper / "opt/sparse").read_bytes().strip(b"\0") == b"here"
    if changed_name:
        with (upper / changed_name).open("a") as file:
            file.write("+")
    take_back(upper, noted)
    tidy(upper, [below])
    left = [path.relative_to(upper).as_posix() for path in upper.rglob("*") if not path.is_dir()]
    assert sorted(left) == (sorted(names) if changed_name else [])


# keys and the cache


BASE = Sections(Header("docker", "x"))


def definition(tmp_path: Path, name: str = "01-a", **changes: object) -> Definition:
    file = tmp_path / "tool.c"
    if not file.exists():
        file.write_text("int x;")
    one = Definition(name, ("a",), None, BASE, (StagedFile("files/a/tool.c", file),))
    return replace(one, **changes)  # type: ignore[arg-type]


def test_the_key_of_a_layer_changes_with_all_that_it_is_made_of(tmp_path: Path) -> None:
    def key(engine: Engine = APPTAINER, sections: Sections = BASE, *below: str, content: str = "", **seen: Any) -> str:
        one = definition(tmp_path, sections=sections)
        return BuildStep(one, layer_inputs(one, below, build_machine(engine, **seen))).key(content).digest

    same = key()
    assert same == key(replace(APPTAINER, path=Path("/y"), version="1.4.6"))
    assert same == key(replace(APPTAINER, kind=EngineKind.NAMESPACES)), "either has lumiimg make the base"
    labels = (("lumiimg.version", "0.2.0"), ("lumiimg.layer.01", "a"))
    by_others = (replace(BASE, labels=(("lumiimg.version", one), labels[1])) for one in ("0.1.0", "0.2.0"))
    assert len({key(sections=sections) for sections in by_others}) == 1, "another lumiimg writes the same"
    others = {
        key(sections=replace(BASE, post="#\n")),
        key(sections=replace(BASE, post="    lumiimg.version 1; touch /x\n")),
        key(sections=replace(BASE, post="    lumiimg.version 2; touch /x\n")),
        key(replace(APPTAINER, kind=EngineKind.SINGULARITY)),
        key(has_subids=False),  # owners and modes are lost
        key(mksquashfs="4.7"),  # the same files are other bytes
        key(APPTAINER, BASE, "export A=1"),  # a layer below sets it
        key(content="1"),  # what is below came to something else
    }
    (tmp_path / "tool.c").write_text("int y;")
    others.add(key())
    assert len(others | {same}) == 10
    made_of = [BuildStep(definition(tmp_path), {"a": 1})]
    chains = ([definition(tmp_path)], [definition(tmp_path, sections=replace(BASE, environment=(("A", "1"),)))])
    reported = [{}, {"a": b"1"}, {"a": b"2"}]
    assert len({image_number(chain, made_of, documents) for chain in chains for documents in reported}) == 6


def test_what_a_layer_only_says_of_the_image_is_not_in_its_key_and_those_above_see_its_variables(
    tmp_path: Path,
) -> None:
    base = definition(tmp_path)
    lower = replace(base, name="02-b", parent="01-a", sections=replace(on("01-a"), post="make\n"))
    upper = replace(lower, name="03-c", parent="02-b")
    sets = replace(lower, sections=replace(lower.sections, environment=(("A", "1"),), labels=(("b", "2"),)))
    machine = build_machine()
    keys, others = ([s.inputs for s in steps_of([base, one, upper], machine)] for one in (lower, sets))
    assert [one == other for one, other in zip(keys, others, strict=True)] == [True, True, True, False]
    assert others[3]["environment"] == "export A=1"
    with_variable = replace(base, sections=replace(BASE, environment=(("A", "1"),)))
    by_engine = build_machine(has_subids=False)
    exported = [steps_of([with_variable, lower], one)[-1].inputs["environment"] for one in (machine, by_engine)]
    assert exported == ["export A=1", ""], "an engine's base has it in the image"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(FailedError, match="cannot be written"), LayerCache(tmp_path / "cache").building():
        pass


def test_two_builds_of_one_layer_at_once_keep_one_result_and_both_have_it(tmp_path: Path) -> None:
    """Even if the first was killed at any moment: nothing waits for it."""
    cache, key = LayerCache(tmp_path / "cache"), CacheKey({"a": 1})
    with cache.building() as slow:
        (slow / "data.sqfs").write_bytes(b"slow")
        quick = stored(cache, key, b"quick")
        assert cache.store(key, slow / "data.sqfs", layers=("a",), seconds=9.0) == quick
    quick.data.write_bytes(b"cut")
    mended = stored(cache, key, b"slow")
    assert mended.data.read_bytes() == b"slow", "what is damaged makes way"
    assert list(cache.entries()) == [mended]
    assert list((tmp_path / "cache/work").iterdir()) == []


def test_a_base_that_is_a_file_or_a_folder_here_counts_by_what_it_is_now(tmp_path: Path) -> None:
    image, folder = tmp_path / "base.sif", tmp_path / "box"
    image.write_bytes(b"one")
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/x").write_text("1")
    for origin, touched in ((image, image), (folder, folder / "etc/x")):

        def key(origin: Path = origin) -> str:
            one = replace(definition(tmp_path), origin=origin)
            return BuildStep(one, layer_inputs(one, (), build_machine())).key("").digest

        before = key()
        assert key() == before
        seen = touched.stat()
        touched.write_bytes(b"two"[: seen.st_size])
        os.utime(touched, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # it looks as old as before
        assert key() != before


def test_the_first_way_that_works_is_taken_and_the_others_are_reported(tmp_path: Path) -> None:
    def here(*programs: str, **seen: object) -> BuildHost:
        (folder := Path(mkdtemp(dir=tmp_path))).chmod(0o755)
        for name in programs:
            (folder / name).touch(0o755)
        return build_machine(path=str(folder), **seen)  # type: ignore[arg-type]

    fuse = "squashfuse_ll"
    assert here(fuse).choose_strategy(None) == ("overlay", "the fastest")
    with pytest.raises(MissingHereError, match="no image can be built here: no mksquashfs"):
        here(fuse, mksquashfs="").choose_strategy(None)
    way, why = here(fuse, has_subids=False).choose_strategy(None)
    assert (way, "no user namespace" in why) == ("sandbox", True)
    assert here().choose_strategy(None) == ("sandbox", "overlay: no squashfuse_ll"), "and unpacks itself"
    assert here(fuse).choose_strategy("sandbox")[0] == "sandbox"
    del vars(asked := here(fuse))["overlay"]
    assert asked.choose_strategy("sandbox")[0] == "sandbox"
    assert "overlay" not in vars(asked), "what was not asked for is not tried"
    with pytest.raises(MissingHereError, match="no FUSE"):
        here(fuse, overlays=False).choose_strategy("overlay")
    with pytest.raises(MissingHereError, match="cannot start a container here"):
        here(fuse, starts=False).choose_strategy(None)


def test_a_folder_holds_what_the_layers_came_to_also_where_another_build_was_quicker(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.touch()
    sandbox, unpacked, step = Sandbox(tmp_path), list[str](), mock.create_autospec(LayerBuild)
    step.unpack.side_effect = lambda layer, _: unpacked.append(layer.name)
    for number, added in ((1, "a"), (2, "b"), (2, "")):
        unpacked.clear()
        sandbox._hold(step, files[:number])
        assert "".join(unpacked) == added
    sandbox._hold(step, [files[0], files[2]])
    assert unpacked == ["a", "c"]


@pytest.mark.threat
def test_a_base_has_no_files_of_the_machine_that_made_it_and_waits_for_no_server_for_hours(tmp_path: Path) -> None:
    reported: list[str] = []
    (tmp_path / "debootstrap").write_text(
        "#!/bin/sh\nmkdir -p $7/etc; for name in resolv.conf hostname passwd; do echo mine >$7/etc/$name; done\n"
        "cat $WGETRC\n"
    )
    (tmp_path / "debootstrap").chmod(0o755)
    header = Header("debootstrap", "stable", "file:///mirror")
    step = LayerBuild(
        build_machine(has_subids=False),
        {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        Definition("01-a", ("a",), None, Sections(header), ()),
        tmp_path,
        io.BytesIO(),
        reported.append,
    )
    write_files(step, tmp_path / "root", SimpleNamespace())  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "root/etc").iterdir()] == ["passwd"]
    assert reported == ["timeout = 300", "tries = 3"]


# what an image says about itself


def test_the_bill_names_packages_distributions_and_sources(base: Path) -> None:
    (base / "etc/os-release").write_text('ID=debian\nVERSION_ID="13"\n')
    (base / "var/lib/dpkg").mkdir(parents=True)
    (base / "var/lib/dpkg/status").write_text(
        "Package: libc6\nStatus: install ok installed\nVersion: 2.41-12\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    (base / "opt/venv/lib/python3.12/site-packages/torch-2.9.1+rocm6.4.dist-info").mkdir(parents=True)
    source = LockedSource("plugin", "S", "p.tar", "1" * 64, "https://x.test/p.tar", "", "")
    with open_image(base) as opened:
        document = json.loads(bill(Inventory(opened), [source], "x"))
        assert bill(Inventory(opened), [source], "x") == bill(Inventory(opened), [source], "x")
    found = {(one["name"], one["version"]): one for one in document["components"]}
    assert ("debian", "13") in found
    assert found["libc6", "2.41-12"]["purl"] == "pkg:deb/libc6@2.41-12"
    assert found["torch", "2.9.1+rocm6.4"]["purl"] == "pkg:pypi/torch@2.9.1%2Brocm6.4"
    assert found["plugin", ""]["hashes"][0]["content"] == "1" * 64
    assert not any(name == "gone" for name, _ in found)


def left_out(image: Image) -> list[str]:
    """Return what a bill of materials lists as left out."""
    metadata = json.loads(bill(Inventory(image), [], "x"))["metadata"]
    assert all(one["name"] == "lumiimg:incomplete" for one in metadata.get("properties", []))
    return [one["value"] for one in metadata.get("properties", [])]


def test_a_bill_that_is_cut_short_says_so(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "opt/venv/site-packages/one-1.dist-info").mkdir(parents=True)
    (base / "opt/venv/site-packages/two-2.dist-info").mkdir()
    (base / "var/lib/dpkg").mkdir(parents=True)
    (base / "var/lib/dpkg/status").write_text("Package: libc6\nStatus: install ok installed\nVersion: 2.41-12\n")
    with open_image(base) as opened:
        assert left_out(opened) == []
        with monkeypatch.context() as patch:
            patch.setattr("lumiimg.inventory.components.MAX_DISTRIBUTIONS", 1)
            assert left_out(opened) == ["too many Python distributions: not all are listed"]
        monkeypatch.setattr("lumiimg.inventory.system._STATUS_LIMIT_BYTES", 10)
        assert left_out(opened) == ["packages of dpkg are not listed: its status file cannot be read"]


def test_the_bill_of_a_system_whose_packages_cannot_be_listed_says_so(base: Path) -> None:
    for name, tool in (
        ("usr/lib/sysimage/rpm/rpmdb.sqlite", "rpm"),
        ("usr/lib/sysimage/rpm/Packages.db", "rpm"),
        ("var/lib/rpm/Packages", "rpm"),
        ("lib/apk/db/installed", "apk"),
        ("usr/lib/apk/db/installed", "apk"),
    ):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).with_name(".rpm.lock").touch()
        with open_image(base) as opened:
            assert left_out(opened) == [], "nothing is installed"
            (base / name).touch()
            assert left_out(opened) == [f"packages of {tool} are not listed"], name
        (base / name).unlink()
    (base / "usr/lib/sysimage/rpm/Packages.db").touch()
    shutil.rmtree(base / "var/lib/rpm")
    (base / "var/lib/rpm").symlink_to("../../usr/lib/sysimage/rpm")  # under two names, and reported once
    for environment in ("opt/conda", "opt/conda/envs/py_3.12"):
        (base / environment / "conda-meta").mkdir(parents=True)
    with open_image(base) as opened:
        assert left_out(opened) == [
            "packages of rpm are not listed",
            "conda packages are not listed, except Python distributions",
        ]


# what is printed during a build


def test_a_silent_step_shows_that_it_lives(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress(alive_every_s=0.05)
    progress.begin(["01-a", "image"])
    progress.step_started("01-a", 59.0)
    progress.line("compiling x\x1b[2J")
    deadline = time.monotonic() + 10
    output = ""
    while "so far" not in output and time.monotonic() < deadline:
        time.sleep(0.02)
        output += capsys.readouterr().err
    progress.step_done(BuildStage("01-a", 61.0, 120.0, 5 << 20, reused=False))
    progress.stop()
    output += capsys.readouterr().err
    assert "[1/2] 01-a (59.0 s the last time)" in output
    assert r"      > compiling x\x1b[2J" in output
    assert "cpu 2 min" in output


def test_what_a_layer_compiled_is_taken_again_where_all_that_it_depends_on_is_the_same(tmp_path: Path) -> None:
    base = definition(tmp_path)
    torch = replace(base, name="02-torch", layers=("torch",), parent="01-a", sections=replace(BASE, post="1\n"))
    other = replace(torch, name="03-other", layers=("other",), sections=replace(BASE, post="2\n"))
    vllm = replace(torch, layers=("vllm",), sections=replace(BASE, post="3\n"), needs=("02-torch",))

    def key(*below: Definition, content: str = "b") -> str:
        chain = [*below, replace(vllm, name=f"0{len(below) + 1}-vllm")]
        return compile_cache_key([BuildStep(one, {"files": {}}) for one in chain], len(below), content).digest

    same = key(base, torch)
    assert key(base, torch, other) == same, "whatever lies between"
    assert key(base, torch, content="c") != same, "the base came out differently"
    assert key(base, replace(torch, sections=replace(BASE, post="5\n"))) != same

    def with_environment(*exports: tuple[str, str] | None) -> str:
        variables = [(one,) if one else () for one in exports]
        below = [replace(other, sections=replace(other.sections, environment=one)) for one in variables]
        return key(base, *(replace(one, name=f"0{at}-x") for at, one in enumerate(below, 2)))

    a, changed, b = ("A", "1"), ("A", "2"), ("B", "2")
    assert with_environment(a, None, b) == with_environment(b, a)
    every = {with_environment(*one) for one in ((a,), (changed,), (), (a, changed), (changed, a))}
    assert len(every) == 5


def of_layer(name: str, kept: Path, *, has_ended: bool = True) -> Any:
    """Return a stand-in for a layer during its build, with only what concerns kept folders."""
    return SimpleNamespace(definition=SimpleNamespace(layers=(name,)), compile_cache=kept, has_ended=has_ended)


def notices_of(cache: LayerCache, folder: Path, script: Callable[[Path], None], *, has_ended: bool = True) -> list[str]:
    """Return what is reported about a run of a stand-in for a script with one folder."""
    notices: list[str] = []
    shutil.rmtree(folder, ignore_errors=True)
    with keeping(cache, CacheKey({"kept": 1}), of_layer("vllm", folder, has_ended=has_ended), notices.append):
        script(folder)
    return notices


def test_what_a_later_run_compiles_is_cached_too_and_what_it_takes_out_is_gone(tmp_path: Path) -> None:
    cache, folder = LayerCache(tmp_path / "cache"), tmp_path / "kept"
    seen: list[dict[str, str]] = []

    def compiles(name: str, text: str) -> Callable[[Path], None]:
        def script(kept: Path) -> None:
            seen.append({path.name: path.read_text() for path in kept.glob("*")})
            kept.mkdir(exist_ok=True)
            (kept / name).write_text(text)
            (kept / ".wh.gone").touch()  # what an overlay notes down

        return script

    assert notices_of(cache, folder, compiles("a", "1")) == []
    notices_of(cache, folder, compiles("b", "2"))
    notices_of(cache, folder, compiles("a", "3"))
    assert notices_of(cache, folder, compiles("a", "3")) == ["vllm: compile cache reused, 10 KiB"]
    assert seen == [{}, {"a": "1"}, {"a": "1", "b": "2"}, {"a": "3", "b": "2"}]
    notices_of(cache, folder, compiles("c", "half a wheel"), has_ended=False)
    notices_of(cache, folder, compiles("a", "3"))
    assert seen[-1] == {"a": "3", "b": "2"}, "the script before did not come to its end"

    def takes_out(kept: Path) -> None:
        shutil.rmtree(kept)
        kept.mkdir()

    def full(_: Path) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    there = cache.find(CacheKey({"kept": 1}))
    assert there is not None
    (before := tmp_path / "before").hardlink_to(there.data)
    notices_of(cache, folder, compiles("a", "3"))
    assert there.data.samefile(before), "the same again is not written again"

    with pytest.MonkeyPatch.context() as patch:

        def fills_the_disk(kept: Path) -> None:
            compiles("a", "4")(kept)
            patch.setattr("lumiimg.build.cache.file_sha256", full)

        assert "cannot store the compile cache" in notices_of(cache, folder, fills_the_disk)[-1]
    assert cache.find(CacheKey({"kept": 1})) == there, "what was kept before stays"
    notices_of(cache, folder, takes_out)
    assert cache.find(CacheKey({"kept": 1})) is None


class Stand:
    """A stand-in for a build strategy, whose layers differ each time and record what they were built on."""

    def __init__(self, cache: LayerCache) -> None:
        self.cache = cache
        self.built: list[str] = []
        self.prunes = False

    def base(self, step: LayerBuild, target: Path, _store: object = None) -> None:
        self.built.append(step.definition.name)
        target.write_text(f"{step.definition.name} {time.monotonic_ns()}\n")

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        if self.prunes:
            prune(self.cache, 0)
        self.base(step, target)
        target.write_text("".join(path.read_text() for path in below[-1:]) + target.read_text())


def on(parent: str) -> Sections:
    return Sections(Header("localimage", f"{parent}.sif"))


def layers_of(root: Path, chain: Sequence[Definition], way: Any, progress: Any, **more: Any) -> list[str]:
    """Build a chain with a stand-in; return the content of each layer."""
    store: Any = SimpleNamespace(has=bool, sources=lambda *_: {})
    machine = build_machine()
    return [path.read_text() for path in layers_by(way, chain, machine, root, store, progress, **more)[0]]


def run(root: Path, *, prunes: bool = False) -> tuple[list[str], str, str]:
    """Build a base and two layers with the stand-in; return what was built, the top's content, and the output."""
    stand = Stand(LayerCache(root / "cache"))
    stand.prunes = prunes
    notices: list[str] = []
    progress = Progress()
    progress.notice = notices.append  # type: ignore[method-assign, assignment]
    base = definition(root, "01-base", layers=("base",))
    lower = replace(base, name="02-lower", layers=("lower",), parent="01-base", sections=on("01-base"))
    upper = replace(lower, name="03-upper", layers=("upper",), parent="02-lower", sections=on("02-lower"))
    texts = layers_of(root, [base, lower, upper], stand, progress)
    assert "".join(texts[2].splitlines(keepends=True)[:-1]) == texts[1], "it lies over what it was built on"
    return stand.built, texts[2], "\n".join(notices)


def entry(root: Path, layer: str) -> CacheEntry:
    return next(entry for entry in LayerCache(root / "cache").entries() if entry.layers == (layer,))


@pytest.mark.threat
def test_a_layer_is_never_laid_over_another_content_than_it_was_built_on(tmp_path: Path) -> None:
    every = ["01-base", "02-lower", "03-upper"]
    first = run(tmp_path)
    assert first[0] == every
    assert run(tmp_path) == ([], first[1], "")
    cache = LayerCache(tmp_path / "cache")
    for layer in ("base", "lower"):
        cache.remove(entry(tmp_path, layer).key)
    assert run(tmp_path)[0] == every, "what is below came out differently"
    assert run(tmp_path)[0] == []
    cache.remove(entry(tmp_path, "base").key)
    assert run(tmp_path)[0] == every


@pytest.mark.threat
def test_a_damaged_layer_is_built_again_and_that_is_reported(tmp_path: Path) -> None:
    """Even if a disk lost bytes, which changes no time stamp."""
    run(tmp_path)
    spoiled = entry(tmp_path, "lower").data
    seen, data = spoiled.stat(), spoiled.read_bytes()
    spoiled.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    os.utime(spoiled, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    built, _, done = run(tmp_path)
    assert built == ["02-lower", "03-upper"]
    assert done == "lower: was damaged, and is removed from the cache"


@pytest.mark.threat
def test_a_file_that_is_changed_while_the_image_is_built_ends_the_build(tmp_path: Path) -> None:
    """Otherwise, a layer would be stored under the digest of another file."""

    class Changes(Stand):
        def base(self, step: LayerBuild, target: Path, _store: object = None) -> None:
            (tmp_path / "tool.c").write_text("int y;")
            super().base(step, target)

    base = definition(tmp_path, "01-base", layers=("base",), files=())
    lower = definition(tmp_path, "02-lower", layers=("lower",), parent="01-base", sections=on("01-base"))
    with pytest.raises(FailedError, match=r"tool\.c: was changed during the build; build again"):
        layers_of(tmp_path, [base, lower], Changes(LayerCache(tmp_path / "cache")), Progress())
    assert [found.layers for found in LayerCache(tmp_path / "cache").entries()] == [("base",)]


def test_pruning_while_a_build_runs_takes_nothing_from_it(tmp_path: Path) -> None:
    assert run(tmp_path, prunes=True)[0] == ["01-base", "02-lower", "03-upper"]


def test_a_compile_cache_that_cannot_be_unpacked_is_compiled_again(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    bad, zeros = tmp_path / "data.tar", tmp_path / "zeros"
    zeros.touch()
    os.truncate(zeros, 1 << 20)
    for words in ((), ("--sparse",), ("--gzip",)):
        bad.write_bytes(b"no tar")
        if words:
            subprocess.run(["tar", "-C", tmp_path, *words, "-cf", bad, "zeros"], check=True)
        cache.store(CacheKey({"kept": 1}), bad, layers=("vllm (compiled)",), seconds=0.0)
        seen: list[bool] = []
        notices = notices_of(cache, tmp_path / "kept", lambda kept, seen=seen: seen.append(kept.exists()))  # type: ignore[misc]
        assert (seen, len(notices)) == ([False], 1), words
        assert "cannot be unpacked, so everything is compiled again" in notices[0]
        assert list(cache.entries()) == []


class Scripts:
    """A stand-in for a build strategy: a result is the script, which fails if it is `false`, and compiles once."""

    suffix = ".sqfs"

    def __init__(self) -> None:
        self.did: list[str] = []

    def base(self, step: LayerBuild, target: Path, _store: object) -> None:
        self.did.append(step.definition.name)
        target.write_text(step.definition.text)

    def layer(self, step: LayerBuild, _: object, target: Path) -> None:
        post = step.definition.sections.post
        if post == "false\n":
            raise FailedError("the script failed")
        self.did.append(step.definition.name + ("" if step.compile_cache.exists() else " compiles"))
        step.compile_cache.mkdir(parents=True, exist_ok=True)
        (step.compile_cache / "x.whl").write_text("x")
        target.write_text(post)


def test_a_base_whose_script_fails_or_is_changed_is_not_bootstrapped_again(tmp_path: Path) -> None:
    def build(script: str) -> list[str]:
        """Return what was done."""
        base = definition(tmp_path, "01-a", sections=replace(BASE, post=script), files=())
        above = replace(base, name="02-b", layers=("b",), parent="01-a", sections=replace(on("01-a"), post="make\n"))
        scripts = Scripts()
        with suppress(FailedError):
            layers_of(tmp_path, [base, above], scripts, Progress(), is_intact=True)
        return scripts.did

    assert [step.name for step in steps_of([definition(tmp_path)], build_machine(has_subids=False))] == ["01-a"]
    assert build("false\n") == ["00-bootstrap"], "no layer is tried on a base that failed"
    assert build("true\n") == ["01-a compiles", "02-b compiles"]
    assert {entry.layers for entry in LayerCache(tmp_path / "cache").entries()} >= {("a (bootstrap)",), ("a",), ("b",)}
    assert build("true\n") == []
    assert build("true other\n") == ["01-a compiles", "02-b compiles"], "what was compiled on another base is not taken"


@pytest.mark.threat
def test_a_link_that_a_script_leaves_in_place_of_what_it_keeps_is_not_followed(tmp_path: Path) -> None:
    """The user's files would get into the cache, and into the next build of that layer, which has a network."""
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh/id").write_text("private")
    key, notices = CacheKey({"kept": 1}), list[str]()
    for number, link in enumerate(("work/layer/kept", "work/layer", "work/layer/kept/below", "work/layer/kept/id")):
        cache, folder = LayerCache(tmp_path / f"cache{number}"), tmp_path / f"{number}"
        with keeping(cache, key, of_layer("layer", folder / "work/layer/kept"), notices.append):
            place = folder / link
            place.parent.mkdir(parents=True)
            place.symlink_to(tmp_path / ("ssh/id" if link.endswith("id") else "ssh"))
            if link == "work/layer":
                (tmp_path / "ssh/kept").mkdir()
                (tmp_path / "ssh/kept/id").write_text("private")
        assert cache.names() == [], link


@pytest.mark.threat
def test_what_a_script_leaves_in_its_folder_is_not_where_its_test_is_written(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    definition = Definition(
        "02-a", ("a",), "01-base", Sections(Header("localimage", "01-base.sif"), post="true", test="true"), ()
    )
    step = LayerBuild(build_machine(), {}, definition, tmp_path / "step", io.BytesIO(), print)
    step.script("/opt/lumiimg/build")
    for name in (".script", ".test"):
        (step.work / name).unlink(missing_ok=True)
        (step.work / name).symlink_to(tmp_path / "bashrc")
    step.test("/opt/lumiimg/build")
    assert not (tmp_path / "bashrc").exists()
    with step.binds("/opt/lumiimg/build", step.test_folder) as binds:
        assert [bind.source for bind in binds if f"{step.work}" in bind.source] == []


KNOWN = tomllib.loads((Path(failures.__file__).parent / "failures.toml").read_text())["failure"]


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry["id"])
def test_each_known_failure_is_found_in_its_example(entry: dict[str, str]) -> None:
    found = explain(f"INFO:    Starting build...\n{entry['example']}\n")
    assert found is not None
    assert found.id == entry["id"]
    assert "{" not in found.meaning
    assert entry["source"]


def test_the_last_words_are_the_scripts_not_the_engines() -> None:
    output = "+ make\nmake: *** [all] Error 2\n\x1b[31mFATAL:   While performing build: exit status 2\x1b[0m\n"
    assert last_words(output) == "make: *** [all] Error 2"
    assert last_words("") == ""
    only_the_engine = "INFO:    gocryptfs not found, will not be able to use gocryptfs\n+ exit 3\n"
    assert last_words(only_the_engine) == ""
    assert last_words(f"FATAL:   no room\n{only_the_engine}") == "FATAL:   no room"


LIBRARY = "check() {\n    test -e /nowhere\n}\n"
SCRIPT = f"""\
set -euo pipefail
(
export A=1
{SCRIPT_MARK}a, post.sh
echo -n $(false) $(exit 4)
own() {{
    grep -q x /dev/null
}}
. "$LIBRARY"
! false
[ -e /nowhere ] && false
BODY
echo never
)
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("test -e /nowhere", "post.sh line 8: test -e /nowhere: exit 1"),
        ("echo said; false | cat", "post.sh line 8: echo said; false | cat: exit 1; the last line it printed: said"),
        ("x=$(ls /nowhere 2>/dev/null)", "post.sh line 8: x=$(ls /nowhere 2>/dev/null): exit 2"),
        ("\nif true; then\n  (exit 9)\nfi", "post.sh line 10: (exit 9): exit 9"),
        ("own", "post.sh line 3: grep -q x /dev/null: exit 1"),
        ("check", "post.sh line 8, in lib.sh line 2: test -e /nowhere: exit 1"),
        ("echo $UNSET", "the build stopped at: post.sh line 8: UNSET: unbound variable"),
        ("exit 3", "the build stopped at: exit status 3"),
        ("echo 'No space left on device'; false", "the disk or the quota is full"),
    ],
)
def test_what_a_script_stopped_at_is_named_though_it_printed_nothing(body: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "lib.sh").write_text(LIBRARY)
    sections = Sections(Header("localimage", "x.sif"), post=SCRIPT.replace("BODY", body))
    one = Definition("01-a", ("a",), "00", sections, ())
    with (tmp_path / "log").open("wb") as log:
        step = LayerBuild(build_machine(has_subids=True), {}, one, tmp_path, log, lambda _: None)
        argv = step.script(str(step.work))
        done = process.run(argv, env={"LIBRARY": f"{tmp_path}/lib.sh", "PATH": os.environ["PATH"]}, cwd=tmp_path)
        with pytest.raises(FailedError) as refused:
            step.check(done)
    assert refused.value.what.removeprefix("layer a: ").startswith(why)
    assert not refused.value.what.removeprefix("layer a: ").removeprefix(why).startswith(";")


def test_the_engines_scratch_is_where_the_engine_can_work() -> None:
    assert scratch_parent(Path("/scratch/project_1/me")) == Path("/scratch/project_1/me/work")
    for awkward in ("/it's", "/a b", "/a\nb", "/a,b", "/a:b", "/a;b", "/a&b", '/a"b'):
        assert not str(scratch_parent(Path(awkward))).startswith(awkward)


@pytest.mark.threat
def test_a_users_profile_does_not_reach_the_build(tmp_path: Path) -> None:
    environment = {
        "PATH": "/bin",
        "SINGULARITY_BIND": "/x",
        "APPTAINERENV_LD_LIBRARY_PATH": "/y",
        "SINGULARITYENV_X": "1",
        "APPTAINER_CACHEDIR": "/cache",
        "SINGULARITY_DOCKER_PASSWORD": "p",
    }
    kept = {"PATH", "APPTAINER_CACHEDIR", "SINGULARITY_DOCKER_PASSWORD"}
    assert set(clean_environment(environment)) == kept
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    engine = Engine(program, EngineKind.APPTAINER, "1.4.5", frozenset())
    done = process.run([program], env=unpacking_in(tmp_path, engine, environment))
    seen = {line.partition("=")[0] for line in done.output.splitlines()}
    assert seen - {"PWD", "SHLVL", "_", "TMPDIR", "APPTAINER_TMPDIR"} == kept
