"""`--host` of a request: what was seen on a node counts more than what is believed of its site; its libfabric for compilers."""

from __future__ import annotations

import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import BadInputError, ExitCode, MissingHereError
from lumiimg.host import devel_archive, scan
from lumiimg.host.devel_archive import fabric_of, headers_beside, write_archive
from lumiimg.host.snapshot_file import to_text, write_snapshot
from lumiimg.image import RootFileSystem
from lumiimg.image.folder import FolderTree
from tests.shared.fabric_builder import host
from tests.shared.programs import unwrapped

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.host.snapshot import Snapshot

HEADER = "#define FI_MAJOR_VERSION 1\n#define FI_MINOR_VERSION 22\n#define FI_REVISION_VERSION 0\n"
INCLUDE = "opt/cray/libfabric/1.22.0/include/rdma"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a node with the headers of its libfabric."""
    root = host(tmp_path / "root")
    folder = root / INCLUDE
    (folder / "providers").mkdir(parents=True)
    (folder / "fabric.h").write_text(HEADER)
    (folder / "providers/fi_log.h").write_text("/* log */\n")
    return root


def scanned(root: Path) -> Snapshot:
    return scan.scan_host({}, root=RootFileSystem(FolderTree(root)))


@pytest.fixture
def snapshot(root: Path, tmp_path: Path) -> Path:
    write_snapshot(scanned(root), tmp_path / "host.json")
    return tmp_path / "host.json"


def test_the_gate_is_that_of_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_snapshot(scanned(host(tmp_path / "older", glibc=34)), tmp_path / "host.json")
    # LUMI is believed to ask for 2.38, which Ubuntu 22.04 (2.35) does not have
    assert main(["explain", "--site", "lumi", "--base", "rocm-6.2.4", "--json"]) == ExitCode.GOOD
    assert json.loads(capsys.readouterr().out)["fabric"] == "bundled"
    words = ["explain", "--site", "lumi", "--base", "rocm-6.2.4", "--fabric", "host", "--json"]
    assert main([*words, "--host", str(tmp_path / "host.json")]) == ExitCode.GOOD
    answer = json.loads(capsys.readouterr().out)
    assert answer["fabric"] == "host"
    gate = next(rule for rule in answer["rules"] if rule["id"] == "glibc-gate")
    assert gate["need"] == "glibc >= 2.34"
    assert "host.json" in gate["source"]
    assert "/opt/cray/libfabric/1.22.0" in gate["source"]


def test_a_site_of_which_nothing_is_known_is_as_it_was_seen(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "--site", "generic", "--host", str(snapshot), "--base", "rocm-6.4.4", "--json"]
    assert main(words) == ExitCode.GOOD
    answer = json.loads(capsys.readouterr().out)
    assert (answer["fabric"], answer["plugin"]) == ("host", "aws-ofi-nccl")


def test_a_node_without_slingshot_is_refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "usr/lib64/libcxi.so.1").unlink()
    write_snapshot(scanned(root), tmp_path / "host.json")
    words = ["explain", "--site", "lumi", "--base", "rocm-6.4.4", "--host", str(tmp_path / "host.json")]
    assert main(words) == ExitCode.BAD_INPUT
    assert "no libfabric that loads with libcxi" in capsys.readouterr().err


def test_a_snapshot_with_a_wrong_date_is_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(to_text(scanned(root))) | {"taken": "yesterday"}
    (tmp_path / "host.json").write_text(json.dumps(data))
    words = ["explain", "--site", "lumi", "--base", "rocm-6.4.4", "--host", str(tmp_path / "host.json")]
    assert main(words) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("clean_home")
def test_where_the_library_is_not_the_build_says_so_and_how_to_bring_it(
    snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", "--site", "lumi", "--base", "debian-rocm", "--host", str(snapshot), "--dry-run"]
    assert main([*words, "--fabric", "host"]) == ExitCode.GOOD
    told = capsys.readouterr()
    assert "host scan --libfabric" in told.err
    assert "makes it ask for more than the host has" in unwrapped(told.out)


def test_the_archive_has_headers_and_the_very_library(root: Path, tmp_path: Path) -> None:
    library = fabric_of(scanned(root), "host.json").library
    target = tmp_path / "host-libfabric.tar"
    assert write_archive(library, target, root) == "1.22.0"
    with tarfile.open(target) as archive:
        names = archive.getnames()
        packed = archive.extractfile("libfabric/lib/libfabric.so.1")
        assert packed is not None
        assert packed.read() == (root / library.path.lstrip("/")).read_bytes()
    assert names == [
        "libfabric/include/rdma/fabric.h",
        "libfabric/include/rdma/providers/fi_log.h",
        "libfabric/lib/libfabric.so.1",
        "libfabric/lib/libfabric.so",
    ]
    first = target.read_bytes()
    write_archive(library, target, root)
    assert target.read_bytes() == first


def test_a_library_that_was_replaced_since_is_not_packed(root: Path, tmp_path: Path) -> None:
    library = fabric_of(scanned(root), "host.json").library
    with (root / library.path.lstrip("/")).open("ab") as stream:
        stream.write(b"newer")
    with pytest.raises(BadInputError, match="another file here than on the node"):
        write_archive(library, tmp_path / "a.tar", root)
    assert not (tmp_path / "a.tar").exists()


def test_a_library_without_headers_is_told_with_what_to_do(root: Path) -> None:
    library = fabric_of(scanned(root), "host.json").library
    (root / INCLUDE / "fabric.h").unlink()
    with pytest.raises(MissingHereError, match="libfabric-devel"):
        headers_beside(library, root)


@pytest.mark.usefixtures("clean_home")
def test_the_plugin_is_given_the_archive_and_the_warning_goes(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_archive(fabric_of(scanned(root), "host.json").library, tmp_path / "libfabric.tar", root)
    words = ["build", "--site", "lumi", "--base", "rocm-6.4.4", "--source", "host-libfabric=libfabric.tar", "--json"]
    assert main([*words, "--dry-run"]) == ExitCode.GOOD
    plan = json.loads(capsys.readouterr().out)
    definition = next(d for d in plan["definitions"] if d["name"].endswith("aws-ofi-nccl"))
    staged = "/opt/lumiimg/build/aws-ofi-nccl/source/host-libfabric/host-libfabric.tar"
    assert f"export SOURCE_HOST_LIBFABRIC={staged}\n" in definition["text"].replace("'", "")
    told = {words: warned_of_headers([*words], capsys) for words in (("--source", "host-libfabric=libfabric.tar"), ())}
    assert list(told.values()) == [False, True]


def warned_of_headers(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a lock would say that the plugin sees the headers of the distribution."""
    main(["build", "--site", "lumi", "--base", "debian-rocm", "--fabric", "host", *words, "--dry-run"])
    return "is compiled against" in capsys.readouterr().out


@pytest.mark.usefixtures("clean_home")
def test_the_archive_is_of_no_use_where_the_fabric_is_bundled(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "libfabric.tar"
    write_archive(fabric_of(scanned(root), "host.json").library, target, root)
    words = ["build", "--site", "lumi", "--base", "rocm-6.2.4", "--source", f"host-libfabric={target}", "--dry-run"]
    assert main(words) == ExitCode.BAD_INPUT
    assert "the fabric is bundled" in capsys.readouterr().err


@pytest.fixture
def of_this_node(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have `host scan` see the node of the tests; its headers and its library too."""
    taken = scanned(root)
    monkeypatch.setattr(scan, "scan_host", lambda *_, **__: taken)
    whole = devel_archive.write_archive
    monkeypatch.setattr(devel_archive, "write_archive", lambda library, target: whole(library, target, root))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_file_of_somebody_elses_becomes_an_archive(of_this_node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (of_this_node / "notes.txt").write_text("precious")
    (of_this_node / "folder").mkdir()
    os.mkfifo(of_this_node / "pipe")
    for name, fault in (
        ("notes.txt", "is not an archive of libfabric"),
        ("folder", "is a folder"),
        ("pipe", "is not a file"),
        ("-", "needs a file of its own"),
        ("h.json", "needs a file of its own"),
    ):
        assert main(["host", "scan", "-o", "h.json", "--libfabric", name]) == ExitCode.BAD_INPUT
        assert fault in capsys.readouterr().err
    assert (of_this_node / "notes.txt").read_text() == "precious"
    assert (of_this_node / "pipe").is_fifo()
    for _ in range(2):  # its own archive may be written again
        assert main(["host", "scan", "-o", "h.json", "--libfabric", "f.tar"]) == ExitCode.GOOD
    assert (of_this_node / "f.tar").is_file()


def test_a_lock_remembers_its_node(
    snapshot: Path,
    clean_home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the base of a lock is a suite and a mirror, for which no network is asked, where a debootstrap is
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/debootstrap").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    settings = clean_home / ".config/lumiimg/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[mirrors]\ndebian = "http://mirror.test/debian"\n')
    monkeypatch.chdir(tmp_path)
    words = ["lock", "--base", "debian-13", "--add", "netprobe", "--site", "generic", "-o", "h.lock"]
    assert main([*words, "--host", str(snapshot)]) == ExitCode.GOOD
    before = (tmp_path / "h.lock").read_text()
    assert 'fabric = "host"' in before
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert main(["lock", "--upgrade", "all", "-o", "../h.lock"]) == ExitCode.GOOD
    assert (tmp_path / "h.lock").read_text() == before
    snapshot.unlink()
    capsys.readouterr()
    assert main(["lock", "--upgrade", "all", "-o", "../h.lock"]) == ExitCode.BAD_INPUT
    assert str(snapshot) in capsys.readouterr().err
    assert (tmp_path / "h.lock").read_text() == before
