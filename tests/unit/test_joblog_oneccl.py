"""oneCCL's log: what in it proves a network, and what does not."""

from __future__ import annotations

from pathlib import Path

from lumiimg.core.findings import Severity
from lumiimg.joblog import Confidence, Verdict, read_lines
from tests.shared.joblog import read_files

FIXTURES = Path(__file__).parent.parent / "fixtures" / "nccl"
CXI = (FIXTURES / "oneccl-2021.15.2-cxi.log").read_text().splitlines()
VERSION = next(line for line in CXI if "library version" in line)
FAR = next(line for line in CXI if "coord: global [ idx 0" in line)
OPENED = next(line for line in CXI if " 0: " in line and "cxi tag_bits" in line)


def without(*dropped: str) -> list[str]:
    return [line for line in CXI if line not in dropped]


def test_slingshot_is_proved_by_the_lines_that_prove_it() -> None:
    report = read_lines("job.out", CXI)
    assert (report.verdict, report.confidence, report.severity) == (Verdict.OFI_CXI, Confidence.PROVED, Severity.OK)
    shown = "\n".join(evidence.text for evidence in report.proof)
    assert "provider: cxi" in shown
    assert "cnt 24 ], local [ idx 0, cnt 12 ]" in shown
    assert "library version" in shown
    (communicator,) = report.communicators
    assert (communicator.ranks, communicator.nodes, communicator.crosses_network) == (24, None, True)


def test_without_those_lines_in_their_order_of_one_process_it_is_not_proved() -> None:
    # the version was printed after the ranks of one node had connected; then the communicator of all was created
    near = FAR.replace("cnt 24 ]", "cnt 12 ]")
    nobodys = [line[line.index("|CCL") :] if "|CCL" in line else line for line in CXI]
    for lines in (without(VERSION), without(FAR), without(OPENED), [near, *without(FAR), FAR], nobodys):
        report = read_lines("job.out", lines)
        assert (report.verdict, report.confidence) == (Verdict.OFI_CXI, Confidence.LIKELY), lines
        assert report.severity is Severity.UNKNOWN, lines
    assert read_files(("a.out", without(VERSION)), ("b.out", [VERSION])).confidence is Confidence.LIKELY, (
        "lines of two files have no order"
    )


def test_ranks_of_one_node_need_no_network_and_a_line_shows_it() -> None:
    report = read_lines("job.out", [FAR.replace("cnt 24 ]", "cnt 12 ]")])
    assert (report.verdict, report.confidence) == (Verdict.INTRA_NODE_ONLY, Confidence.PROVED)
    assert [evidence.line for evidence in report.proof] == [1]
    assert [(each.nodes, each.crosses_network) for each in report.communicators] == [(1, False)]


def test_what_stays_on_the_node_and_the_mpi_of_another_program_are_no_second_network() -> None:
    near = OPENED.replace("cxi tag_bits", "shm tag_bits")
    provider = next(line for line in CXI if "provider: cxi" in line).replace("cxi", "shm")
    for before in ([near, provider], ["[0] MPI startup(): libfabric provider: tcp"]):
        report = read_lines("job.out", [*before, *CXI])
        assert (report.verdict, report.confidence, report.provider) == (Verdict.OFI_CXI, Confidence.PROVED, "cxi")
    assert read_lines("job.out", ["[0] MPI startup(): libfabric provider: cxi"]).verdict is Verdict.NONE
    line = "2025:11:26-12:43:47:(40166) |CCL_WARN| value of CCL_ATL_TRANSPORT changed to be ofi (default:mpi)"
    assert read_lines("job.out", [line]).environment["CCL_ATL_TRANSPORT"] == "ofi"


WHOSE = {
    "2025:11:26-12:43:48:(40166) ": "process 40166",
    "2024:08:21-10:24:26:( 4456) ": "process 4456",
    "2026:02:28-14:29:20:46486 ": "process 46486",  # from 2021.17 on
    "3: 2025:11:26-12:43:48:(40166) ": "task 3",
    "x4117c4s5b0n0.hsn 3: 2025:11:26-12:43:48:(40166) ": "x4117c4s5b0n0.hsn:40166",
    "2025:11:26-12:43:48:(41) |CCL_INFO| a2025:11:26-12:43:48:(42) ": "process 42",
    "what came first 2025:11:26-12:43:48:(41) ": None,
    "+ grep '": None,
}
"""Prefixes of a message and the process they mean; after other words the message is a quotation."""


def test_a_message_is_of_the_process_that_its_line_names() -> None:
    text = next(line for line in CXI if "provider: cxi" in line).partition("|CCL")
    for before, whose in WHOSE.items():
        ranks = read_lines("job.out", [before + "".join(text[1:])]).ranks
        assert [rank.process for rank in ranks] == ([whose] if whose else []), before
