"""The reader says of each log what a careful network engineer would say, however the log was captured."""

from __future__ import annotations

import csv
import random
import tomllib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lumiimg.nccl.bandwidth_table import BandwidthTable
from lumiimg.nccl.reader import LogReader, read_lines
from lumiimg.nccl.report import Confidence, Verdict
from lumiimg.report.log import json_keys
from tests.shared.programs import sampled

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nccl"
SHARED = Path(__file__).parents[2].parent / "shared" / "nccl-logs"
LOGS: list[dict[str, Any]] = tomllib.loads((FIXTURES / "index.toml").read_text())["log"]
GREEN = {Verdict.OFI_CXI, Verdict.OFI_EFA}


def lines_of(log: dict[str, Any]) -> list[str]:
    path: Path = FIXTURES / log["file"]
    return path.read_text().splitlines()


CAPTURES: dict[str, Callable[[str], str]] = {
    "srun -l": "0: {}".format,
    "Open MPI": "[1,0]<stdout>:{}".format,
    "Ray": "\x1b[36m(RayWorkerWrapper pid=742)\x1b[0m {}".format,
    "Ray without escape": "[1;36m(EngineCore_DP0 pid=742)[0;0m {}".format,
    "CloudWatch": "  | 2026-05-22T14:26:33.405-07:00 | {}".format,
    "timestamp": "2026-05-22 14:26:33,405 {}".format,
    "torchrun": "[default0]:{}".format,
    "quoted": "> {}".format,
    "CRLF": "{}\r\n".format,
}


def test_each_log_is_read_as_a_careful_engineer_reads_it() -> None:
    for log in LOGS:
        name, lines = log["file"], lines_of(log)
        report = read_lines(name, lines)
        assert (report.verdict, report.confidence) == (log["verdict"], log["confidence"]), name
        assert [cause.id for cause in report.causes] == log["causes"], name
        told = {
            "library": report.library and report.library.version,
            "plugin": report.plugin and report.plugin.version,
            "provider": report.provider,
            "gdr": report.transport.gdr,
        }
        assert {key: told[key] for key in told if key in log} == {key: log[key] for key in told if key in log}, name
        assert bool(report.proof) == (report.verdict is not Verdict.NONE), name
        assert all(one.file == name and 1 <= one.line <= len(lines) for one in report.proof), name
        if report.verdict not in GREEN:
            assert report.causes, name
            assert all(cause.remedy and cause.source for cause in report.causes), name


def test_what_stands_before_a_line_does_not_change_the_verdict() -> None:
    for log, (name, capture) in sampled(product(LOGS, CAPTURES.items()), 4 * len(LOGS)):
        lines = lines_of(log)
        if "@probe" not in lines[0]:
            report = read_lines(log["file"], map(capture, lines))
            assert (report.verdict, report.confidence) == (log["verdict"], log["confidence"]), (log["file"], name)
            assert [cause.id for cause in report.causes] == log["causes"], (log["file"], name)


def by_process(lines: list[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for line in lines:
        key = next((host for host in ("nid005101", "nid005102") if f"{host}:" in line), "nid005101")
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def test_interleaving_of_ranks_does_not_change_the_verdict() -> None:
    for seed, log in enumerate(LOGS):
        report = read_lines(log["file"], interleaved(lines_of(log), seed))
        assert report.verdict == log["verdict"], (log["file"], seed)
        assert [cause.id for cause in report.causes] == log["causes"], (log["file"], seed)


def interleaved(lines: list[str], seed: int) -> list[str]:
    groups = by_process(lines)
    chance = random.Random(seed)  # noqa: S311  (shuffles that can be repeated)
    shuffled: list[str] = []
    while groups:
        group = chance.choice(groups)
        shuffled.append(group.pop(0))
        groups = [g for g in groups if g]
    return shuffled


def test_two_messages_joined_on_one_line_are_both_read() -> None:
    line = "n1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi       n2:1:2 [0] NCCL INFO Using network Socket"
    report = read_lines("job.out", [line])
    assert report.verdict is Verdict.MIXED
    assert {r.process: r.verdict for r in report.ranks} == {"n1:1": Verdict.OFI_CXI, "n2:1": Verdict.SOCKET}


def test_a_later_domain_error_overrides_what_was_selected_and_a_connection_after_it_settles_it() -> None:
    selected = ["n1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi", "n1:1:2 [0] NCCL INFO Using network OFI"]
    error = "n1:1:2 [0] f:8 NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -22, ERROR: Invalid argument"
    connected = "n1:1:2 [0] NCCL INFO Connected all rings"
    assert read_lines("j", selected).verdict is Verdict.OFI_CXI
    assert read_lines("j", [*selected, error]).verdict is Verdict.PLUGIN_INIT_ERROR
    assert read_lines("j", [*selected, connected, error]).verdict is Verdict.PLUGIN_INIT_ERROR
    assert read_lines("j", [*selected, error, connected]).verdict is Verdict.OFI_CXI


def test_the_three_rc_38_are_told_apart_by_the_call_that_failed() -> None:
    calls = {
        "NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented": "cxi-no-service",
        "NET/OFI fi_writedata failed; RC: -38, Error: Function not implemented": "cxi-rdma-protocol",
        "NET/OFI OFI fi_getinfo() call failed: Function not implemented": "libfabric-api-too-old",
    }
    assert {text: read_lines("j", [text]).causes[0].id for text in calls} == calls


def test_a_missing_version_names_the_library_the_version_and_who_needs_it() -> None:
    line = "NET/Plugin: /lib64/libc.so.6: version `GLIBC_2.38' not found (required by /opt/p/librccl-net.so)"
    summary = read_lines("j", [line]).causes[0].summary
    assert all(name in summary for name in ("/lib64/libc.so.6", "GLIBC_2.38", "/opt/p/librccl-net.so"))


def test_ranks_that_share_a_process_are_all_told() -> None:
    lines = [f"n1:7:{70 + i} [{i}] NCCL INFO comm 0xa{i} rank {i} nRanks 4 nNodes 1 localRanks 4" for i in range(4)]
    report = read_lines("j", [*lines, "n1:7:70 [0] NCCL INFO Using network Socket"])
    ranks = json_keys(report, (), None, report.answer)["ranks"]
    assert isinstance(ranks, dict)
    assert list(ranks) == ["0", "1", "2", "3"]
    assert report.causes[0].id == "nothing-crosses"


def test_communicators_are_put_together_from_all_ranks() -> None:
    lines = [
        "n1:1:2 [0] NCCL INFO Using network Socket",
        "n2:1:2 [0] NCCL INFO Using network Socket",
        "n1:1:2 [0] NCCL INFO comm 0xa rank 0 nranks 2 cudaDev 0 busId 1 commId 0x12ab - Init START",
        "n2:1:2 [0] NCCL INFO comm 0xb rank 1 nranks 2 cudaDev 0 busId 1 commId 0x12ab - Init START",
        "n1:1:2 [0] NCCL INFO comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
    ]
    (communicator,) = read_lines("j", lines).communicators
    assert (communicator.id, communicator.ranks, communicator.nodes) == ("0x12ab", 2, 2)
    assert (communicator.verdict, communicator.crosses_network) == (Verdict.SOCKET, True)


def test_lines_without_prefix_go_to_the_task_that_wrote_them() -> None:
    lines = [
        "0: n1:1:2 [0] NCCL INFO Using network AWS Libfabric",
        "1: n2:1:2 [0] NCCL INFO Using network AWS Libfabric",
        "0: NET/OFI Selected Provider is cxi",
        "1: NET/OFI Selected Provider is tcp",
    ]
    report = read_lines("j", lines)
    assert {r.process: r.provider for r in report.ranks} == {"n1:1": "cxi", "n2:1": "tcp"}
    assert report.verdict is Verdict.MIXED


def test_a_line_without_prefix_or_task_is_of_the_one_process_that_wrote_to_the_file() -> None:
    lines = ["0: n1:1:2 [0] NCCL INFO Using network AWS Libfabric", "NET/OFI Selected Provider is cxi"]
    assert [(rank.process, rank.provider) for rank in read_lines("j", lines).ranks] == [("n1:1", "cxi")]
    others = [f"{task}: n{task}:1:2 [0] NCCL INFO Using network AWS Libfabric" for task in (1, 2)]
    ranks = read_lines("j", [lines[0], *others, lines[1]]).ranks
    assert [rank.process for rank in ranks] == ["j", "n1:1", "n2:1"], "of whom it is cannot be told"


def test_in_each_file_a_line_without_prefix_is_of_the_task_that_wrote_there() -> None:
    reader = LogReader()
    for file, host, provider in (("a.out", "n1", "cxi"), ("b.out", "n2", "tcp")):
        lines = [
            f"0: {host}:1:2 [0] NCCL INFO Using network AWS Libfabric",
            f"0: NET/OFI Selected Provider is {provider}",
        ]
        reader.feed(file, "".join(f"{line}\n" for line in lines).encode())
    assert {rank.process: rank.provider for rank in reader.report().ranks} == {"n1:1": "cxi", "n2:1": "tcp"}


def test_lines_are_counted_in_their_own_file_however_many_are_read_by_turns() -> None:
    reader = LogReader()
    for turn in range(3):
        for file in ("a.out", "b.out"):
            reader.feed(file, b"a line\n" * 5)
            if (turn, file) == (1, "b.out"):
                reader.feed(file, b"n1:1:2 [0] NCCL INFO Using network Socket\n")
    assert [(line.file, line.line) for line in reader.report().proof] == [("b.out", 11)]


FIRST_LINES = [
    ("n1:17:1 [0] NCCL INFO Using network Socket", ["n1"]),
    ("Using network Socket", []),
    ("0: Using network Socket", []),
]


def test_a_file_whose_name_is_like_a_process_is_no_node() -> None:
    for file, (first, nodes) in product(["job.out", "job:17", ":17"], FIRST_LINES):
        assert [node for group in read_lines(file, [first]).nodes for node in group.nodes] == nodes, (
            file,
            first,
            nodes,
        )


def test_a_rank_alone_crosses_no_network_however_old_its_library() -> None:
    report = read_lines("j", ["n1:1:2 [0] NCCL INFO comm 0xa rank 0 nranks 1 cudaDev 0 busId 1 - Init COMPLETE"])
    assert [communicator.crosses_network for communicator in report.communicators] == [False]
    assert report.verdict is Verdict.INTRA_NODE_ONLY


NAMED = [
    ("rccl-tests", "all_reduce_perf", "rccl-tests all_reduce_perf"),
    ("nccl-tests", None, "nccl-tests"),
    ("rccl-tests", "lumiimg-allreduce", "lumiimg-allreduce"),
]


def test_a_measurement_is_named_by_its_program_and_test() -> None:
    for program, test, name in NAMED:
        table = BandwidthTable(program, 0, test=test)
        assert table.result(lambda _: ("j", 1)).name == name, (program, test, name)


TALK = [
    '+ grep "NET/OFI Selected Provider is cxi" job.out',
    "0: ++ grep -c Selected provider is cxi job.out",
    'Look for "NET/OFI Selected Provider is cxi" in the log',
    "n1:1:2 [0] NCCL INFO NET/OFI Setting provider_filter to cxi",
    "n1:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v5)",
    "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.253.4.11<0>",
]


def test_talk_about_the_fast_path_is_not_the_fast_path() -> None:
    for line in TALK:
        assert read_lines("job.out", [line]).verdict not in GREEN, line


def test_a_network_that_nobody_knows_is_not_taken_for_the_provider_that_was_selected() -> None:
    lines = ["n1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi", "n1:1:2 [0] NCCL INFO Using network Foo"]
    assert read_lines("job.out", lines).verdict is Verdict.NONE


SELECTED = [
    (["NET/OFI Selected provider is cxi, fabric is cxi", "Error: network OFI not found."], "plugin-missing"),
    (["NET/OFI Selected Provider is tcp", "NET/OFI Selected Provider is cxi"], "mixed"),
    (["NET/OFI Selected Provider is cxi", "NET/Socket : Using [0]hsn0:10.1.1.1<0>"], "socket"),
    (["NET/Socket : Using [0]hsn0:10.1.1.1<0>", "NET/OFI Selected Provider is cxi"], "mixed"),
    (["NET/OFI Selected Provider is cxi", "NET/OFI aws-ofi-nccl initialization failed"], "plugin-init-error"),
    (["NET/OFI Selected Provider is cxi", "Failed to initialize any NET plugin"], "plugin-init-error"),
]


def test_cxi_selected_is_not_cxi_used() -> None:
    for lines, verdict in SELECTED:
        assert read_lines("job.out", lines).verdict == verdict, (lines, verdict)


def test_a_bare_warning_of_the_first_attempt_does_not_unsettle_ranks_that_use_cxi() -> None:
    ranks = [f"n{i}:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi" for i in range(3)]
    report = read_lines("job.out", ["NET/OFI OFI fi_getinfo() call failed: No data available", *ranks])
    assert (report.verdict, [c.id for c in report.causes]) == (Verdict.OFI_CXI, ["traffic-not-shown"])


def test_one_process_in_files_of_its_own_and_shared_is_one_rank() -> None:
    reader = LogReader()
    reader.feed("job.out", b"n1:1:2 [0] NCCL INFO Using network AWS Libfabric")
    reader.feed("nccl.n1.1", b"n1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi")
    assert [(r.process, r.provider) for r in reader.report().ranks] == [("n1:1", "cxi")]


def test_a_report_may_be_asked_for_at_any_time() -> None:
    reader = LogReader()
    assert reader.report().verdict is Verdict.NONE
    reader.feed("j", b"n1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi")
    assert reader.report().verdict is Verdict.OFI_CXI
    reader.feed("j", b"n1:1:2 [0] NCCL INFO Using network Socket\n")
    assert reader.report() == reader.report()
    assert reader.report().verdict is Verdict.SOCKET


def test_nothing_but_channels_and_the_named_provider_prove_the_fast_path() -> None:
    selected = ["n1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi", "n1:1:2 [0] NCCL INFO Using network OFI"]
    channel = "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/OFI/0"
    assert read_lines("j", selected).confidence is Confidence.LIKELY
    assert read_lines("j", [*selected, channel]).confidence is Confidence.PROVED


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared excerpts are not beside this checkout")
def test_the_shared_excerpts_are_read_as_a_careful_reader_does() -> None:
    with (SHARED / "INDEX.tsv").open(newline="") as index:
        rows = list(csv.DictReader(index, delimiter="\t"))
    wrong: dict[str, tuple[str, str, str]] = {}
    for row in rows:
        expected = "none" if row["expected_verdict"] == "incomplete/none" else row["expected_verdict"]
        with (SHARED / row["file"]).open("rb") as log:
            verdict = read_lines(row["file"], log).verdict
        assert verdict == expected or verdict not in GREEN, f"{row['file']} is no fast path"
        if verdict != expected:
            wrong[row["file"]] = (row["confidence"], expected, verdict)
    assert not [row for row in wrong.values() if row[0] == "high"], wrong
    assert len(rows) - len(wrong) >= len(rows) * 60 // 66, wrong


def test_a_plugin_of_an_unknown_name_that_cannot_open_its_nic_has_failed() -> None:
    lines = [
        b"n1:1:2 [0] NCCL INFO Initialized NET plugin Homemade",
        b"libfabric:1:1795225159::cxi:domain:cxip_get_if():154<warn> n1: Failed to open CXI Device, ret: -2",
    ]
    assert read_lines("job.out", lines).verdict == "plugin-init-error"
    # where another network is known to be in use, that of libfabric says nothing
    used = b"n1:1:2 [0] NCCL INFO Using network Homemade"
    assert read_lines("job.out", [*lines, used]).verdict == "none"
