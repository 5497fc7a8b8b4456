"""The line that is quoted for a cause is of a rank that went wrong: of the one that died, of a node that is slow."""

from __future__ import annotations

from lumiimg.joblog import read_lines
from tests.shared.job_deaths import EXITED, FRAMES, job

OOM = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB"
P2P = "NCCL_P2P_DISABLE set by environment to 1."


def test_the_line_of_the_rank_that_died_is_quoted_and_not_that_of_one_that_went_on() -> None:
    for here, there in ((OOM, f"{OOM}. GPU 0 has a total capacity of 64 GiB"), (OOM, OOM)):
        caught = [f"0: {line}" for line in (*FRAMES, here)]
        ended = [f"9: {line}" for line in (*FRAMES, there)]
        exited = [line.format(rank=9, node="nid005102") for line in EXITED]
        report = read_lines("job.out", [*job("cxi", 0, 9), *caught, *job("cxi", 0), *ended, *exited])
        assert (report.ended.ranks, report.causes[0].id) == ("9", report.ended.cause)
        assert report.causes[0].evidence[0].text.startswith("9: ")


def test_of_a_job_with_slow_nodes_the_line_of_a_slow_one_is_quoted() -> None:
    lines = [f"{rank}: nid00510{1 + rank // 8}:{100 + rank}:1 [0] NCCL INFO {P2P}" for rank in (0, 3, 9)]
    report = read_lines("job.out", [*lines, *job("cxi", 0, 3), *job("tcp", 9)])
    assert report.verdict == "mixed"
    quoted = [cause.evidence[0].text for cause in report.causes if cause.evidence]
    assert any(P2P in text for text in quoted)
    assert all(text.startswith("nid005102") for text in quoted)
