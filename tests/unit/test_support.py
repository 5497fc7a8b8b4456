"""The files of docs/support/: the prolog notices a changed library, harms no job, and never hangs."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from lumiimg.check.run import log_answer
from tests.shared import fabric_builder
from tests.shared.documents import ROOT, blocks
from tests.shared.programs import needs, patient

REFRAME_TEST = ROOT / "docs/support/lumiimg_check.py"
PROLOG = ROOT / "docs/support/fabric-prolog.sh"
LIBRARIES = "opt/cray/libfabric/1.22.0/lib64/libfabric.so.1", "usr/lib64/libcxi.so.1"


def test_the_reframe_test_knows_what_the_check_measures_by() -> None:
    sources = [ROOT / "layers/netprobe" / name for name in ("allreduce.c", "torch_allreduce.py")]
    (own,), (torch,) = [re.findall(r"Collective test starting: ([\w-]+)", source.read_text()) for source in sources]
    assert f"TESTS = {(torch, own)}".replace("'", '"') in REFRAME_TEST.read_text()
    assert dict.fromkeys((own, torch), "all_reduce_perf") == log_answer.SAME_TEST


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A machine with libfabric and libcxi in a folder with a space in its name, and a list of its libraries."""
    root = fabric_builder.host(tmp_path / "a node")
    paths = "".join(f"{root / path}\n" for path in LIBRARIES)
    with (tmp_path / "list").open("w") as file:
        subprocess.run(["xargs", "-d", "\\n", "sha256sum"], input=paths, text=True, stdout=file, check=True)
    return root


def ran(folder: Path, programs: str = "", **values: str) -> tuple[int, str]:
    """Run the prolog with other values at its head; return its exit code and what it printed."""
    text = PROLOG.read_text().replace("export PATH=", f"export PATH={programs}")
    for name, value in ({"list": shlex.quote(f"{folder}/list")} | values).items():
        (line,) = re.findall(rf"(?m)^{name}=\S*", text)
        text = text.replace(f"\n{line}", f"\n{name}={value}")
    done = subprocess.run(
        ["bash", "-c", text], env={}, capture_output=True, text=True, check=False, timeout=patient(60)
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_node_like_the_list_says_nothing(node: Path, tmp_path: Path) -> None:
    assert node.exists()
    assert ran(tmp_path, drain="yes") == (0, "")


def test_another_library_behind_the_same_name_is_reported_and_drains_only_on_demand(node: Path, tmp_path: Path) -> None:
    fabric = node / LIBRARIES[0]
    # the old file stays, as after many updates
    (fabric.parent / "libfabric.so.1.30.0").write_bytes(fabric.read_bytes() + b"\0")
    fabric.unlink()
    fabric.symlink_to("libfabric.so.1.30.0")
    code, out = ran(tmp_path)
    assert code == 0
    assert out.startswith("lumiimg: the fast network is not that of ")
    assert f"{fabric} is another file" in out
    assert ran(tmp_path, drain="yes")[0] == 1


def test_a_library_or_a_nic_that_is_gone_is_reported(node: Path, tmp_path: Path) -> None:
    assert "0 of 64 NICs are there" in ran(tmp_path, nics="64")[1]
    (node / LIBRARIES[1]).unlink()
    code, out = ran(tmp_path, drain="yes")
    assert (code, "libcxi.so.1 is not there" in out) == (1, True)


@pytest.mark.parametrize("stops", ["exec sleep 987", "trap '' TERM; while :; do :; done", "exit 127"])
def test_a_file_system_that_hangs_is_not_waited_for_and_drains_nothing(node: Path, tmp_path: Path, stops: str) -> None:
    sums = tmp_path / "bin/sha256sum"
    sums.parent.mkdir()
    sums.write_text(f"#!/bin/bash\n{stops}\n")
    sums.chmod(0o755)
    start = time.monotonic()
    code, out = ran(node.parent, f"{sums.parent}:", drain="yes", seconds="1")
    assert time.monotonic() - start < patient(25)
    assert (code, out.startswith("lumiimg: the fast network was not compared: ")) == (0, True)


def test_a_node_without_the_list_drains_nothing(tmp_path: Path) -> None:
    code, out = ran(tmp_path, drain="yes")
    assert (code, "is missing or empty" in out) == (0, True)


def test_shellcheck_finds_nothing() -> None:
    needs("shellcheck")
    assert subprocess.run(["shellcheck", PROLOG], check=False).returncode == 0


def test_the_page_makes_the_list_without_the_c_library(tmp_path: Path) -> None:
    fabric_builder.snapshot(fabric_builder.host(tmp_path / "host"))
    block = next(block for block in blocks(PROLOG.parent / "index.md") if "fabric-paths" in block.text)
    subprocess.run(["bash", "-ec", block.text], cwd=tmp_path, check=True)
    names = {Path(line).name for line in (tmp_path / "fabric-paths").read_text().splitlines()}
    assert names == {"libfabric.so.1", "libcxi.so.1", "libjson-c.so.5", "libnl-3.so.200"}
