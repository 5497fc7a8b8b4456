"""oneCCL's log: what of it proves a network, and what does not."""

from __future__ import annotations

from pathlib import Path

from lumiimg.core.findings import Severity
from lumiimg.joblog import Confidence, LogReader, Verdict, read_lines
from lumiimg.joblog.lines import messages

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
    # the version was printed when the ranks of one node had talked; then the communicator of all was made
    near = FAR.replace("cnt 24 ]", "cnt 12 ]")
    nobodys = [line[line.index("|CCL") :] if "|CCL" in line else line for line in CXI]
    for lines in (without(VERSION), without(FAR), without(OPENED), [near, *without(FAR), FAR], nobodys):
        report = read_lines("job.out", lines)
        assert (report.verdict, report.confidence) == (Verdict.OFI_CXI, Confidence.LIKELY), lines
        assert report.severity is Severity.UNKNOWN, lines
    reader = LogReader()
    reader.feed("a.out", "\n".join(without(VERSION)).encode() + b"\n")
    reader.feed("b.out", VERSION.encode() + b"\n")
    assert reader.report().confidence is Confidence.LIKELY, "lines of two files have no order"


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


SPLIT = [
    ("2025:11:26-12:43:48:(40166) |CCL_INFO| a", [("process 40166", None, "|CCL_INFO| a")]),
    ("2024:08:21-10:24:26:( 4456) |CCL_ERROR| a", [("process 4456", None, "|CCL_ERROR| a")]),
    # from 2021.17 on, without parentheses
    ("2026:02:28-14:29:20:46486 |CCL_WARN| a", [("process 46486", None, "|CCL_WARN| a")]),
    ("3: 2025:11:26-12:43:48:(40166) |CCL_INFO| a", [(None, "3", "|CCL_INFO| a")]),
    (
        "x4117c4s5b0n0.hsn 3: 2025:11:26-12:43:48:(40166) |CCL_INFO| a",
        [("x4117c4s5b0n0.hsn:40166", None, "|CCL_INFO| a")],
    ),
    # two processes on one line
    (
        "2025:11:26-12:43:48:(41) |CCL_INFO| a2025:11:26-12:43:48:(42) |CCL_INFO| b",
        [("process 41", None, "|CCL_INFO| a"), ("process 42", None, "|CCL_INFO| b")],
    ),
    # what is quoted behind other words stays text
    (
        "what came first 2025:11:26-12:43:48:(41) |CCL_INFO| a",
        [(None, None, "what came first 2025:11:26-12:43:48:(41) |CCL_INFO| a")],
    ),
    ("|CCL_INFO| a", [(None, None, "|CCL_INFO| a")]),
    ("+ grep '|CCL_INFO| a' job.out", [(None, None, "+ grep '|CCL_INFO| a' job.out")]),
]


def test_a_line_is_split_into_its_messages() -> None:
    for line, found in SPLIT:
        said = messages(line.encode())
        assert [message[:3] for message in said] == found, (line, found)
        assert [message.signed for message in said] == [text.startswith("|CCL_") for *_, text in found], (line, found)
