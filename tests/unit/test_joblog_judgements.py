"""Hard cases of the verdict: what looks like the fast path but is not proved, and harmless lines that look bad."""

from __future__ import annotations

import json
import subprocess
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

from lumiimg.core.findings import Severity
from lumiimg.joblog import LogReport, Verdict, read_lines
from tests.shared.joblog import job_log, read_files

EXCERPTS: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "fixtures/nccl-excerpts.toml").read_text())
LOGS: list[dict[str, Any]] = EXCERPTS["log"]
ANSWERS = {Severity.OK: "good", Severity.PROBLEM: "no", Severity.UNKNOWN: "undecided"}
GOOD: list[str] = LOGS[0]["text"].splitlines()
CXI = ["NET/OFI Selected Provider is cxi", "Using network AWS Libfabric"]
CHANNEL = "Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA"
DENIED = "NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not implemented"


def comm(address: str, rank: int, ranks: int, nodes: int) -> str:
    return f"comm {address} rank {rank} nRanks {ranks} nNodes {nodes} localRanks 8 localRank 0 MNNVL 0"


WORLD = comm("0xa", 0, 16, 2)


def says(host: str, *texts: str, pid: int = 1) -> list[str]:
    return [f"{host}:{pid}:{pid} [0] NCCL INFO {text}" for text in texts]


def read(*lines: str) -> LogReport:
    return read_lines("job.out", lines)


def answer(report: LogReport) -> tuple[str, str, Severity]:
    return report.verdict.value, report.confidence.value, report.severity


def found(report: LogReport, log: dict[str, Any]) -> dict[str, object]:
    """Return the values in a report that a row of the table names."""
    proof, reported = [line.text for line in report.proof], log.get("coverage", {})
    first = report.causes[0] if report.causes else None
    words = " ".join((first.summary, *first.because, *first.remedy)) if first else ""
    ranks = {rank.process: rank for rank in report.ranks}
    return {
        "verdict": report.verdict.value,
        "confidence": report.confidence.value,
        "answer": ANSWERS[report.severity],
        "causes": [cause.id for cause in report.causes],
        "first": first.id if first else "",
        "tells": [word for word in log.get("tells", ()) if word in words],
        "proof": [line for line in log.get("proof", ()) if any(text.endswith(line) for text in proof)],
        "leads": next((line for line in [log.get("leads", "")] if proof and proof[0].endswith(line)), None),
        "ended": report.ended.cause if report.ended.leads and report.ended.is_failure else "",
        "runs": report.runs,
        "first_line": report.first_line,
        "coverage": {name: getattr(report.coverage, name) for name in reported},
        "networks": {node: group.network for group in report.nodes for node in group.nodes},
        "provider": report.provider or "",
        "gdr": report.transport.gdr,
        "environment": dict(report.environment),
        "ranks": {
            process: {name: str(getattr(ranks[process], name) or "") for name in log["ranks"].get(process, ())}
            for process in (ranks if "ranks" in log else ())
        },
    }


def test_each_excerpt_is_read_as_a_careful_engineer_reads_it() -> None:
    for log in LOGS:
        read_of_it = found(read(*log["text"].split("\n")), log)
        expected = {name: value for name, value in log.items() if name not in {"why", "text"}}
        assert {name: read_of_it[name] for name in expected} == expected, f"{log['why']}:\n{log['text']}"


def test_two_nodes_that_differ_come_to_one_verdict_in_either_order() -> None:
    ranks = EXCERPTS["ranks"]
    for one, other, *expected in EXCERPTS["two_nodes"]:
        for first, second in ((one, other), (other, one)):
            report = read(*says("n1", *ranks[first]), *says("n2", *ranks[second]))
            assert [report.verdict, report.confidence, ANSWERS[report.severity]] == expected, (one, other)
            reported = [line.text for line in report.proof]
            if report.verdict is Verdict.MIXED:  # a line of each side
                assert any(text.startswith("n1:") for text in reported), (one, other)
                assert any(text.startswith("n2:") for text in reported), (one, other)


def test_an_error_in_another_file_leaves_the_answer_open_in_either_order() -> None:
    """Also with only one rank: what another rank proves does not settle it."""
    error = "libfabric:9:1::cxi:domain:cxip_get_if():154<warn> Failed to open CXI Device, ret: -2"
    out = [f"{rank}: {line}" for rank in (0, 1) for line in GOOD[5 * rank : 5 * rank + 5]]
    for ranks in [(0, 1), (0,), (1,)]:
        files = [("out", out), ("err", [f"{rank}: {error}" for rank in ranks])]
        for order in (files, files[::-1]):
            report = read_files(*order)
            assert answer(report) == ("ofi-cxi", "likely", Severity.UNKNOWN), ranks
            assert "cxi-device" in {cause.id for cause in report.causes}, ranks


def test_whose_a_line_is_and_where_it_stands_is_distinguished_in_several_files() -> None:
    tasks = [
        (name, [f"0: {host}:1:2 [0] NCCL INFO {CXI[1]}", f"0: NET/OFI Selected Provider is {provider}"])
        for name, host, provider in (("a.out", "n1", "cxi"), ("b.out", "n2", "tcp"))
    ]
    assert {rank.process: rank.provider for rank in read_files(*tasks).ranks} == {"n1:1": "cxi", "n2:1": "tcp"}
    own = read_files(("job.out", says("n1", CXI[1])), ("nccl.n1.1", says("n1", CXI[0])))
    assert [(rank.process, rank.provider) for rank in own.ranks] == [("n1:1", "cxi")], "one rank in two files"
    turns = [("a.out", ["a line"] * 5), ("b.out", ["a line"] * 5)] * 2
    report = read_files(*turns, ("b.out", says("n1", "Using network Socket")))
    assert [(line.file, line.line) for line in report.proof] == [("b.out", 11)]
    firsts = [
        ("n1:17:1 [0] NCCL INFO Using network Socket", ["n1"]),
        ("Using network Socket", []),
        ("0: Using network Socket", []),
    ]
    for file, (line, nodes) in product(["job.out", "job:17", ":17"], firsts):
        assert [node for group in read_lines(file, [line]).nodes for node in group.nodes] == nodes, (file, line)


def test_communicators_are_put_together_from_all_ranks() -> None:
    started = "comm {} rank {} nranks 2 cudaDev 0 busId 1 commId 0x12ab - Init START"
    lines = [
        *says("n1", "Using network Socket", started.format("0xa", 0)),
        *says("n2", "Using network Socket", started.format("0xb", 1)),
        *says("n1", comm("0xa", 0, 2, 2)),
    ]
    (communicator,) = read(*lines).communicators
    assert (communicator.id, communicator.ranks, communicator.nodes) == ("0x12ab", 2, 2)
    assert (communicator.verdict, communicator.crosses_network) == (Verdict.SOCKET, True)


def test_a_rank_that_is_started_again_is_counted_once() -> None:
    started = "comm 0xa rank {} nranks 16 cudaDev 0 busId c1000 commId 0xa{} - Init COMPLETE"
    for second, expected in [(8, (8, 16)), (0, (8, 16)), (16, (16, 16))]:
        runs = [
            line
            for run, count in enumerate((8, second))
            for rank in range(count)
            for line in says(
                f"n{rank // 8}", "Using network Socket", started.format(rank, run), pid=1 + 100 * run + rank
            )
        ]
        report = read(*runs)
        assert (report.coverage.ranks, report.coverage.of_ranks) == expected, (second, expected)


def test_what_nodes_did_that_only_slurm_names_is_not_known() -> None:
    for nodes, code in [(1, Severity.OK), (2, Severity.UNKNOWN)]:
        report = read(f"SLURM_NNODES={nodes}", *says("n1", "Using network Socket", comm("0xa", 0, 8, 1)))
        assert (report.single_node, report.severity, report.coverage.of_nodes) == (True, code, nodes), (nodes, code)
        assert ("does not show" in report.headline) is (code is Severity.UNKNOWN), (nodes, code)


def test_logs_of_containers_as_json_are_read_without_their_escapes() -> None:
    records = [json.dumps({"log": f"{line}\n", "stream": "stderr"}).replace(">", "\\u003e") for line in GOOD]
    assert answer(read(*records)) == ("ofi-cxi", "proved", Severity.OK)
    journal = [json.dumps({"MESSAGE": list(line.encode()), "_PID": "7"}) for line in GOOD]
    assert answer(read(*journal)) == ("ofi-cxi", "proved", Severity.OK)
    hostile = ["[" * 100_000, '{"log": [1', '{"log": 3, "stream": 1}', '{"MESSAGE": [300], "_PID": 1}', "{" * 100_000]
    assert answer(read(*hostile)) == ("none", "unknown", Severity.UNKNOWN)


def test_of_many_channels_the_last_one_counts_as_if_each_were_read() -> None:
    """Of channels that differ only in numbers, one is parsed; the last one's position settles an earlier error."""
    many = [CHANNEL.replace("Channel 00", f"Channel {n:02}") for n in range(64)]
    assert read(*says("nid000001", *CXI, WORLD, *many[:-1], DENIED)).verdict.value == "plugin-init-error"
    ranks = [comm("0xa", 0, 16, 2), comm("0xb", 1, 16, 2)]
    lines = says("nid000001", *CXI, *ranks, *many[:-1], DENIED, *many[-1:])
    assert read_lines("j", lines).verdict.value == "ofi-cxi"
    assert read_files(("j", lines)) == read_lines("j", lines)


def test_what_ras_diagnostics_and_gin_say_is_a_cause_and_takes_no_network_back() -> None:
    for name, line in EXCERPTS["beside"].items():
        job = [*says("n1", *CXI, WORLD, CHANNEL), *says("n2", *CXI, comm("0xa", 8, 16, 2), CHANNEL)]
        alone, beside = read(*job), read(*job, line)
        assert (beside.verdict, beside.confidence) == (alone.verdict, alone.confidence), name
        ended = beside.ended.cause
        is_dead = name == "ras-process-dead"
        assert (ended, beside.severity) == ((name, Severity.PROBLEM) if is_dead else (None, alone.severity)), name
        assert name in [cause.id for cause in beside.causes], name
        for mark in ("The log says: ", "    ", "# ", "AssertionError: expected ", '+ grep "'):
            quoted = read(*job, mark + line.strip())
            assert [cause.id for cause in quoted.causes] == [cause.id for cause in alone.causes], mark


def begun(comm: str, state: str) -> list[str]:
    return says("n1", f"ncclCommInitRank comm {comm} rank 0 nranks 2 cudaDev 0 busId c1000 commId 0xb - Init {state}")


def split(comm: str, state: str) -> list[str]:
    of_parent = "busId 9e000 parent 0xa splitCount 1 color 2 key 0"
    mark = "- " if state == "START" else " - "
    return says("n1", f"ncclCommSplit comm {comm} rank 0 nranks 2 cudaDev 0 nvmlDev 0 {of_parent}{mark}Init {state}")


GOOD_JOBS = {
    "cxi": [
        *says("n1", *CXI, WORLD, CHANNEL, "Connected all rings"),
        *says("n2", *CXI, comm("0xb", 8, 16, 2), CHANNEL),
    ],
    "ib": [
        *says("n1", "Using network IB", WORLD, CHANNEL.replace("AWS Libfabric", "IB")),
        *says("n2", "Using network IB"),
    ],
    "one node": says("n1", comm("0xa", 0, 8, 1), "Using network Socket"),
}
FAILED_CALLS = [
    "init.cc:1582 -> 5",
    "init.cc:2031 (ncclCommInitRankFunc) -> 5",
    "group.cc:75 -> 2 [Async thread]",
    "enqueue.cc:1012 -> 1",
    "transport/net.cc:829 -> 2",
    "proxy.cc:858 -> 6 [Proxy Thread]",
    "misc/socket.cc:64 -> 6",
]
HARMLESS = ["misc/socket.cc:64 -> 3", "group.cc:75 -> 7", "plugin/net.cc:118 -> 2", "a.py:3 -> 2", "init.cc:1582 -> 0"]


def test_a_call_that_failed_leaves_no_green_answer_unless_the_process_went_on() -> None:
    for (name, job), tag in product(GOOD_JOBS.items(), ["", "0: ", "[1,0]<stderr>:"]):

        def after(*lines: str, job: list[str] = job, tag: str = tag) -> LogReport:
            return read(*(tag + line for line in (*job, *lines)))

        for call in FAILED_CALLS:
            lines = says("n1", "NCCL WARN Something that nobody knows", call)
            report = after(*lines)
            assert (report.severity, report.causes[0].id) == (Severity.UNKNOWN, "library-call-failed"), (name, call)
            assert "Something that nobody knows" in report.headline, (name, call)
            assert report.causes[0].evidence[-1].text.endswith(call), (name, call)
            assert after(*lines, *["step 1"] * 200).severity is Severity.UNKNOWN, (name, call)
            assert after(*lines, *job).severity is Severity.OK, "it was connected afterwards"
        for call in HARMLESS:
            assert after(*says("n1", call)).severity is Severity.OK, (name, call)
        assert after("The log says: init.cc:1582 -> 5").severity is Severity.OK, "of somebody else"


def test_a_communicator_that_was_never_completed_leaves_no_green_answer() -> None:
    for name in ("cxi", "ib"):
        job = GOOD_JOBS[name]
        start, complete, second = (begun(*of) for of in (("0xa", "START"), ("0xa", "COMPLETE"), ("0xc", "START")))
        for lines, answered in (
            ([*start, *job], Severity.UNKNOWN),
            ([*start, *job, *complete], Severity.OK),
            ([*start, *job, *complete, *second], Severity.UNKNOWN),
            ([*start, *job, *complete, *second, *begun("0xc", "COMPLETE")], Severity.OK),
            ([*start, *job, *complete, *start], Severity.UNKNOWN),  # at the same address
            ([*start, *job, *complete, *split("0xd", "START")], Severity.UNKNOWN),
            ([*start, *job, *complete, *split("0xd", "START"), *split("0xd", "COMPLETE")], Severity.OK),
        ):
            report = read(*lines)
            assert (report.severity is Severity.OK) is (answered is Severity.OK), (name, lines)
            first = report.causes[0].id if report.causes else ""
            assert (first == "init-not-completed") is (answered is Severity.UNKNOWN), (name, lines)


# -- what only all ranks of a job together can show


def ranks(number: int, *slow: int) -> list[str]:
    """Return what this number of ranks print if those on some nodes have no plugin."""
    return b"".join(job_log(number, 0, sick=frozenset(slow))).decode().splitlines()


def test_nodes_that_differ_lead_with_how_to_go_on_without_them_and_how_to_look_at_them() -> None:
    lead, *others = read(*ranks(8 * 16, 3, 4, 9)).causes
    assert lead.id == "some-nodes"
    assert lead.summary.startswith("3 of 16 nodes did not use the fast network: nid[005003-005004,005009]")
    assert "used it on 13, so look for a difference between nodes" in lead.summary
    assert lead.remedy[0].command == "#SBATCH --exclude=nid[005003-005004,005009]"
    assert "--nodes 3 --sbatch='--nodelist=nid[005003-005004,005009]" in lead.remedy[1]
    absent = next(cause for cause in others if cause.id == "plugin-absent")
    assert (absent.because, absent.remedy) == ((), lead.remedy[1:])
    assert absent.evidence
    # the nodes are quoted as one word, as brackets are a shell pattern
    word = "--sbatch=--nodelist=nid[005003-005004,005009] --gpus-per-node=8"
    shell = ["bash", "--norc", "-O", "failglob", "-c", f'lumiimg() {{ printf "%s\n" "$@"; }}; {lead.remedy[1].command}']
    assert word in subprocess.run(shell, capture_output=True, text=True, check=True).stdout.splitlines()


def test_ranks_without_a_channel_of_their_own_do_not_put_a_node_in_doubt() -> None:
    """Inner ranks of a node only reach their neighbours; before 2.21, no line reports the number of nodes."""
    before = [line for line in ranks(8 * 4, 3) if "nNodes" not in line]
    groups = {group.names: group.severity for group in read(*before).nodes}
    assert groups == {"nid005003": Severity.PROBLEM, "nid[005000-005002]": Severity.OK}


def test_where_the_fast_network_worked_on_few_nodes_the_image_is_looked_at() -> None:
    for slow in [tuple(range(9)), tuple(range(16)), ()]:
        causes = {cause.id: cause for cause in read(*ranks(8 * 16, *slow)).causes}
        assert "some-nodes" not in causes, slow
        assert not slow or causes["plugin-absent"].remedy, slow
