"""What builds are made of, on real squashfs files: the SIF around them, the cache, and how a layer's files are found."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import py_compile
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lumiimg.build import builder
from lumiimg.build import cache as caches
from lumiimg.build.builder import is_there
from lumiimg.build.cache import CacheEntry, CacheKey, LayerCache
from lumiimg.build.cache_lease import CacheLease
from lumiimg.build.capabilities import OWN_MOUNTS, BuildMachine, CapabilityTrial
from lumiimg.build.choice import choose_way
from lumiimg.build.compile_cache import keeping
from lumiimg.build.keys import image_key, kept_key, layer_keys
from lumiimg.build.layer_build import LayerBuild
from lumiimg.build.progress import BuildStage, Progress
from lumiimg.build.sbom import bill
from lumiimg.build.squash import squash
from lumiimg.build.steps import steps_of
from lumiimg.build.strategy import Strategy
from lumiimg.build.userns_helper import clear, difference, listing, place, take_back, tidy
from lumiimg.definition.definition import Definition, Header, Sections, StagedFile
from lumiimg.engine import namespaces, process
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.owner import this_process
from lumiimg.engine.workspace import scratch_folder
from lumiimg.errors import FailedError, MissingHereError
from lumiimg.files import EPOCH
from lumiimg.image import FileKind, FileStat, ImageError, RootFileSystem, open_image, open_stack, sif_writer
from lumiimg.image.squashfs.weave import can_weave
from lumiimg.image.tree import DirectoryEntry
from lumiimg.report.progress import LineProgress, TerminalProgress
from lumiimg.resolve.lock import LockedSource
from lumiimg.resolve.network.mirrors import Mirrors
from lumiimg.resolve.network.web import Web
from lumiimg.resolve.store import Store
from tests.shared.build_machine import build_machine
from tests.shared.programs import needs, squashed

ENGINE = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset({"--mksquashfs-args"}))


def tree(path: Path) -> dict[str, tuple[str, int, bytes]]:
    """What an image shows: kind, permissions and content by path."""
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


# the SIF


def made(tmp_path: Path, base: Path, name: str = "image.sif", identity: str = "one") -> Path:
    target = tmp_path / name
    front = sif_writer.Front("Bootstrap: docker\nFrom: x\n", {"lumiimg.json": b'{"a": 1}'})
    squashed(base, target, offset=front.size_bytes)
    sif_writer.write_front(target, front, identity=identity)
    return target


def test_a_sif_is_read_as_it_was_written(tmp_path: Path, base: Path) -> None:
    image = made(tmp_path, base)
    assert image.read_bytes().startswith(b"#!/usr/bin/env run-singularity\n")
    with open_image(image) as opened:
        assert opened.definition == "Bootstrap: docker\nFrom: x\n"
        assert opened.architecture == "amd64"
        assert opened.root.read_bytes("/etc/link", 100) == b"etc/apt/conf"
    again = made(tmp_path, base, "again.sif")
    assert again.read_bytes() == image.read_bytes()
    assert is_there(image, "one")
    assert not is_there(image, "two")
    assert not is_there(tmp_path / "none.sif", "one")
    with image.open("r+b") as file:
        file.truncate(image.stat().st_size - 4096)
    assert not is_there(image, "one")


def test_more_than_a_table_holds_is_refused(tmp_path: Path, base: Path) -> None:
    front = sif_writer.Front("x", {f"{number}.json": b"{}" for number in range(44)})
    with pytest.raises(FailedError, match="do not fit"):
        sif_writer.write_front(made(tmp_path, base), front, identity="x")


# what a layer changed


def changed(root: Path) -> None:
    """Do to a root folder what scripts do."""
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
    needs("unsquashfs")
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
    # and back: unpacked over a copy of the base, it is the folder again
    copy = tmp_path / "copy"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", copy, below], check=True)
    clear(copy, delta)
    subprocess.run(["unsquashfs", "-q", "-n", "-f", "-d", copy, delta], check=True)
    clear(copy, delta)
    assert tree(squashed(copy, tmp_path / "copy.sqfs")) == expected


def test_nothing_changed_is_an_empty_layer(tmp_path: Path, base: Path) -> None:
    difference(base, listing(base), tmp_path / "delta")
    assert list((tmp_path / "delta").iterdir()) == []


def squashed_with_names(upper: Path, below: Path) -> Path:
    """Make a layer of an upper folder; it has no mark but whiteouts."""
    tidy(upper, [below])
    return squashed(upper, upper.with_suffix(".sqfs"))


@pytest.mark.parametrize("folder", ["etc/apt", ".hidden/apt", ".hidden"])
@pytest.mark.threat
def test_a_folder_that_was_made_anew_hides_what_was_in_it(folder: str, tmp_path: Path, base: Path) -> None:
    (base / folder / "keys/deep").mkdir(parents=True, exist_ok=True)
    below = squashed(base, tmp_path / "below.sqfs")
    upper = tmp_path / "upper"
    (upper / folder / "keys").mkdir(parents=True)
    os.setxattr(upper / folder, "user.overlay.opaque", b"y")
    (upper / folder / "conf").write_text("anew")
    with open_stack([below, squashed_with_names(upper, below)]) as stacked:
        assert [entry.name for entry in stacked.root.list_dir(f"/{folder}")] == ["conf", "keys"]
        assert stacked.root.list_dir(f"/{folder}/keys") == ()


@pytest.mark.threat
def test_a_folder_in_the_place_of_a_link_hides_nothing_of_where_that_led(tmp_path: Path, base: Path) -> None:
    (base / "opt/rocm-6/bin").mkdir(parents=True)
    (base / "opt/rocm-6/empty").mkdir()
    (base / "opt/rocm").symlink_to("rocm-6")
    below = squashed(base, tmp_path / "below.sqfs")
    upper = tmp_path / "upper"
    (upper / "opt/rocm/empty").mkdir(parents=True)
    os.setxattr(upper / "opt/rocm", "user.overlay.opaque", b"y")
    with open_stack([below, squashed_with_names(upper, below)]) as stacked:
        assert [entry.name for entry in stacked.root.list_dir("/opt/rocm")] == ["empty"]
    assert [path.name for path in (upper / "opt/rocm").iterdir()] == ["empty"], "no ghosts"


def test_a_layer_holds_nothing_that_makes_no_difference(tmp_path: Path, base: Path) -> None:
    for name in ("attributes", "time", "same"):
        (base / "var" / name).mkdir(parents=True)
    os.setxattr(base / "var/same", "user.x", b"x")
    below = squashed(base, tmp_path / "below.sqfs")
    upper = tmp_path / "upper"
    shutil.copytree(base / "usr", upper / "usr", ignore=lambda *_: ["tool"])
    shutil.copytree(base / "var", upper / "var")
    os.setxattr(upper / "var/attributes", "user.x", b"x")  # that is a change
    os.utime(upper / "var/time", (1, 1))  # and that
    (upper / "opt").mkdir()
    (upper / "opt").chmod(0o700)  # and that
    (upper / "etc/new").mkdir(parents=True)  # and that
    for name in ("lock", "apt"):  # made and deleted, and really deleted
        os.mknod(upper / "etc" / name, stat.S_IFCHR, os.makedev(0, 0))
    tidy(upper, [below])
    assert sorted(path.relative_to(upper).as_posix() for path in upper.rglob("*")) == [
        "etc",
        "etc/apt",
        "etc/new",
        "opt",
        "var",
        "var/attributes",
        "var/time",
    ]


@pytest.mark.threat
@pytest.mark.parametrize("changed_name", ["", "usr/bin/tool", "opt/third"])
def test_all_names_of_a_file_are_one_file_over_an_overlay(changed_name: str, tmp_path: Path, base: Path) -> None:
    names = ["usr/bin/tool", "usr/bin/second", "opt/third"]
    for name in names[1:]:
        (base / name).hardlink_to(base / names[0])
    os.mkfifo(base / "opt/pipe")
    (base / "opt/other-pipe").hardlink_to(base / "opt/pipe")
    (base / "usr/bin").chmod(0o2755)
    below = squashed(base, tmp_path / "below.sqfs")
    upper, noted = tmp_path / "upper", tmp_path / "noted.json"
    upper.mkdir()
    place(upper, noted, [below])
    assert (upper / "opt/other-pipe").is_fifo()
    assert (upper / names[0]).read_text() == "usr/bin/tool"
    assert (upper / names[0]).samefile(upper / names[1])
    if changed_name:
        with (upper / changed_name).open("a") as file:
            file.write("+")
    take_back(upper, noted)
    tidy(upper, [below])
    left = [path.relative_to(upper).as_posix() for path in upper.rglob("*") if not path.is_dir()]
    assert sorted(left) == (sorted(names) if changed_name else [])
    assert changed_name or list(upper.iterdir()) == [], "folders are as they were"


def test_a_file_of_several_names_keeps_its_holes_over_an_overlay(tmp_path: Path, base: Path) -> None:
    size, at = 64 << 20, 40 << 20
    with (base / "opt/sparse").open("wb") as file:
        file.seek(at)
        file.write(b"here")
        file.truncate(size)
    (base / "opt/other").hardlink_to(base / "opt/sparse")
    (tmp_path / "upper").mkdir()
    place(tmp_path / "upper", tmp_path / "noted.json", [squashed(base, tmp_path / "below.sqfs")])
    seen = (tmp_path / "upper/opt/sparse").stat()
    assert (seen.st_size, seen.st_nlink) == (size, 2)
    assert seen.st_blocks * 512 < size // 2
    assert (tmp_path / "upper/opt/sparse").read_bytes().strip(b"\0") == b"here"


def test_compiled_python_is_still_good_in_the_image(tmp_path: Path) -> None:
    source = tmp_path / "upper/lib/module.py"
    source.parent.mkdir(parents=True)
    source.write_text("value = 1\n")
    other = source.with_name("other.py")
    other.write_text("value = 2\n")
    for file in (source, other):
        py_compile.compile(str(file), doraise=True)
    os.utime(other)  # its .pyc is stale already, and stays so
    os.utime(other, (EPOCH + 5, EPOCH + 5))
    tidy(tmp_path / "upper", [])
    mtimes = {
        path.name.partition(".")[0]: int.from_bytes(path.read_bytes()[8:12], "little")
        for path in source.parent.glob("__pycache__/*.pyc")
    }
    assert mtimes["module"] == EPOCH
    assert mtimes["other"] != EPOCH


# keys and the cache


BASE = Sections(Header("docker", "x"))


def definition(tmp_path: Path, name: str = "01-a", **changes: object) -> Definition:
    file = tmp_path / "tool.c"
    if not file.exists():
        file.write_text("int x;")
    one = Definition(name, ("a",), None, BASE, (StagedFile("files/a/tool.c", file),))
    return replace(one, **changes)  # type: ignore[arg-type]


def test_the_key_of_a_layer_changes_with_all_that_it_is_made_of(tmp_path: Path) -> None:
    def key(
        engine: Engine = ENGINE,
        sections: Sections = BASE,
        *,
        maps_ids: bool = True,
        by: str = "4.6",
    ) -> str:
        chain = [definition(tmp_path, sections=sections)]
        machine = build_machine(engine, maps_ids=maps_ids, mksquashfs=by)
        return layer_keys(chain, machine)[0].digest

    assert key() == key(replace(ENGINE, path=Path("/y"), version="1.4.6"))
    assert key() == key(replace(ENGINE, kind=EngineKind.NAMESPACES)), "either has lumiimg make the base"
    others = {
        key(sections=replace(BASE, post="#\n")),
        key(sections=replace(BASE, post="    lumiimg.version 1; touch /x\n")),
        key(sections=replace(BASE, post="    lumiimg.version 2; touch /x\n")),
        key(replace(ENGINE, kind=EngineKind.SINGULARITY)),
    }
    others.add(key(maps_ids=False))  # owners and modes are lost
    others.add(key(by="4.7"))  # the same files are other bytes
    first = definition(tmp_path)
    other = replace(first, sections=Sections(Header("docker", "y")))
    others.add(layer_keys([other, first], build_machine(ENGINE))[1].digest)
    same = key()
    (tmp_path / "tool.c").write_text("int y;")
    others.add(key())
    assert len(others | {same}) == 9
    last = CacheKey({"a": 1})
    assert len({image_key(last, documents) for documents in ({}, {"a": b"1"}, {"a": b"2"})}) == 3


def test_the_key_of_a_base_says_who_made_it_where_its_files_show_that(tmp_path: Path) -> None:
    def key(kind: EngineKind, agent: str, **seen: Any) -> str:
        chain = [definition(tmp_path, sections=Sections(Header(agent, "x", "http://h.test")))]
        return layer_keys(chain, build_machine(replace(ENGINE, kind=kind), **seen))[0].digest

    ours, theirs, real = {"bootstraps": True}, {"bootstraps": False}, EngineKind.APPTAINER
    archive = key(real, "debootstrap", **ours)
    assert archive == key(EngineKind.NAMESPACES, "debootstrap", **ours) == key(real, "debootstrap", **theirs)
    other = EngineKind.SINGULARITY
    assert key(other, "debootstrap", **ours) != key(other, "debootstrap", **theirs), "it writes other labels"
    lost = {"maps_ids": False}
    assert key(real, "docker", **lost) != key(EngineKind.NAMESPACES, "docker", **lost), "it gives all files to root"
    assert key(real, "oras", **lost) == key(EngineKind.NAMESPACES, "oras", **lost)


def keep(
    cache: LayerCache, key: CacheKey, content: bytes = b"data", below: str = "", *, replaces: bool = False
) -> CacheEntry:
    with cache.making(key, print) as folder:
        data = folder / "data.sqfs"
        data.write_bytes(content)
        return cache.keep(key, data, layers=("a",), seconds=1.5, below=below, replaces=replaces)


def test_what_is_kept_is_found_by_its_key_and_by_its_content(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    key = CacheKey({"parent": "p", "definition": "x"})
    one, two = "1" * 64, "2" * 64
    assert cache.find(key, one) is None
    entry = keep(cache, key, below=one)
    assert cache.find(key, one) == entry
    assert entry.data.read_bytes() == b"data"
    # the recipe of what is below changed, and what came out of it did not
    changed_below = CacheKey({"parent": "q", "definition": "x"})
    os.utime(entry.data.with_name("entry.json"), (1000, 1000))
    assert cache.find(changed_below, one) == entry
    assert entry.data.with_name("entry.json").stat().st_mtime > 1000, "it was used just now"
    assert cache.find(changed_below, two) is None
    assert cache.key_of(entry) == {"parent": "p", "definition": "x"}
    assert list(cache.entries()) == [entry]
    assert list(cache.verify()) == []


def test_a_result_is_not_used_over_another_content_than_it_was_built_on(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    key, one, two = CacheKey({"parent": "p"}), "1" * 64, "2" * 64
    keep(cache, key, b"one's", below=one)
    assert cache.find(key, two) is None, "the same recipe below came out differently"
    assert cache.find(key) is None
    other = keep(cache, key, b"two's", below=two)
    assert (cache.find(key, two), other.data.read_bytes()) == (other, b"two's")
    assert cache.find(key, one) is None
    note = other.data.with_name("entry.json")
    document = json.loads(note.read_text())
    del document["below"]
    note.write_text(json.dumps(document))
    assert cache.find(key, two) is None
    assert cache.find(key) is None


def test_entries_that_have_changed_places_are_no_entries(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    keys = [CacheKey({"parent": "p", "layer": name}) for name in "ab"]
    folders = [keep(cache, key, key.parts["layer"].encode(), "1" * 64).data.parent for key in keys]
    notes = sorted((cache.root / "contents").iterdir(), key=lambda note: note.read_text() == keys[0].digest)
    notes[0].write_text(keys[0].digest)
    changed_below = [CacheKey({**key.parts, "parent": "q"}) for key in keys]
    assert [cache.find(key, "1" * 64) is not None for key in changed_below] == [True, False]
    for source, target in ((folders[0], tmp_path / "x"), (folders[1], folders[0]), (tmp_path / "x", folders[1])):
        source.rename(target)
    assert [cache.find(key, "1" * 64) for key in keys] == [None, None]
    assert len(list(cache.verify())) == 2


def test_what_is_kept_makes_way_only_where_it_is_to(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    key = CacheKey({"a": 1})
    keep(cache, key, b"first")
    assert keep(cache, key, b"second").data.read_bytes() == b"first", "who was quicker may be in use"
    assert keep(cache, key, b"second", replaces=True).data.read_bytes() == b"second"
    assert list(cache.verify()) == []


NONSENSE: tuple[dict[str, Any], ...] = (
    {"seconds": float("nan")},
    {"seconds": -1},
    {"seconds": 10**400},
    {"size_bytes": 4.0},
    {"sha256": "x"},
    {"layers": [1]},
    {"below": None},
    {"data": ["data.sqfs"]},
    {"format": 1},
)


def test_an_entry_that_says_nonsense_is_no_entry(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    entry = keep(cache, CacheKey({"a": 1}))
    note = entry.data.with_name("entry.json")
    good = json.loads(note.read_text())
    for changes in NONSENSE:
        note.write_text(json.dumps({**good, **changes}))
        assert cache.find(CacheKey({"a": 1})) is None, changes
    note.write_text("[" * 100_000)
    assert list(cache.entries()) == []
    assert cache.prune(None)[0] == [entry.key]
    assert list((tmp_path / "cache/layers").iterdir()) == []


def test_what_a_build_uses_stays_until_it_ends_and_what_is_damaged_is_not_used(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    good, bad = CacheKey({"a": 1}), CacheKey({"a": 2})
    keep(cache, good)
    spoiled = keep(cache, bad)
    spoiled.data.write_bytes(b"atad")
    told: list[str] = []
    scratch = tmp_path / "cache/work/scratch"
    scratch.mkdir()
    taken = CacheLease(cache, scratch, told.append)
    assert taken.find(bad, "") is None
    assert (told, cache.find(bad)) == (["a: is damaged in the cache, and removed from it"], None)
    held = taken.find(good, "")
    assert held is not None
    cache.prune(0)
    assert list(cache.entries()) == []
    assert held.data.read_bytes() == b"data"
    assert taken.find(good, "") == held


def test_the_lock_of_a_build_that_was_killed_is_swept_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    here = LayerCache(tmp_path / "cache").making(CacheKey({"a": 1}), print)
    with here, subprocess.Popen(["true"]) as gone:
        mine = next((tmp_path / "cache/locks").iterdir())
        left = mine.with_name("0" * 64)
        gone_owner = json.loads((mine / "owner.json").read_text()) | {"pid": gone.pid, "started": 1}
        gone.wait()
        left.mkdir()
        (left / "owner.json").write_text(json.dumps(gone_owner))
        cache.sweep()
        assert [lock.name for lock in mine.parent.iterdir()] == [mine.name]


def test_what_a_killed_removal_left_is_pruned(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    entry = keep(cache, CacheKey({"a": 1}))
    left = tmp_path / f"cache/.{'0' * 64}.4711"
    left.mkdir()
    (left / "data.sqfs").write_bytes(b"x")
    cache.prune(None)
    assert not left.exists()
    assert list(cache.entries()) == [entry]


@pytest.mark.parametrize("damage", ["shorter", "no entry", "no data", "older format", "garbage", "content"])
def test_a_damaged_entry_is_no_entry_and_makes_way(tmp_path: Path, damage: str) -> None:
    cache = LayerCache(tmp_path / "cache")
    key = CacheKey({"definition": "x"})
    entry = keep(cache, key)
    note = entry.data.with_name("entry.json")
    match damage:
        case "shorter":
            entry.data.write_bytes(b"dat")
        case "no entry":
            note.unlink()
        case "no data":
            entry.data.unlink()
        case "older format":
            note.write_text(note.read_text().replace('"format": 2', '"format": 1'))
        case "garbage":
            note.write_bytes(b"\xff\x00[")
        case "content":
            entry.data.write_bytes(b"atad")
    assert [wrong for wrong, _ in cache.verify()] == [key.digest]
    if damage != "content":  # which only reading all of it shows
        assert cache.find(key) is None
        assert keep(cache, key, b"anew").data.read_bytes() == b"anew"
        assert list(cache.verify()) == []


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with (
        pytest.raises(FailedError, match="cannot be written"),
        LayerCache(tmp_path / "cache").making(CacheKey({}), print),
    ):
        pass


def _hold(root: Path, ready: object, go_on: object) -> None:
    with LayerCache(root).making(CacheKey({"a": 1}), print):
        ready.set()  # type: ignore[attr-defined]
        go_on.wait(30)  # type: ignore[attr-defined]


def test_a_second_build_waits_and_a_dead_one_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_WAIT_S", 0.01)
    context = multiprocessing.get_context("spawn")
    ready, go_on = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, ready, go_on))
    other.start()
    assert ready.wait(30)
    told: list[str] = []

    def waiting(line: str) -> None:
        told.append(line)
        other.kill()  # it never gets to the end

    with LayerCache(tmp_path).making(CacheKey({"a": 1}), waiting) as folder:
        assert folder.is_dir()
    other.join()
    assert len(told) == 1
    assert f"process {other.pid} on " in told[0]
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_heartbeat_of_another_machine_is_watched_not_dated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_WAIT_S", 0.01)
    monkeypatch.setattr(caches, "_STILL_S", 0.2)
    key = CacheKey({"a": 1})
    lock = tmp_path / "locks" / key.digest
    lock.mkdir(parents=True)
    beats = iter(range(1, 1000))

    def beat(_line: str = "") -> None:
        owner = {"host": "nid001234", "pid": 1, "job": "77", "beat": next(beats)}
        (lock / "owner.json").write_text(json.dumps(owner))
        os.utime(lock / "owner.json", (10**10, 10**10))  # a clock that is wrong by centuries

    beat()
    told: list[str] = []
    start = time.monotonic()
    with LayerCache(tmp_path).making(key, told.append):
        assert time.monotonic() - start >= 0.2
    assert "process 1 on nid001234, job 77" in told[0]


def test_a_heartbeat_that_stands_still_is_stale_whatever_lives_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "_WAIT_S", 0.01)
    monkeypatch.setattr(caches, "_STILL_S", 0.2)
    key = CacheKey({"a": 1})
    lock = tmp_path / "locks" / key.digest
    lock.mkdir(parents=True)
    (lock / "owner.json").write_text(json.dumps({**asdict(this_process()), "beat": 7, "word": "x"}))
    start = time.monotonic()
    with LayerCache(tmp_path).making(key, print):
        assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize(("changes", "is_waited_for"), [({"started": 1}, False), ({"place": "f" * 12}, True)])
def test_a_number_is_believed_only_of_this_boot_and_namespace(
    changes: dict[str, object], is_waited_for: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a process that lives may be used anew; that of a process elsewhere tells nothing here."""
    monkeypatch.setattr(caches, "_WAIT_S", 0.01)
    monkeypatch.setattr(caches, "_STILL_S", 0.2)
    key = CacheKey({"a": 1})
    lock = tmp_path / "locks" / key.digest
    lock.mkdir(parents=True)
    gone = {"pid": 4194999} if is_waited_for else {}
    (lock / "owner.json").write_text(json.dumps({**asdict(this_process()), **gone, **changes, "beat": 0}))
    told: list[str] = []
    with LayerCache(tmp_path).making(key, told.append):
        pass
    assert bool(told) == is_waited_for


def test_who_lost_a_lock_leaves_it_to_its_new_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was taken between a look at whose it is and the next beat: each of hundreds finds another's."""
    monkeypatch.setattr(caches, "_BEAT_S", 0.0001)
    key = CacheKey({"a": 1})
    lock = tmp_path / "locks" / key.digest
    theirs = json.dumps({**asdict(this_process()), "beat": 0, "word": "theirs"})
    with LayerCache(tmp_path).making(key, print):
        for number in range(300):
            lock.rename(tmp_path / f"{number}")  # as who takes it for stale does
            lock.mkdir()
            (lock / "owner.json").write_text(theirs)
            shutil.rmtree(tmp_path / f"{number}", ignore_errors=True)  # a beat may come in between
            assert (lock / "owner.json").read_text() == theirs
    assert [path.name for path in lock.iterdir()] == ["owner.json"]
    assert (lock / "owner.json").read_text() == theirs


def test_who_is_too_late_to_take_a_lock_for_stale_puts_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_WAIT_S", 0.01)
    monkeypatch.setattr(caches, "_STILL_S", 0.2)
    key = CacheKey({"a": 1})
    lock = tmp_path / "locks" / key.digest
    lock.mkdir(parents=True)
    gone, beats = {**asdict(this_process()), "pid": 4194999}, iter(range(1000))
    (lock / "owner.json").write_text(json.dumps(gone))

    def is_gone(_: object) -> bool:
        """Have another process take it at the last moment, for a while."""
        beat = min(next(beats), 50)
        (lock / "owner.json").write_text(json.dumps({**asdict(this_process()), "word": "theirs", "beat": beat}))
        return beat < 50

    monkeypatch.setattr(caches, "_is_gone", is_gone)
    told: list[str] = []
    start = time.monotonic()
    with LayerCache(tmp_path).making(key, told.append):
        assert next(beats) > 50, "it was left to the other while that lived"
        assert time.monotonic() - start > 0.2


def test_a_base_that_is_a_file_or_a_folder_here_counts_by_what_it_is_now(tmp_path: Path) -> None:
    image, folder = tmp_path / "base.sif", tmp_path / "box"
    image.write_bytes(b"one")
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/x").write_text("1")
    for origin, touched in ((image, image), (folder, folder / "etc/x")):

        def key(origin: Path = origin) -> str:
            return layer_keys([replace(definition(tmp_path), origin=origin)], build_machine(ENGINE))[0].digest

        before = key()
        assert key() == before
        seen = touched.stat()
        touched.write_bytes(b"two"[: seen.st_size])
        os.utime(touched, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # it looks as old as before
        assert key() != before


def test_an_old_mksquashfs_is_given_no_option_that_it_does_not_know(tmp_path: Path) -> None:
    needs("mksquashfs")
    old = tmp_path / "mksquashfs"  # a stand-in for 4.5.1, of Debian 12
    old.write_text(
        "#!/bin/sh\ncase $* in *-xattrs-exclude*) echo 'mksquashfs: invalid option'; exit 1;; esac\n"
        f'exec {shutil.which("mksquashfs")} "$@"\n'
    )
    old.chmod(0o755)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("text")
    for version, works in (("4.5.1", True), ("4.6", False)):
        seen = (CapabilityTrial("mksquashfs", works=True, said=version),)
        machine = BuildMachine(ENGINE, True, True, True, old, None, None, None, seen)
        with nullcontext() if works else pytest.raises(FailedError, match="invalid option"):
            squash(
                machine,
                tmp_path / "root",
                tmp_path / version,
                within=lambda argv: process.run(argv, env=dict(os.environ)),
            )
        assert (tmp_path / version).is_file() is works
    assert can_weave([tmp_path / "4.5.1"]), "it is gzip, in blocks of 128 KiB"


def test_what_needs_root_is_run_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    none = BuildMachine(ENGINE, True, True, True, None, None, None, None, ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert none.as_root(["ls"]) == [*namespaces.PROGRAM, "root", "ls"]
    assert none.as_root(["ls"], mount=True) == [*namespaces.PROGRAM, "root", OWN_MOUNTS, "ls"]
    assert replace(none, maps_ids=False).as_root(["ls"], mount=True) == ["ls"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert none.as_root(["ls"]) == ["ls"]
    assert none.as_root(["ls"], mount=True) == [*namespaces.PROGRAM, "root", OWN_MOUNTS, "ls"]


def test_the_first_way_that_works_is_taken_and_the_others_are_told() -> None:
    here = Path("/usr/bin/x")
    whole = BuildMachine(ENGINE, True, True, True, here, here, here, None, ())
    assert choose_way(whole, None) == ("overlay", "the quickest")
    way, why = choose_way(replace(whole, maps_ids=False), None)
    assert (way, "no user namespace" in why) == ("sandbox", True)
    assert choose_way(whole, "sandbox")[0] == "sandbox"
    with pytest.raises(MissingHereError, match="no FUSE"):
        choose_way(replace(whole, fuse=False), "overlay")
    assert choose_way(replace(whole, mksquashfs=None, unsquashfs=None), None)[0] == "overlay", "lumiimg packs itself"
    with pytest.raises(MissingHereError, match="unsquashfs is not on PATH"):
        choose_way(replace(whole, fuse=False, unsquashfs=None), None)


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
        document = json.loads(bill(opened.root, [source], "x"))
        assert bill(opened.root, [source], "x") == bill(opened.root, [source], "x")
    found = {(one["name"], one["version"]): one for one in document["components"]}
    assert ("debian", "13") in found
    assert found["libc6", "2.41-12"]["purl"] == "pkg:deb/libc6@2.41-12"
    assert found["torch", "2.9.1+rocm6.4"]["purl"] == "pkg:pypi/torch@2.9.1%2Brocm6.4"
    assert found["plugin", ""]["hashes"][0]["content"] == "1" * 64
    assert not any(name == "gone" for name, _ in found)


def left_out(root: RootFileSystem) -> list[str]:
    """What a bill says that it does not have."""
    metadata = json.loads(bill(root, [], "x"))["metadata"]
    assert all(one["name"] == "lumiimg:incomplete" for one in metadata.get("properties", []))
    return [one["value"] for one in metadata.get("properties", [])]


def test_a_bill_that_is_cut_short_says_so(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (base / f"opt/{number}/inner").mkdir(parents=True)
    (base / "opt/venv/site-packages/one-1.dist-info").mkdir(parents=True)
    (base / "opt/venv/site-packages/two-2.dist-info").mkdir()
    (base / "var/lib/dpkg").mkdir(parents=True)
    (base / "var/lib/dpkg/status").write_text("Package: libc6\nStatus: install ok installed\nVersion: 2.41-12\n")
    with open_image(base) as opened:
        assert left_out(opened.root) == []
        for limit, value in (("_MAX_FOLDERS", 30), ("_MAX_DISTRIBUTIONS", 1)):
            with monkeypatch.context() as patch:
                patch.setattr(f"lumiimg.build.sbom.{limit}", value)
                assert left_out(opened.root) == ["too many folders: not all were searched"]
        monkeypatch.setattr("lumiimg.image.dpkg._STATUS_LIMIT_BYTES", 10)
        assert left_out(opened.root) == ["packages of dpkg are not listed: its status file cannot be read"]


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("usr/lib/sysimage/rpm/rpmdb.sqlite", "rpm"),
        ("usr/lib/sysimage/rpm/Packages.db", "rpm"),
        ("var/lib/rpm/Packages", "rpm"),
        ("lib/apk/db/installed", "apk"),
        ("usr/lib/apk/db/installed", "apk"),
    ],
)
def test_the_bill_of_a_system_whose_packages_cannot_be_listed_says_so(name: str, tool: str, base: Path) -> None:
    (base / name).parent.mkdir(parents=True)
    (base / name).with_name(".rpm.lock").touch()
    with open_image(base) as opened:
        assert left_out(opened.root) == [], "nothing is installed"
        (base / name).touch()
        assert left_out(opened.root) == [f"packages of {tool} are not listed"]


def test_a_database_of_packages_under_two_names_is_told_once(base: Path) -> None:
    (base / "usr/lib/sysimage/rpm").mkdir(parents=True)
    (base / "usr/lib/sysimage/rpm/Packages.db").touch()
    (base / "var/lib").mkdir(parents=True)
    (base / "var/lib/rpm").symlink_to("../../usr/lib/sysimage/rpm")
    for environment in ("opt/conda", "opt/conda/envs/py_3.12"):
        (base / environment / "conda-meta").mkdir(parents=True)
    with open_image(base) as opened:
        assert left_out(opened.root) == [
            "packages of rpm are not listed",
            "packages of conda are not listed, but for Python distributions",
        ]


def test_a_database_of_packages_that_cannot_be_looked_into_is_not_taken_for_none() -> None:
    class Damaged(RootFileSystem):
        """A stand-in for an image, one of whose folders is damaged."""

        def list_dir(self, path: str) -> tuple[DirectoryEntry, ...]:
            if path == "/var/lib/rpm":
                raise ImageError("a directory of 0 bytes", where=path)
            return super().list_dir(path)

    tree: Any = Endless()
    assert left_out(Damaged(tree)) == ["packages of rpm are not listed"]


class Endless:
    """The tree of a hostile squashfs: each folder is the one that it is in."""

    def __init__(self) -> None:
        self.root = SimpleNamespace(kind=FileKind.DIRECTORY)
        self.looked = 0

    def child(self, directory: Any, name: str) -> Any:
        return directory if name in {"usr", "lib"} or name.isdigit() else None

    def entries(self, _: Any) -> Iterator[DirectoryEntry]:
        self.looked += 1
        assert self.looked < 100
        yield from (DirectoryEntry(f"{number}", FileKind.DIRECTORY) for number in range(8))

    def stat(self, _: Any) -> FileStat:
        return FileStat(FileKind.DIRECTORY, 0o755, 0, 0, 0, 0, 1, identity=1)


def test_a_folder_that_is_in_itself_is_looked_into_once() -> None:
    tree: Any = Endless()
    document = json.loads(bill(RootFileSystem(tree), [], "x"))
    assert [one["type"] for one in document["components"]] == ["operating-system"]
    assert tree.looked == 1


# what is told while it runs


def test_a_silent_step_shows_that_it_lives(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress(alive_every_s=0.05)
    progress.begin(["01-a", "image"])
    progress.step_started("01-a", 59.0)
    progress.line("compiling x\x1b[2J")
    deadline = time.monotonic() + 10
    told = ""
    while "so far" not in told and time.monotonic() < deadline:
        time.sleep(0.05)
        told += capsys.readouterr().err
    progress.step_done(BuildStage("01-a", 61.0, 120.0, 5 << 20, reused=False))
    progress.stop()
    told += capsys.readouterr().err
    assert "[1/2] 01-a (59.0 s the last time)" in told
    assert r"      > compiling x\x1b[2J" in told
    assert "cpu 2 min" in told
    progress.step_started("image")
    time.sleep(0.2)
    assert "so far" not in capsys.readouterr().err, "it was stopped"


def test_a_terminal_shows_what_a_step_took_the_last_time_and_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    progress = TerminalProgress()
    progress.begin(["01-a", "image"])
    progress.step_started("01-a", 59.0)
    progress.line("I: Extracting dpkg...")
    progress.stop()
    assert "s of 59.0 s the last time" in screen.getvalue()
    assert "I: Extracting dpkg..." in screen.getvalue()


def test_what_a_layer_took_the_last_time_is_that_of_its_newest_result(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    for number, (layers, seconds) in enumerate(((("a",), 9.0), (("a",), 2.0), (("a", "b"), 5.0))):
        data = tmp_path / f"{number}.sqfs"
        data.write_bytes(b"x")
        os.utime(data, (100 + number, 100 + number))
        cache.keep(CacheKey({"number": number}), data, layers=layers, seconds=seconds)
    assert cache.seconds() == {("a",): 2.0, ("a", "b"): 5.0}


def test_a_layer_keeps_what_it_compiled_whatever_lies_between(tmp_path: Path) -> None:
    base = definition(tmp_path)
    torch = replace(base, name="02-torch", layers=("torch",), parent="01-a", sections=replace(BASE, post="1\n"))
    other = replace(torch, name="03-other", layers=("other",), sections=replace(BASE, post="2\n"))
    vllm = replace(torch, layers=("vllm",), sections=replace(BASE, post="3\n"), needs=("02-torch",))
    key = kept_key([base, torch, replace(vllm, name="03-vllm")], 2, "b").digest
    assert kept_key([base, torch, other, replace(vllm, name="04-vllm")], 3, "b").digest == key
    assert kept_key([base, torch, replace(vllm, name="03-vllm")], 2, "c").digest != key, "the base came out differently"
    changed = replace(torch, sections=replace(BASE, post="5\n"))
    assert kept_key([base, changed, replace(vllm, name="03-vllm")], 2, "b").digest != key
    assert (
        kept_key(
            [replace(base, sections=Sections(Header("docker", "y"))), torch, replace(vllm, name="03-vllm")], 2, "b"
        ).digest
        != key
    )


def test_what_a_layer_compiles_depends_on_the_environment_that_all_below_set(tmp_path: Path) -> None:
    base = definition(tmp_path)
    script = replace(BASE, post="true\n")

    def key(*exports: tuple[str, str] | None) -> str:
        chain = [base]
        for number, variable in enumerate(exports, start=2):
            sections = replace(script, environment=(variable,) if variable else ())
            chain.append(replace(base, name=f"0{number}-x", parent="01-a", sections=sections))
        vllm = replace(base, name="09-vllm", parent="01-a", sections=script)
        return kept_key([*chain, vllm], len(chain), "b").digest

    a, other, b = ("A", "1"), ("A", "2"), ("B", "2")
    assert key(a, None, b) == key(b, a)
    assert len({key(a), key(other), key(), key(a, other), key(other, a)}) == 5


def kept_by(cache: LayerCache, folder: Path, script: Callable[[Path], None]) -> list[str]:
    """What is told of a run of a stand-in for a script, which has one folder."""
    told: list[str] = []
    shutil.rmtree(folder, ignore_errors=True)
    with keeping(cache, CacheKey({"kept": 1}), ("vllm",), folder, told.append):
        script(folder)
    return told


def test_what_a_later_run_compiles_is_kept_too_and_what_it_takes_out_is_gone(tmp_path: Path) -> None:
    cache, folder = LayerCache(tmp_path / "cache"), tmp_path / "kept"
    seen: list[dict[str, str]] = []

    def compiles(name: str, text: str) -> Callable[[Path], None]:
        def script(kept: Path) -> None:
            seen.append({path.name: path.read_text() for path in kept.glob("*")})
            kept.mkdir(exist_ok=True)
            (kept / name).write_text(text)

        return script

    assert kept_by(cache, folder, compiles("a", "1")) == []
    kept_by(cache, folder, compiles("b", "2"))
    kept_by(cache, folder, compiles("a", "3"))
    assert kept_by(cache, folder, compiles("a", "3")) == ["vllm: compile cache kept, 10 KiB"]
    assert seen == [{}, {"a": "1"}, {"a": "1", "b": "2"}, {"a": "3", "b": "2"}]
    kept_by(cache, folder, shutil.rmtree)
    assert cache.find(CacheKey({"kept": 1})) is not None, "the script did not come to its end"

    def takes_out(kept: Path) -> None:
        shutil.rmtree(kept)
        kept.mkdir()

    kept_by(cache, folder, takes_out)
    assert cache.find(CacheKey({"kept": 1})) is None


class Stand(Strategy):
    """A stand-in for a way to build, whose layers are another each time, and say what they were built on."""

    def __init__(self, cache: LayerCache) -> None:
        self.cache = cache
        self.built: list[str] = []
        self.prunes = False

    def base(self, step: LayerBuild, target: Path, _store: object = None) -> None:
        self.built.append(step.definition.name)
        target.write_text(f"{step.definition.name} {time.monotonic_ns()}\n")

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        if self.prunes:
            self.cache.prune(0)
        self.base(step, target)
        target.write_text("".join(path.read_text() for path in below[-1:]) + target.read_text())


def on(parent: str) -> Sections:
    return Sections(Header("localimage", f"{parent}.sif"))


def run(root: Path, *, prunes: bool = False) -> tuple[list[str], str, str]:
    """Build a base and two layers by the stand-in; return what was built, what the top says, and what was told."""
    stand = Stand(LayerCache(root / "cache"))
    stand.prunes = prunes
    told: list[str] = []
    progress = LineProgress()
    progress.notice = told.append  # type: ignore[method-assign, assignment]
    base = definition(root, "01-base", layers=("base",))
    lower = replace(base, name="02-lower", layers=("lower",), parent="01-base", sections=on("01-base"))
    upper = replace(lower, name="03-upper", layers=("upper",), parent="02-lower", sections=on("02-lower"))
    chain = [base, lower, upper]
    keys = layer_keys(chain, build_machine(ENGINE))
    downloads = Store(root / "store", Web(), Mirrors({}))
    with (root / "log").open("wb") as log, scratch_folder(root / "cache/work") as scratch:
        work = builder._Work(stand.cache, None, {}, downloads, log, progress, scratch, "overlay")  # type: ignore[arg-type]
        layers, _ = work.layers(chain, keys, stand)
        progress.stop()
        texts = [path.read_text() for path in layers]
    assert "".join(texts[2].splitlines(keepends=True)[:-1]) == texts[1], "it lies over what it was built on"
    return stand.built, texts[2], "\n".join(told)


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


def test_an_upper_layer_that_was_carried_alone_is_not_used_over_another_lower_one(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for root in (here, there):
        root.mkdir()
        (root / "tool.c").write_text("int x;")
    run(here)
    upper = entry(here, "upper").key
    shutil.copytree(here / "cache/layers" / upper, there / "cache/layers" / upper)
    assert run(there)[0] == ["01-base", "02-lower", "03-upper"]
    shutil.rmtree(there / "cache")
    shutil.copytree(here / "cache/layers", there / "cache/layers")
    assert run(there)[0] == []


@pytest.mark.threat
def test_a_damaged_layer_is_built_again_and_that_is_told(tmp_path: Path) -> None:
    run(tmp_path)
    spoiled = entry(tmp_path, "lower").data
    data = spoiled.read_bytes()
    spoiled.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    built, _, told = run(tmp_path)
    assert built == ["02-lower", "03-upper"]
    assert told == "lower: is damaged in the cache, and removed from it"


@pytest.mark.parametrize("why", ["another boot", "old", "of the future"])
@pytest.mark.threat
def test_an_entry_is_read_where_it_is_old_or_of_another_boot(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that lost bytes changes no time: only who reads them sees it."""
    run(tmp_path)
    spoiled = entry(tmp_path, "lower").data
    seen = spoiled.stat()
    data = spoiled.read_bytes()
    spoiled.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    os.utime(spoiled, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    (tmp_path / "boot").write_text("another")
    if why == "another boot":
        monkeypatch.setattr(caches, "_BOOT", tmp_path / "boot")
    else:
        now, by_s = time.time(), 8 * 86400 if why == "old" else -86400
        monkeypatch.setattr(caches, "time", SimpleNamespace(time=lambda: now + by_s, monotonic=time.monotonic))
    assert run(tmp_path)[0] == ["02-lower", "03-upper"]


def test_what_was_read_is_known_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(caches, "_BOOT", tmp_path / "boot")
    read: list[Path] = []
    digest_of = caches.file_sha256  # type: ignore[attr-defined]

    def noted(path: Path) -> str:
        read.append(path)
        return str(digest_of(path))

    monkeypatch.setattr(caches, "file_sha256", noted)
    assert run(tmp_path)[0] == []
    assert len(read) == 3
    assert run(tmp_path)[0] == []
    assert len(read) == 3


def test_all_of_an_entry_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    fsync, key = os.fsync, CacheKey({"a": 1})
    place = tmp_path / "cache" / "layers" / key.digest

    def noted(file: int) -> None:
        synced.append((Path(f"/proc/self/fd/{file}").readlink().name, place.exists()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    (tmp_path / "data.sqfs").write_bytes(b"x")
    LayerCache(tmp_path / "cache").keep(key, tmp_path / "data.sqfs", layers=("a",), seconds=1)
    assert {name for name, there in synced if not there} >= {"data.sqfs", "key.json", "entry.json"}
    assert ("layers", True) in synced


def test_pruning_while_a_build_runs_takes_nothing_from_it(tmp_path: Path) -> None:
    assert run(tmp_path, prunes=True)[0] == ["01-base", "02-lower", "03-upper"]


@pytest.mark.parametrize("spoil", ["no tar", "sparse", "packed"])
def test_what_was_kept_and_cannot_be_unpacked_is_compiled_again(spoil: str, tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache")
    with cache.making(CacheKey({"kept": 1}), print) as work:
        bad = work / "data.tar"
        bad.write_bytes(b"no tar")
        if spoil != "no tar":
            (work / "zeros").write_bytes(b"" if spoil == "sparse" else bytes(1 << 20))
            with (work / "zeros").open("r+b") as file:
                file.truncate(1 << 20)
            words = ["--sparse"] if spoil == "sparse" else ["--gzip"]
            subprocess.run(["tar", "-C", work, *words, "-cf", bad, "zeros"], check=True)
        cache.keep(CacheKey({"kept": 1}), bad, layers=("vllm (compiled)",), seconds=0.0)
    seen: list[bool] = []
    told = kept_by(cache, tmp_path / "kept", lambda kept: seen.append(kept.exists()))
    assert (seen, len(told)) == ([False], 1)
    assert "cannot be unpacked, so everything is compiled again" in told[0]
    assert list(cache.entries()) == []


def test_another_lumiimg_that_writes_the_same_builds_nothing_again(tmp_path: Path) -> None:
    written = [
        replace(BASE, labels=(("lumiimg.version", version), ("lumiimg.layer.01", "a")), version=version)
        for version in ("0.1.0", "0.2.0")
    ]
    keys = {
        layer_keys([definition(tmp_path, sections=sections)], build_machine(ENGINE))[0].digest for sections in written
    }
    assert len(keys) == 1


def test_what_a_script_kept_is_put_where_the_image_has_that_path(tmp_path: Path) -> None:
    below = tmp_path / "below"
    (below / "data").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (below / "opt").symlink_to("/data")
    (below / "data" / "lumiimg").symlink_to(f"../../..{outside}")
    machine = BuildMachine(ENGINE, True, True, True, None, None, None, None, ())
    step = LayerBuild(machine, {}, definition(tmp_path), tmp_path / "step", io.BytesIO(), print)
    (step.folder / "files/a").mkdir(parents=True)
    (step.folder / "files/a/tool.c").write_text("int x;")
    upper = tmp_path / "upper"
    upper.mkdir()
    with open_image(below) as image, step.placed(upper, image.root) as argv:
        assert argv == ["/bin/bash", "/.post.script"]
    assert (upper / "data/lumiimg/build/a/tool.c").is_file()
    assert not (upper / "opt").exists(), "it would hide the link"
    with open_image(below) as image, pytest.raises(FailedError, match="is a link in the image"):  # noqa: SIM117
        with step.placed(below, image.root):
            pass
    assert list(outside.rglob("*")) == []


class Scripts:
    """A stand-in for a way to build: a result is the script, which fails where it is `false`, and compiles once."""

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
        self.did.append(step.definition.name + ("" if step.kept.exists() else " compiles"))
        step.kept.mkdir(exist_ok=True)
        (step.kept / "x.whl").write_text("x")
        target.write_text(post)


def test_a_base_whose_script_fails_or_is_changed_is_not_bootstrapped_again(tmp_path: Path) -> None:
    machine = build_machine(ENGINE)
    store: Any = SimpleNamespace(has=bool, sources=lambda *_: {})

    def build(script: str) -> list[str]:
        """Return what was done."""
        base = definition(tmp_path, "01-a", sections=replace(BASE, post=script), files=())
        above = replace(base, name="02-b", layers=("b",), parent="01-a", sections=replace(on("01-a"), post="make\n"))
        steps = steps_of([base, above], machine)
        scripts = Scripts()
        way: Any = scripts
        cache = LayerCache(tmp_path / "cache")
        with (tmp_path / "log").open("wb") as log, scratch_folder(tmp_path / "cache/work") as scratch:
            work = builder._Work(cache, machine, {}, store, log, Progress(), scratch, "overlay")
            with suppress(FailedError):
                work.layers(steps, layer_keys(steps, machine), way)
        return scripts.did

    assert build("false\n") == ["00-bootstrap"], "no layer is tried on a base that failed"
    assert build("true\n") == ["01-a compiles", "02-b compiles"]
    assert {entry.layers for entry in LayerCache(tmp_path / "cache").entries()} >= {("a (bootstrap)",), ("a",), ("b",)}
    assert build("true\n") == []
    assert build("true other\n") == ["01-a compiles", "02-b compiles"], "what was compiled on another base is not taken"


def test_a_base_is_bootstrapped_apart_only_where_lumiimg_makes_it(tmp_path: Path) -> None:
    def steps(machine: BuildMachine) -> list[str]:
        return [step.name for step in steps_of([definition(tmp_path)], machine)]

    assert steps(build_machine(ENGINE)) == ["00-bootstrap", "01-a"]
    assert steps(build_machine(ENGINE, maps_ids=False)) == ["01-a"]
