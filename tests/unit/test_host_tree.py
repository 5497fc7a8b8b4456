"""A snapshot is a root file system with the libraries, links and folders of the machine that it is of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.elf import ElfError, facts_at
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import HostFiles, SnapshotTree, read_snapshot, write_snapshot
from lumiimg.image import FileKind, FolderTree, ImageError, RootFileSystem
from tests.shared.elf_builder import library, rpath
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


def test_every_closure_leads_to_libraries_with_the_facts_of_the_real_ones(snapshot: Snapshot, node: Path) -> None:
    assert {entry.role for entry in snapshot.entries} >= {"libfabric", "libcxi", "net-plugin", "other"}
    # a path that leads through a directory and out again is kept
    assert snapshot.directories == ("/opt/site/share",)
    assert snapshot.entries[-1].closure["libdep.so"] == "/opt/site/bin/../share/../lib/libdep.so"
    host, real = HostFiles(snapshot), RootFileSystem(FolderTree(node))
    for path in (path for entry in snapshot.entries for path in (entry.path, *entry.closure.values())):
        recorded = host.library(path)
        assert recorded is not None
        assert path is not None
        assert recorded.facts == facts_at(real, path)


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
