"""`--host` of a request: what was seen on a node outweighs what its site file says."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.host import scan
from lumiimg.host.snapshot import snapshot_text, write_snapshot
from lumiimg.image import FolderTree, RootFileSystem
from tests.shared.fabric_builder import host

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.host.snapshot import Snapshot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a node."""
    return host(tmp_path / "root")


def scanned(root: Path) -> Snapshot:
    return scan.scan_host({}, root=RootFileSystem(FolderTree(root)))


@pytest.fixture
def snapshot(root: Path, tmp_path: Path) -> Path:
    write_snapshot(scanned(root), tmp_path / "host.json")
    return tmp_path / "host.json"


def test_the_gate_is_that_of_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_snapshot(scanned(host(tmp_path / "older", glibc=34)), tmp_path / "host.json")
    # LUMI's site file requires 2.38, which Ubuntu 22.04 (2.35) does not have
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


def test_a_node_without_slingshot_and_a_wrong_date_are_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", "--site", "lumi", "--base", "rocm-6.4.4", "--host", str(tmp_path / "host.json")]
    data = json.loads(snapshot_text(scanned(root))) | {"taken": "yesterday"}
    (tmp_path / "host.json").write_text(json.dumps(data))
    assert main(words) == ExitCode.BAD_INPUT
    assert "key 'taken' should be a time like" in capsys.readouterr().err
    (root / "usr/lib64/libcxi.so.1").unlink()
    write_snapshot(scanned(root), tmp_path / "host.json")
    assert main(words) == ExitCode.BAD_INPUT
    assert "no libfabric that loads with libcxi" in capsys.readouterr().err


@pytest.mark.usefixtures("clean_home")
def test_the_archive_is_of_no_use_where_the_fabric_is_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "libfabric.tar"
    target.write_bytes(b"")
    words = ["build", "--site", "lumi", "--base", "rocm-6.2.4", "--source", f"host-libfabric={target}", "--dry-run"]
    assert main(words) == ExitCode.BAD_INPUT
    assert "the fabric is bundled" in capsys.readouterr().err


def test_a_lock_remembers_its_node(
    snapshot: Path,
    clean_home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # with a debootstrap, the base of a lock is a suite and a mirror, which needs no network
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/debootstrap").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    settings = clean_home / ".config/lumiimg/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[mirrors]\ndebian = "http://mirror.test/debian"\n')
    lock = tmp_path / "h.lock"
    words = ["lock", "--base", "debian-13", "--add", "netprobe", "--site", "generic", "-o", str(lock)]
    assert main([*words, "--host", str(snapshot)]) == ExitCode.GOOD
    before = lock.read_text()
    assert 'fabric = "host"' in before
    for code in (ExitCode.GOOD, ExitCode.BAD_INPUT):
        assert main(["lock", "--upgrade", "all", "-o", str(lock)]) == code
        assert lock.read_text() == before
        snapshot.unlink(missing_ok=True)
    assert str(snapshot) in capsys.readouterr().err
