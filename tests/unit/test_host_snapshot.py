"""A snapshot: its file is read back unchanged and is harmless, and it serves as a root with the machine's libraries."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.core.decode import DecodeError
from lumiimg.core.errors import BadInputError, FailedError
from lumiimg.elf import facts_at
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import HostFiles, read_snapshot, snapshot_text, write_snapshot
from lumiimg.image import FileKind, FolderTree, RootFileSystem
from tests.shared.elf_builder import library, rpath
from tests.shared.lumi_node import ENVIRONMENT, LIBFABRIC, make_host

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot


def scan(node: Path, environment: dict[str, str] = ENVIRONMENT) -> Snapshot:
    include = (Path("/opt/site/bin/libodd.so"),)
    return scan_host(environment, root=RootFileSystem(FolderTree(node)), include=include)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_host(tmp_path_factory.mktemp("host"))
    # a library whose path goes through a directory with no recorded content, and one with an element of the host
    (root / "opt/site/share").mkdir(parents=True)
    dependency = library(root / "opt/site/lib/libdep.so", source="int g;")
    library(root / "opt/site/bin/libodd.so", dependency, *rpath("$ORIGIN/../share/../lib"), source="int f;")
    return root


@pytest.fixture(scope="module")
def good(node: Path) -> Snapshot:
    return scan(node)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("file") / "host.json"


def test_the_same_node_gives_the_same_bytes_and_they_come_back_whole(node: Path, good: Snapshot, target: Path) -> None:
    again = scan(node, dict(reversed(ENVIRONMENT.items())))
    assert snapshot_text(replace(again, taken=good.taken)) == snapshot_text(good)
    write_snapshot(good, target)
    assert read_snapshot(target) == good
    data = {**json.loads(snapshot_text(good)), "later": {"x": 1}}  # a key that is not known is passed over
    data["libraries"][0]["later"] = None
    target.write_text(json.dumps(data))
    assert read_snapshot(target) == good
    assert "runpath" not in data["libraries"][0]["facts"], "what is empty is not written"


def test_a_file_is_replaced_at_once_or_not_at_all(
    good: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "host.json"
    file.write_text("before")
    link = tmp_path / "link.json"
    link.symlink_to(file)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _no_room)
        with pytest.raises(FailedError, match="cannot be written: no room"):
            write_snapshot(good, link)
    assert file.read_text() == "before"
    write_snapshot(good, link)
    assert link.is_symlink()
    assert read_snapshot(file) == good
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host.json", "link.json"]
    for name in ("", "/dev/null"):
        with pytest.raises(BadInputError, match="is not a file"):
            write_snapshot(good, tmp_path / name)
    with pytest.raises(FailedError, match="No such file or directory"):
        write_snapshot(good, tmp_path / "nowhere/host.json")


def _no_room(*_: object) -> None:
    raise OSError(28, "no room")


NO_SNAPSHOTS = [
    (b"", "is cut off, or not JSON"),
    (b"[]", "is not a host snapshot"),
    (b'{"schema": true}', "is not a host snapshot"),
    (b'{"schema": 2}', r"newer lumiimg \(schema 2, this one reads 1\); update lumiimg"),
    (b'{"schema": 1}', "key 'taken' is missing"),
]


@pytest.mark.threat
def test_a_file_that_is_no_snapshot_is_reported_in_one_line(target: Path) -> None:
    for data, words in NO_SNAPSHOTS:
        target.write_bytes(data)
        with pytest.raises(DecodeError, match=words) as caught:
            read_snapshot(target)
        assert "\n" not in str(caught.value)


_PATHS = ["relative", "/a/../b", "/a//b", "/a/", "/", "", "/a\0b", "/" + "x" * 300, "/x" * 3000, "/\ud800"]
# the fuzz target of snapshots has the rest
WRONG: list[tuple[Any, str]] = [
    (lambda d: d.update(entries=d["entries"][:1] * 5000), "entries"),
    (
        lambda d: d.update(directories=[f"/{n}{'/x' * 2000}" for n in range(99)]),
        "is recorded twice, lies below a file, or exceeds the limit",
    ),
    (lambda d: d.update(taken="some day"), "taken"),
    (lambda d: d.update(glibc="2." + "9" * 5000), "glibc"),
    (lambda d: d["entries"][0].update(path="/nowhere"), r"entries\[0\].path"),
    (lambda d: d["links"].update({"/usr/lib64/libcxi.so.1": "libcxi.so.1"}), r"entries\[\d\].path"),
    (lambda d: d["libraries"][0].update(sha256="A" * 64), r"libraries\[0\].sha256"),
    (lambda d: d["libraries"][0].update(size_bytes=2**64), r"libraries\[0\].size_bytes"),
    (lambda d: d["libraries"].append(d["libraries"][0]), "is recorded twice"),
    (lambda d: d["links"].update({d["libraries"][0]["path"] + "/x": "x"}), "lies below a file"),
    (lambda d: d.update(directories=[next(iter(d["links"]))]), "is recorded twice"),
    *((lambda d, p=p: d["libraries"][0].update(path=p), r"libraries\[0\].path") for p in _PATHS),
    *((lambda d, p=p: d["links"].update({p: "x"}), "links") for p in _PATHS),
    (lambda d: d["links"].update({"/x": "/\ud800"}), "links./x"),
    (lambda d: d["entries"][0]["closure"].update({"x": "/\ud800"}), r"entries\[0\].closure.x"),
]


@pytest.mark.threat
def test_a_wrong_value_is_reported_with_its_key(good: Snapshot, target: Path) -> None:
    for change, key in WRONG:
        data = json.loads(snapshot_text(good))
        change(data)
        target.write_text(json.dumps(data))
        with pytest.raises(DecodeError, match=rf"host.json: (key '.*|/.*){key}") as caught:
            read_snapshot(target)
        assert len(str(caught.value)) < 600


@pytest.mark.threat
def test_a_file_without_end_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumiimg.host.snapshot.MAX_FILE_BYTES", 10)
    target.write_bytes(b" " * 11)
    with pytest.raises(DecodeError, match="larger than 10 bytes"):
        read_snapshot(target)
    os.mkfifo(target.with_name("pipe"))
    for name, words in (
        ("pipe", "is not a file"),
        ("none", "No such file or directory; take a new one"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(DecodeError, match=words):
            read_snapshot(target.with_name(name))


# -- as a root file system --


def test_every_closure_leads_to_libraries_with_the_facts_of_the_real_ones(good: Snapshot, node: Path) -> None:
    assert {entry.role for entry in good.entries} >= {"libfabric", "libcxi", "net-plugin", "other"}
    # a path that leads through a directory and out again is unchanged
    assert good.directories == ("/opt/site/share",)
    assert good.entries[-1].closure["libdep.so"] == "/opt/site/bin/../share/../lib/libdep.so"
    host, real = HostFiles(good), RootFileSystem(FolderTree(node))
    for path in (path for entry in good.entries for path in (entry.path, *entry.closure.values())):
        recorded = host.library(path)
        assert recorded is not None
        assert path is not None
        assert recorded.facts == facts_at(real, path)


def test_links_and_directories_are_as_on_the_host(good: Snapshot) -> None:
    host = HostFiles(good)
    root = host.root
    assert root.resolve(LIBFABRIC) == f"{LIBFABRIC}.27.0"
    assert root.readlink(LIBFABRIC) == "libfabric.so.1.27.0"
    assert [entry.name for entry in root.list_dir("/opt/cray/libfabric")] == ["1.15.2.0", "1.22.0"]
    assert root.stat("/opt/cray").kind is FileKind.DIRECTORY
    fabric = host.library(LIBFABRIC)
    assert fabric is not None
    assert fabric.path == f"{LIBFABRIC}.27.0"
    assert host.library("/opt/cray") is host.library(None) is None
    assert root.stat(LIBFABRIC).size_bytes == fabric.size_bytes
    files = {path for path, kind in root.walk() if kind is FileKind.FILE}
    assert files == {recorded.path for recorded in good.libraries}
