"""A scan finds what a host offers, wherever the site puts it, reports how it found it, and records no personal data."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.core.errors import BadInputError, MissingHereError
from lumiimg.host.node_facts import container_engine
from lumiimg.host.scan import Recorder, scan_host
from lumiimg.host.snapshot import HostFiles, snapshot_text
from lumiimg.image import FolderTree, RootFileSystem
from lumiimg.report.text import show
from lumiimg.report.views.host import snapshot_document
from tests.shared.elf_builder import LOADER
from tests.shared.lumi_node import ENVIRONMENT, LIBFABRIC, make_host, put_files
from tests.shared.programs import needs, unwrapped

if TYPE_CHECKING:
    from lumiimg.host.snapshot import FoundLibrary, Snapshot


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_host(tmp_path_factory.mktemp("host"))


@pytest.fixture
def changed(node: Path, tmp_path: Path) -> Path:
    """Return a copy of the node, to be changed by a test."""
    copy = tmp_path / "changed"
    shutil.copytree(node, copy, symlinks=True)
    return copy


def scan(root: Path, *include: str, **environment: str) -> Snapshot:
    given = {**ENVIRONMENT, **environment}
    return scan_host(given, root=RootFileSystem(FolderTree(root)), include=tuple(map(Path, include)))


def of_role(snapshot: Snapshot, role: str) -> list[FoundLibrary]:
    return [entry for entry in snapshot.entries if entry.role == role]


def test_libfabric_is_found_by_every_way_that_leads_to_it(node: Path) -> None:
    first, second = of_role(scan(node), "libfabric")
    assert first.path == LIBFABRIC
    assert first.how == "LD_LIBRARY_PATH, known prefix /opt/cray/libfabric/*/lib64"
    assert second.path == "/opt/cray/libfabric/1.15.2.0/lib64/libfabric.so.1"
    assert second.how == "known prefix /opt/cray/libfabric/*/lib64"
    names = ("libcxi.so.1", "libcurl.so.4", "libjson-c.so.5", "libnl-3.so.200", "libc.so.6")
    assert first.closure == {name: f"/usr/lib64/{name}" for name in names}
    assert (first.errors, HostFiles(scan(node)).fabric) == ((), first)


def test_every_library_of_a_closure_is_recorded_once_with_its_links_and_digest(node: Path) -> None:
    snapshot = scan(node)
    paths = [recorded.path for recorded in snapshot.libraries]
    assert paths == sorted(set(paths))
    assert {"/usr/lib64/libc.so.6", "/usr/lib64/libnl-3.so.200.26.0"} <= set(paths)
    assert snapshot.links["/usr/lib64/libcxi.so.1"] == "libcxi.so.1.5.0"
    paths_of = {
        role: [e.path for e in of_role(snapshot, role)] for role in ("net-plugin", "libfabric-provider", "cxi-helper")
    }
    assert paths_of == {
        "net-plugin": [f"/opt/aws-ofi-rccl/lib/lib{name}-net.so" for name in ("rccl", "nccl")],
        "libfabric-provider": ["/opt/cray/libfabric/1.22.0/lib64/libfabric/libtcp-fi.so"],
        "cxi-helper": ["/usr/lib64/libcurl.so.4", "/usr/lib64/libjson-c.so.5"],
    }
    plugin = HostFiles(snapshot).library("/opt/aws-ofi-rccl/lib/librccl-net.so")
    assert plugin is not None
    assert plugin.net_symbols == ("ncclNetPlugin_v8", "ncclNetPlugin_v9")
    needs("sha256sum")
    for recorded in snapshot.libraries:
        real = node / recorded.path.lstrip("/")
        digest = subprocess.run(["sha256sum", real], check=True, capture_output=True, text=True).stdout.split()[0]
        assert (recorded.sha256, recorded.size_bytes) == (digest, real.stat().st_size)


def test_a_provider_is_found_by_fi_provider_path(changed: Path) -> None:
    beside = changed / "opt/cray/libfabric/1.22.0/lib64/libfabric"
    for name in ("a", "b"):
        (changed / f"opt/{name}").mkdir()
        shutil.copy(beside / "libtcp-fi.so", changed / f"opt/{name}/lib{name}-fi.so")
    found = of_role(scan(changed, FI_PROVIDER_PATH="@/opt/a:/opt/b"), "libfabric-provider")
    assert [(entry.path, entry.how) for entry in found][:2] == [
        ("/opt/a/liba-fi.so", "FI_PROVIDER_PATH"),
        ("/opt/b/libb-fi.so", "FI_PROVIDER_PATH"),
    ]
    # as libfabric reads them: folders and files are not interchangeable, and `@` counts only at the very start
    for value in ("+/opt/a", "/opt/a/liba-fi.so", "/nowhere:@/opt/a", "opt/a", "+opt/a/liba-fi.so"):
        found = of_role(scan(changed, FI_PROVIDER_PATH=value), "libfabric-provider")
        assert [entry.path for entry in found] == ["/opt/cray/libfabric/1.22.0/lib64/libfabric/libtcp-fi.so"], value


def test_without_a_module_the_newest_comes_first_unless_another_one_is_the_default(node: Path, changed: Path) -> None:
    def order(root: Path) -> list[str]:
        found = of_role(scan(root, LD_LIBRARY_PATH=""), "libfabric")
        return [entry.path.split("/")[4] for entry in found]

    assert order(node) == ["1.22.0", "1.15.2.0"]
    (changed / "opt/cray/libfabric/default").symlink_to("1.15.2.0")
    assert order(changed) == ["1.15.2.0", "1.22.0"]
    assert scan(changed).links["/opt/cray/libfabric/default"] == "1.15.2.0"


def test_what_the_node_says_of_itself_is_read_as_text(node: Path) -> None:
    snapshot = scan(node)
    assert (snapshot.host, snapshot.architecture) == ("nid005001", "x86_64")
    assert snapshot.kernel == "6.4.0-150600.23.73_15.0.14-cray_shasta_c"
    assert (snapshot.os.id, snapshot.os.version) == ("sles", "15.6")
    assert (snapshot.cpu, snapshot.intel, snapshot.hwcaps) == ("AMD EPYC 7A53", False, ("x86-64-v3", "x86-64-v2"))
    assert snapshot.gpu_driver == "6.3.60300"
    assert snapshot.devices == ("/dev/cxi0", "/dev/kfd", "/dev/dri/renderD128")
    (nic,) = snapshot.nics
    assert (nic.device, nic.speed_mbit_s, nic.link_is_up, nic.chip) == ("cxi0", 200000, True, "1.1")
    assert (nic.firmware, nic.pci, nic.netdev) == ("2.0.21", "0000:21:00.0", "hsn0")
    (gap,) = snapshot.gaps
    assert gap.startswith("left out of LD_LIBRARY_PATH: 2 of 3 folders")


@pytest.mark.threat
def test_nothing_of_a_person_and_no_address_is_in_the_file(changed: Path) -> None:
    secret = {"MY_TOKEN": "hunter2", "SLURM_JOB_USER": "lovelace", "FI_PROVIDER_PATH": "/users/lovelace/providers"}
    (changed / "users/lovelace/providers").mkdir(parents=True)
    shutil.copy(changed / "opt/aws-ofi-rccl/lib/librccl-net.so", changed / "users/lovelace/providers/libx-fi.so")
    text = snapshot_text(scan(changed, **secret))
    for word in ("lovelace", "hunter2", "users", "scratch", "02:00:00", "0x1234", str(changed)):
        assert word not in text


def test_what_the_user_names_comes_first_and_a_home_is_pointed_out(changed: Path) -> None:
    mine = changed / "users/lovelace/lib"
    mine.mkdir(parents=True)
    shutil.copy(changed / LIBFABRIC.lstrip("/"), mine / "libfabric.so.1")
    snapshot = scan(changed, "/users/lovelace/lib/libfabric.so.1")
    first = snapshot.entries[0]
    assert (first.role, first.path, first.how) == ("libfabric", "/users/lovelace/lib/libfabric.so.1", "asked for")
    assert "the snapshot contains this path in a personal folder: /users/lovelace/lib/libfabric.so.1" in snapshot.gaps
    assert scan(changed, "/users/lovelace").entries[0].path == "/users/lovelace/lib/libfabric.so.1"
    assert scan(changed, "/usr/lib64/libnl-3.so.200").entries[-1].role == "other"
    for path in ("/nowhere", "/etc/os-release", "/etc", "/dev"):
        with pytest.raises(BadInputError, match=path):
            scan(changed, path)


def test_a_libfabric_that_cannot_be_loaded_here_is_not_the_fabric(changed: Path) -> None:
    (changed / "usr/lib64/libcxi.so.1.5.0").unlink()
    snapshot = scan(changed)
    entry = of_role(snapshot, "libfabric")[0]
    assert entry.closure["libcxi.so.1"] is None
    assert "libcxi.so.1: cannot open shared object file" in entry.errors[0]
    assert HostFiles(snapshot).fabric is None
    assert "libfabric needs libcxi.so.1 and cannot be loaded here: scan on a compute node" in snapshot.gaps


def test_an_empty_machine_gives_a_snapshot_that_says_what_is_missing(tmp_path: Path) -> None:
    if not Path(LOADER).exists():
        needs(LOADER)
    (tmp_path / "lib64").mkdir()
    shutil.copy(LOADER, tmp_path / "lib64")
    snapshot = scan_host({}, root=RootFileSystem(FolderTree(tmp_path)))
    assert snapshot.entries == ()
    assert [gap.split(":")[0] for gap in snapshot.gaps] == [
        "no libfabric was found",
        "no Slingshot NIC here (/sys/class/cxi)",
        "no version of amdgpu (/sys/module/amdgpu/version)",
        "/proc/cpuinfo names no level of x86-64 beyond the first",
    ]


def test_a_machine_without_glibc_cannot_be_scanned(tmp_path: Path) -> None:
    for words in ("no C library that is known", "has musl"):
        with pytest.raises(MissingHereError, match=words):
            scan_host({}, root=RootFileSystem(FolderTree(tmp_path)))
        put_files(tmp_path, {"/lib/ld-musl-x86_64.so.1": ""})


def test_a_library_that_is_too_large_is_a_gap(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumiimg.host.scan.MAX_LIBRARY_BYTES", 100)
    recorder = Recorder(RootFileSystem(FolderTree(node)))
    assert not recorder.add(LIBFABRIC)
    assert not recorder.add(LIBFABRIC)
    assert recorder.libraries == {}
    assert len(recorder.gaps) == 1
    assert "more than 100" in recorder.gaps[0]


def _program(folder: Path, name: str, output: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{output}'\n")
    (folder / name).chmod(0o755)


def test_the_engines_own_configuration_is_read(tmp_path: Path) -> None:
    """With a stand-in that prints what SingularityCE prints, installed beside its configuration."""
    _program(tmp_path / "bin", "singularity", "singularity-ce version 4.1.3-150500.10.7")
    put_files(
        tmp_path,
        {
            "/etc/singularity/singularity.conf": "# mount tmp = no\nmount tmp = yes\nbind path = /a\nbind path = /b\nmax loop devices = 9\n"
        },
    )
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "LUMIIMG_ENGINE": "singularity"}
    engine = container_engine(RootFileSystem(FolderTree(Path("/"))), environment, lambda _: False)
    assert engine is not None
    assert (engine.name, engine.version) == ("SingularityCE", "4.1.3")
    assert engine.configuration == f"{tmp_path}/etc/singularity/singularity.conf"
    assert engine.settings == {"mount tmp": "yes", "bind path": "/a, /b"}


def test_the_page_names_version_way_and_what_is_wrong(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = scan(node)
    show(snapshot_document(snapshot, None))
    page = unwrapped(capsys.readouterr().out)
    assert f"nid005001: Slingshot's libfabric is here: {LIBFABRIC}" in page
    assert "cxi0 (hsn0, 200 Gb/s, up, firmware 2.0.21)" in page
    assert "libfabric 1.22.0 (libfabric.so.1.27.0)" in page
    assert "ncclNetPlugin_v8 ncclNetPlugin_v9" in page
    broken = replace(snapshot.entries[0], errors=tuple(f"error {n}" for n in range(5)))
    show(snapshot_document(replace(snapshot, entries=(broken,), hwcaps=(), cpu=None), None))
    page = capsys.readouterr().out
    assert "no libfabric for Slingshot was found here" in page
    assert "> error 2" in page
    assert "error 3" not in page
    assert "and 2 errors more" in page
