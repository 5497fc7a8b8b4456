"""`lumiimg host prolog`: a script that notices another library, hurts no job, and waits for nothing."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot_file import read_snapshot, write_snapshot
from lumiimg.image import open_image
from tests.shared import fabric_builder
from tests.shared.fabric_builder import snapshot
from tests.shared.programs import needs

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The snapshot of a machine with libfabric and libcxi in a folder that is there, and with a space in its name."""
    root = fabric_builder.host(tmp_path / "a node")
    folders = [root / "opt/cray/libfabric/1.22.0/lib64", root / "usr/lib64"]
    with open_image(Path("/")) as machine:
        # the node's own libnl, whether this machine has one or not
        taken = scan_host({"LD_LIBRARY_PATH": str(folders[1])}, root=machine.root, include=folders)
    path = tmp_path / "node.json"
    write_snapshot(replace(taken, devices=()), path)
    return path


@pytest.fixture
def prolog(node: Path, tmp_path: Path, capsys: Capture) -> Path:
    assert main(["host", "prolog", str(node)]) == 0
    path = tmp_path / "prolog.sh"
    path.write_text(capsys.readouterr().out)
    return path


def ran(prolog: Path, *, drain: bool = False) -> tuple[int, str]:
    text = prolog.read_text()
    if drain:
        prolog.write_text(text.replace("\ndrain=no\n", "\ndrain=yes\n"))
    done = subprocess.run(["bash", prolog], env={}, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_node_as_it_was_says_nothing(prolog: Path) -> None:
    assert ran(prolog, drain=True) == (0, "")


def test_another_library_behind_the_same_name_is_told_and_drains_only_where_that_is_asked_for(
    prolog: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a node/opt/cray/libfabric/1.22.0/lib64"
    fabric = folder / "libfabric.so.1"
    # the old file stays, as after many updates
    (folder / "libfabric.so.1.30.0").write_bytes(fabric.read_bytes() + b"\0")
    fabric.unlink()
    fabric.symlink_to("libfabric.so.1.30.0")
    code, out = ran(prolog)
    assert code == 0
    assert out.startswith("lumiimg: the fast network is not as it was on 20")
    assert f"{fabric} is another file" in out
    assert ran(prolog, drain=True)[0] == 1


def test_a_library_that_has_gone_is_told(prolog: Path, tmp_path: Path) -> None:
    (tmp_path / "a node/usr/lib64/libcxi.so.1").unlink()
    code, out = ran(prolog, drain=True)
    assert (code, "libcxi.so.1 is not there" in out) == (1, True)


def test_a_nic_that_has_gone_is_told(node: Path, tmp_path: Path, capsys: Capture) -> None:
    write_snapshot(replace(read_snapshot(node), devices=("/dev/cxi0", "/dev/kfd", "/dev/null")), node)
    assert main(["host", "prolog", str(node)]) == 0
    path = tmp_path / "prolog.sh"
    path.write_text(capsys.readouterr().out)
    assert "/dev/cxi0 is not there" in ran(path)[1]
    assert "kfd" not in path.read_text()


@pytest.mark.parametrize("taken", ["$(id >&2)", "`id`", '";id;"'])
def test_what_a_snapshot_says_of_its_time_is_not_run(node: Path, tmp_path: Path, capsys: Capture, taken: str) -> None:
    write_snapshot(replace(read_snapshot(node), taken=taken), node)
    assert main(["host", "prolog", str(node)]) == 0
    path = tmp_path / "prolog.sh"
    path.write_text(capsys.readouterr().out)
    (tmp_path / "a node/usr/lib64/libcxi.so.1").unlink()
    assert "uid=" not in ran(path)[1]


@pytest.mark.parametrize("stops", ["exec sleep 30", "trap '' TERM; while :; do :; done", "exit 127"])
def test_what_hangs_or_is_not_there_is_not_waited_for_and_drains_nothing(
    prolog: Path, tmp_path: Path, stops: str
) -> None:
    sums = tmp_path / "bin/sha256sum"
    sums.parent.mkdir()
    sums.write_text(f"#!/bin/bash\n{stops}\n")
    sums.chmod(0o755)
    text = prolog.read_text().replace("seconds=5", "seconds=1").replace("PATH=", f"PATH={sums.parent}:")
    prolog.write_text(text)
    start = time.monotonic()
    code, out = ran(prolog, drain=True)
    assert time.monotonic() - start < 10
    assert (code, out.startswith("lumiimg: the fast network was not looked at: ")) == (0, True)


def test_a_snapshot_without_a_fabric_is_refused(tmp_path: Path, capsys: Capture) -> None:
    root = tmp_path / "bare"
    fabric_builder.c_library(root, 38)
    assert main(["host", "prolog", str(snapshot(root))]) == 2
    assert "has no libraries of a fast network" in capsys.readouterr().err


def test_the_files_are_those_that_the_fabric_loads_without_the_c_library(node: Path, capsys: Capture) -> None:
    assert main(["host", "prolog", str(node), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    names = {Path(path).name for path in data["files"]}
    assert {"libfabric.so.1", "libcxi.so.1", "libjson-c.so.5", "libnl-3.so.200"} <= names
    assert not {name for name in names if name.startswith(("libc.so", "ld-linux"))}


def test_shellcheck_finds_nothing(prolog: Path) -> None:
    needs("shellcheck")
    done = subprocess.run(["shellcheck", prolog], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
