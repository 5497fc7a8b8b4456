"""`lumiimg log` as a person or a script meets it: the page, JSON, JUnit, the image beside the log, benchmarks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import ExitCode
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot_file import write_snapshot
from lumiimg.image import open_image
from lumiimg.report.junit import Case, to_junit
from tests.shared import fabric_builder
from tests.shared.joblog import job_log
from tests.shared.programs import patient, unwrapped

Capture = pytest.CaptureFixture[str]
CXI = b"""\
n1:7:7 [0] NCCL INFO RCCL version : 2.20.5
n1:7:7 [0] NCCL INFO NET/OFI Selected Provider is cxi
n1:7:7 [0] NCCL INFO Using network AWS Libfabric
n1:7:7 [0] NCCL INFO Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA comm 0x7f00 nRanks 16
"""
SOCKET = b"""\
n1:7:7 [0] NCCL INFO RCCL version : 2.20.5
n1:7:7 [0] NCCL INFO NET/Plugin : Plugin load returned 0 : (null).
n1:7:7 [0] NCCL INFO Using network Socket
"""
TABLE = b"""\
# nThread 1 nGpus 1 minBytes 8388608 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
%s#
#                                                       out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
%12d      33554432     float     sum      -1   2960.1   45.34   %s      %d   2961.0   45.33   %s      %d
# Out of bounds values : %s
# Avg bus bandwidth    : %s
"""


def table(bus: float, wrong: int = 0, *, nodes: int = 2, ranks: int = 16, size: int = 128 << 20) -> bytes:
    text, summary = b"%.2f" % bus, b"%d FAILED" % wrong if wrong else b"0 OK"
    devices = b"".join(
        b"#  Rank %2d Pid  %d on nid00500%d device %2d [0000:c1:00.0] AMD Instinct MI250X\n"
        % (rank, 60_000 + rank, rank * nodes // ranks, rank % 8)
        for rank in range(ranks)
    )
    return TABLE % (devices, size, text, wrong, text, wrong, summary, text)


def ask(tmp_path: Path, capsys: Capture, log: bytes, *words: str) -> tuple[int, dict[str, Any], str]:
    file = tmp_path / "job.out"
    file.write_bytes(log)
    code = main(["log", str(file), "--json", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_nodes_that_differ_are_named_folded_with_their_cause(tmp_path: Path, capsys: Capture) -> None:
    code, data, page = ask(tmp_path, capsys, b"".join(job_log(64, 0, sick=frozenset({3}))))
    assert (code, data["verdict"], data["confidence"]) == (ExitCode.NO, "mixed", "proved")
    assert [(g["verdict"], g["count"], g["names"], g["cause"]) for g in data["nodes"]] == [
        ("socket", 1, "nid005003", "plugin-absent"),
        ("ofi-cxi", 7, "nid[005000-005002,005004-005007]", None),
    ]
    assert data["told"] == {"ranks": 64, "of_ranks": 64, "nodes": 8, "of_nodes": 8}
    assert "nid[005000-005002,005004-005007]" in page


def test_a_log_that_few_ranks_wrote_says_so(tmp_path: Path, capsys: Capture) -> None:
    few = b"".join(line for line in b"".join(job_log(64, 0)).splitlines(keepends=True) if line.startswith(b"0: "))
    code, data, page = ask(tmp_path, capsys, few)
    assert (code, data["verdict"]) == (ExitCode.GOOD, "ofi-cxi")
    assert data["told"] == {"ranks": 1, "of_ranks": 64, "nodes": 1, "of_nodes": 8}
    assert "reported their network: 1 of 64 ranks, 1 of 8 nodes" in page
    assert "(proved by the log of 1 of 64 ranks)" in unwrapped(page)


@pytest.mark.parametrize("prefix", ["", "0: "], ids=["as it is", "srun -l"])
def test_what_it_quotes_of_another_job_is_no_line_of_this_one(tmp_path: Path, capsys: Capture, prefix: str) -> None:
    """A job script may read the log of the run before."""
    before, job = tmp_path / "before.out", tmp_path / "job.out"
    before.write_bytes(b"".join(job_log(16, 0)))
    assert main(["log", str(before)]) == ExitCode.GOOD
    job.write_text("".join(f"{prefix}{line}\n" for line in capsys.readouterr().out.splitlines()))
    assert main(["log", str(job)]) == ExitCode.UNDECIDED


def test_how_the_network_was_used_is_told(tmp_path: Path, capsys: Capture) -> None:
    _, data, _ = ask(tmp_path, capsys, b"".join(job_log(16, 0)))
    assert (data["gdr"], data["nics"], data["bootstrap"]) == (True, 4, ["hsn0"])
    assert data["environment"] == {"NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3"}
    assert (data["library"]["version"], data["plugin"]["version"], data["provider"]) == ("2.22.3", "1.18.0", "cxi")


def test_each_cause_has_reasons_and_something_to_do(tmp_path: Path, capsys: Capture) -> None:
    _, data, page = ask(
        tmp_path,
        capsys,
        b"n1:1:1 [0] NCCL INFO NET/Plugin: libcxi.so.1: cannot open shared object file: No such file or directory\n",
    )
    cause = data["causes"][0]
    assert cause["id"] == "dependency-missing"
    assert "libcxi.so.1" in cause["summary"]
    assert cause["because"]
    assert cause["remedy"]
    assert f"1. {cause['because'][0][:40]}" in page


def test_junit_fails_what_is_slow_and_does_not_pass_what_is_not_known(tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "log.xml"
    code, _, _ = ask(tmp_path, capsys, b"".join(job_log(64, 0, sick=frozenset({3}))), "--junit", str(results))
    suite = ET.fromstring(results.read_text())  # noqa: S314 - our own
    assert (code, suite.get("failures"), suite.get("errors"), suite.get("tests")) == (1, "2", "0", "3")
    code, _, _ = ask(tmp_path, capsys, b"hello\n", "--junit", str(results))
    suite = ET.fromstring(results.read_text())  # noqa: S314 - our own
    assert (code, suite.get("failures"), suite.get("errors")) == (ExitCode.UNDECIDED, "0", "1")


@pytest.mark.threat
def test_junit_holds_hostile_text_as_text(tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "log.xml"
    ask(tmp_path, capsys, SOCKET[:-1] + b' ]]></failure><x a="&\x00\x1b">\n', "--junit", str(results))
    assert ET.fromstring(results.read_text()).find("x") is None  # noqa: S314 - our own
    hostile = '\x00\x1b</testcase><x a="&'
    for code in (ExitCode.GOOD, ExitCode.NO, ExitCode.UNDECIDED):
        text = to_junit(hostile[2:], [Case(hostile, code, hostile, (hostile,))])
        assert [case.tag for case in ET.fromstring(text)] == ["testcase"]  # noqa: S314


@pytest.mark.parametrize(
    ("bus", "wrong", "code", "severity"),
    [(84.2, 0, ExitCode.GOOD, "ok"), (9.1, 0, ExitCode.NO, "problem"), (84.2, 3, ExitCode.NO, "problem")],
    ids=["well", "slow", "wrong data"],
)
def test_bandwidth_is_held_against_the_site(
    bus: float, wrong: int, code: int, severity: str, tmp_path: Path, capsys: Capture
) -> None:
    named = CXI + b"# Collective test starting: all_reduce_perf\n" + table(bus, wrong)
    answered, data, page = ask(tmp_path, capsys, named, "--site", "lumi")
    assert answered == code
    assert (data["measurements"][0]["best_gb_s"], data["measurements"][0]["nodes"]) == (bus, 2)
    assert data["findings"][0]["severity"] == severity
    assert "wrong results" in page if wrong else f"{bus} GB/s at 128 MiB" in page


@pytest.mark.parametrize(
    "other", [{"nodes": 1, "ranks": 8}, {"ranks": 2}, {"nodes": 4, "ranks": 32}, {"size": 1 << 20}], ids=str
)
def test_a_benchmark_of_another_kind_than_the_reference_is_not_judged(
    other: dict[str, int], tmp_path: Path, capsys: Capture
) -> None:
    named = CXI + b"# Collective test starting: all_reduce_perf\n" + table(9.1, **other)
    code, data, _ = ask(tmp_path, capsys, named, "--site", "lumi")
    assert (code, data["findings"][0]["severity"]) == (ExitCode.GOOD, "info")


def test_an_answer_of_no_is_in_the_json_though_the_network_is_fast(tmp_path: Path, capsys: Capture) -> None:
    _, data, _ = ask(tmp_path, capsys, CXI + b"# Collective test starting: all_reduce_perf\n" + table(84.2, 3))
    assert (data["verdict"], data["confidence"], data["answer"]) == ("ofi-cxi", "proved", "no")


def test_junit_says_of_a_node_what_the_page_says(tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "log.xml"
    selected = b"nid000001:1:1 [0] NCCL INFO NET/OFI Selected Provider is cxi\n"
    for log in (selected, selected + b"nid000001:1:1 [0] NCCL INFO comm 0xa rank 0 nRanks 8 nNodes 1 localRanks 8\n"):
        ask(tmp_path, capsys, log, "--junit", str(results))
        assert "the traffic went over Slingshot" not in results.read_text()


def test_options_may_stand_between_files(tmp_path: Path, capsys: Capture) -> None:
    first, second = tmp_path / "a.out", tmp_path / "b.out"
    first.write_bytes(CXI)
    second.write_bytes(SOCKET.replace(b"n1:", b"n2:"))
    assert main(["log", str(first), "--verbose", str(second)]) == ExitCode.NO
    assert "mixed" in capsys.readouterr().out


def test_without_a_site_bandwidth_is_told_and_not_judged(tmp_path: Path, capsys: Capture) -> None:
    code, data, _ = ask(tmp_path, capsys, CXI + b"# Collective test starting: all_reduce_perf\n" + table(9.1))
    assert (code, data["findings"][0]["severity"]) == (ExitCode.GOOD, "info")


def test_the_image_beside_the_log_names_the_library(tmp_path: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    root = fabric_builder.host(tmp_path / "host")
    with open_image(root) as host:
        write_snapshot(scan_host({}, root=host.root), tmp_path / "host.json")
    words = ["--image", str(image), "--host", str(tmp_path / "host.json")]
    _, data, page = ask(tmp_path, capsys, SOCKET, *words)
    assert data["image"]["agreement"] == "explained"
    assert any("GLIBC_2.38" in f["summary"] for f in data["image"]["findings"])
    assert "GLIBC_2.38" in page
    _, data, _ = ask(tmp_path, capsys, CXI, *words)
    assert data["image"]["agreement"] == "contradicted"
    _, data, page = ask(tmp_path, capsys, SOCKET.replace(b"2.20.5", b"2.22.3"), *words)
    assert data["image"]["agreement"] == "other-image"
    assert "the log is of RCCL 2.22.3, the image has RCCL 2.20.5" in page
    _, data, _ = ask(tmp_path, capsys, b"hello\n", *words)
    assert data["image"]["agreement"] == "unknown"


@pytest.mark.parametrize(
    ("log", "glibc", "agreement"),
    [
        (SOCKET, 35, "explained"),
        (SOCKET, 39, "no-obstacle"),
        (CXI, 35, "contradicted"),
        (CXI, 39, "agreed"),
        (CXI[: CXI.index(b"n1:7:7 [0] NCCL INFO Channel")], 35, "explained"),
        (SOCKET.replace(b"2.20.5", b"2.22.3"), 39, "other-image"),
        (b"hello\n", 35, "unknown"),
    ],
)
def test_log_and_image_are_held_against_each_other(
    log: bytes, glibc: int, agreement: str, tmp_path: Path, capsys: Capture
) -> None:
    image = fabric_builder.image(tmp_path / "image", glibc=glibc)
    with open_image(fabric_builder.host(tmp_path / "host")) as host:
        write_snapshot(scan_host({}, root=host.root), tmp_path / "host.json")
    _, data, _ = ask(tmp_path, capsys, log, "--image", str(image), "--host", str(tmp_path / "host.json"))
    assert data["image"]["agreement"] == agreement


@pytest.mark.parametrize(("name", "value"), [("NCCL_NET", "Socket"), ("NCCL_NET_PLUGIN", "none-such")])
def test_variables_of_the_job_are_those_of_the_model(name: str, value: str, tmp_path: Path, capsys: Capture) -> None:
    image = fabric_builder.image(tmp_path / "image")
    set_by_job = f"n1:7:7 [0] NCCL INFO {name} set by environment to {value}\n".encode()
    _, data, _ = ask(tmp_path, capsys, set_by_job + SOCKET, "--image", str(image))
    assert value in json.dumps(data["image"]["findings"])


def test_the_list_of_what_is_known(capsys: Capture) -> None:
    assert main(["log", "--signatures", "--json"]) == ExitCode.GOOD
    known = json.loads(capsys.readouterr().out)["signatures"]
    assert all(s["id"] and s["pattern"] and s["remedy"] and s["source"] and s["example"] for s in known)
    assert main(["log", "--signatures"]) == ExitCode.GOOD
    page = capsys.readouterr().out
    assert [s["id"] for s in known if s["id"] not in page] == []


def test_following_tells_each_change_and_the_whole_answer_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    program = subprocess.Popen(
        [sys.executable, "-m", "lumiimg", "log", "--follow", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr
    assert program.stdout
    assert "waiting for" in program.stderr.readline()
    log.write_bytes(CXI)
    assert program.stderr.readline().startswith("ofi-cxi: the traffic went over Slingshot")
    with log.open("ab") as stream:
        stream.write(b"n2:9:9 [0] NCCL INFO Using network Socket\n")
    assert program.stderr.readline().startswith("mixed")
    program.send_signal(signal.SIGINT)
    deadline = time.monotonic() + patient(20)
    assert program.stdout.read().startswith("mixed: ranks used different networks")
    assert program.wait(max(1, deadline - time.monotonic())) == ExitCode.NO
    program.stderr.close()
    program.stdout.close()
