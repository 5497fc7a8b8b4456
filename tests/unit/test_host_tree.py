"""A snapshot answers like the machine that it is of: the loader model says the same over the one and over the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.elf.files import Files
from lumiimg.elf.loader import Process
from lumiimg.elf.objects import FoundBy
from lumiimg.elf.reader import ElfError, Native
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot_file import read_snapshot, write_snapshot
from lumiimg.host.snapshot_tree import HostFiles, SnapshotTree
from lumiimg.image import RootFileSystem
from lumiimg.image.folder import FolderTree
from lumiimg.image.tree import FileKind, ImageError
from tests.shared.elf_builder import library, rpath
from tests.shared.host_model import host_files, host_settings
from tests.shared.lumi_node import ENVIRONMENT, LIBFABRIC, make_host

if TYPE_CHECKING:
    from lumiimg.host.snapshot import Snapshot


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_host(tmp_path_factory.mktemp("host"))
    # a library that leads through a directory with nothing recorded in it, and one with an element of the host's own
    (root / "opt/site/share").mkdir(parents=True)
    dependency = library(root / "opt/site/lib/libdep.so", source="int g;")
    library(root / "opt/site/bin/libodd.so", dependency, *rpath("$ORIGIN/../share/../lib"), source="int f;")
    return root


@pytest.fixture(scope="module")
def snapshot(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Return a scan of the node, written and read again."""
    file = tmp_path_factory.mktemp("snapshot") / "host.json"
    include = (Path("/opt/site/bin/libodd.so"),)
    write_snapshot(scan_host(ENVIRONMENT, root=RootFileSystem(FolderTree(node)), include=include), file)
    return read_snapshot(file)


def assert_answers_are_the_same(snapshot: Snapshot, real: RootFileSystem) -> None:
    recorded, settings = host_files(snapshot), host_settings(snapshot)
    for entry in snapshot.entries:
        there = Process(real, settings, files=Files(real)).start(entry.path)
        here = Process(recorded.fs, settings, files=recorded).start(entry.path)
        assert here.closure == there.closure == entry.closure
        assert here.errors == there.errors == entry.errors
        assert here.missing_versions == there.missing_versions
        assert [(o.path, o.found_by, o.facts) for o in here.objects] == [
            (o.path, o.found_by, o.facts) for o in there.objects
        ]


def test_the_loader_says_the_same_over_the_snapshot(snapshot: Snapshot, node: Path) -> None:
    assert {entry.role for entry in snapshot.entries} >= {"libfabric", "libcxi", "net-plugin", "other"}
    # a path that leads through a directory and out again is kept
    assert snapshot.directories == ("/opt/site/share",)
    assert snapshot.entries[-1].closure["libdep.so"] == "/opt/site/bin/../share/../lib/libdep.so"
    assert_answers_are_the_same(snapshot, RootFileSystem(FolderTree(node)))


def test_a_library_is_found_by_the_rule_that_found_it_on_the_host(snapshot: Snapshot) -> None:
    files = host_files(snapshot)
    process = Process(files.fs, host_settings(snapshot), files=files)
    process.start(snapshot.loader)
    libfabric = process.dlopen("libfabric.so.1").root
    assert libfabric is not None
    assert libfabric.found_by is FoundBy.LD_LIBRARY_PATH
    libcxi = process.dlopen("libcxi.so.1")
    assert (libcxi.ok, libcxi.objects) == (True, ())
    assert process.dlopen("libxpmem.so.0").root is None
    assert files.system(Native(3, 32), None).cache is None


def test_links_and_directories_are_as_on_the_host(snapshot: Snapshot) -> None:
    host = HostFiles(snapshot)
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
    assert files == {recorded.path for recorded in snapshot.libraries}


def test_a_recorded_file_has_facts_and_no_bytes(snapshot: Snapshot) -> None:
    root = RootFileSystem(SnapshotTree(snapshot))
    file = root.open("/opt/aws-ofi-rccl/lib/libnccl-net.so")
    assert file.identity == root.open("/opt/aws-ofi-rccl/lib/librccl-net.so").identity
    with pytest.raises(ElfError, match="only the facts"):
        file.read_at(0, 64)
    tree = SnapshotTree(snapshot)
    with pytest.raises(ImageError, match="cannot be opened"):
        tree.open(tree.root)
