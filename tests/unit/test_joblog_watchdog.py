"""PyTorch's watchdogs show which rank stalled first: one behind, one that called something else, a silent one."""

from __future__ import annotations

import time

import pytest

from lumiimg.joblog import LogReport, read_lines

PLACE = "[rank{rank}]:[E1124 10:00:00.123456789 ProcessGroupNCCL.cpp:629] "
WAITED = (
    PLACE
    + "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={call}, {sizes}Timeout(ms)=8000) ran for 8012 milliseconds before timing out."
)
SIZES = "NumelIn={size}, NumelOut={size}, "
BEGUN = {
    "2.3": "[PG {group} Rank {rank}] Timeout at NCCL work: {number}, last enqueued NCCL work: {begun}, last completed NCCL work: {ended}.",
    "2.4": "[PG {group} (default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {number}, last enqueued NCCL work: {begun}, last completed NCCL work: {ended}.",
    "2.5": "[PG ID 0 PG GUID {group}(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {number}, last enqueued NCCL work: {begun}, last completed NCCL work: {ended}.",
    "2.11": "[PG ID 0 PG GUID {group}(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {number} PG status: last enqueued work: {begun}, last completed work: {ended}",
    "signal": "[PG ID 0 PG GUID {group}(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {begun}, last completed NCCL work: {ended}.",
}  # fmt: skip
"""Watchdog messages by release of PyTorch."""


def waited(rank: int, number: int = 12, call: str = "ALLREDUCE", size: int | None = 1024) -> str:
    sizes = SIZES.format(size=size) if size else ""
    return WAITED.format(rank=rank, number=number, call=call, sizes=sizes)


def begun(version: str, rank: int, begun: int, ended: int, group: str = "0") -> str:
    line = PLACE + BEGUN[version]
    return line.format(rank=rank, group=group, number=ended + 1, begun=begun, ended=ended)


def read(*lines: str) -> LogReport:
    """Return the report on a job of four ranks with these lines."""
    communicators = [
        f"n{rank // 2}:{rank + 1}:1 [0] NCCL INFO comm 0xa rank {rank} nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0"
        for rank in range(4)
    ]
    return read_lines("job.out", [*communicators, *lines])


def stall_of(*lines: str) -> tuple[str, str, bool] | None:
    stall = read(*lines).stall
    return (stall.ranks, stall.reason, stall.differs) if stall else None


@pytest.mark.parametrize("version", BEGUN)
def test_a_rank_that_had_begun_fewer_collectives_than_the_others_wait_for_is_named(version: str) -> None:
    lines = [begun(version, rank, 11 if rank == 2 else 12, 11) for rank in range(4)]
    assert stall_of(*lines) == ("2", "had begun 11 collectives where others had begun 12", False)
    lines = [begun(version, rank, 12, 12 if rank == 2 else 11) for rank in range(4)]
    assert stall_of(*lines) == (
        "2",
        "ended collective 12 of process group 0, in which the others still wait",
        True,
    )
    # all are in the same call; some have enqueued further ones
    assert stall_of(*(begun(version, rank, 20 + rank, 11) for rank in range(4))) is None
    # numbers of different groups are unrelated
    assert (
        stall_of(*(begun(version, rank, 20 + rank // 2, 19 + rank // 2, f"{rank // 2}") for rank in range(4))) is None
    )


def test_a_rank_that_never_reported_its_wait_is_named() -> None:
    stall = read(*(waited(rank) for rank in (0, 1, 3))).stall
    assert stall is not None
    assert stall.ranks == "2"
    assert stall_of(*map(waited, range(4))) is None
    assert stall_of(waited(0)) is None


def test_ranks_beyond_what_is_noted_or_reported_of_them_are_not_named() -> None:
    """The table of the job has 512 places, and a log may say any number of ranks."""
    huge = "nid1:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 9999999 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
    many = "nid1:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 600 nNodes 75 localRanks 8 localRank 0 MNNVL 0"
    started = time.process_time()
    assert stall_of(huge, waited(0), waited(1)) is None
    assert stall_of(many, *map(waited, range(600))) is None
    assert time.process_time() - started < 2.0


def test_ranks_that_called_another_collective_under_the_same_number_are_named_with_both() -> None:
    same = [waited(rank) for rank in (0, 1, 3)]
    assert stall_of(*same, waited(2, call="BROADCAST")) == (
        "2",
        "called BROADCAST as collective 12, others ALLREDUCE",
        True,
    )
    assert stall_of(*same, waited(2, size=512)) == (
        "2",
        "called ALLREDUCE with 512 elements as collective 12, others with 1024",
        True,
    )
    named = [begun("2.11", rank, 12, 11, "tp") for rank in range(4)]
    stall = read(*named, *same, waited(2, call="_ALLGATHER_BASE")).stall
    assert stall is not None
    assert stall.reason == "called _ALLGATHER_BASE as collective 12 of process group tp, others ALLREDUCE"


def test_a_collective_that_took_too_long_ended_the_job_with_the_rank_that_is_why() -> None:
    same = [waited(rank) for rank in (0, 1, 3)]
    others = [begun("2.11", rank, 12, 11) for rank in (0, 1, 3)]
    differs = [waited(2, call="BROADCAST"), begun("2.11", 2, 12, 11)]
    for last, cause in ((differs, "ranks-differ"), ([begun("signal", 2, 11, 11)], "rank-behind")):
        report = read(*same, *others, *last)
        assert (report.ended.cause, report.causes[0].id) == (cause, cause)
        assert report.headline.startswith(f"{cause}: A collective did not end in time; it began with rank 2, which ")
        assert report.causes[0].evidence
    assert read(*map(waited, range(4))).ended.cause == "collective-timeout"


def test_calls_that_may_differ_between_ranks_are_no_stall() -> None:
    assert stall_of(*(waited(rank, call="ALLTOALL_BASE", size=rank + 1) for rank in range(4))) is None
    assert stall_of(*(waited(rank, call=("SEND", "RECV")[rank % 2]) for rank in range(4))) is None
    assert stall_of(*(waited(rank, size=None) for rank in range(4))) is None
    # the same number in different groups
    groups = [begun("2.11", rank, 12, 11, f"{rank % 2}") for rank in range(4)]
    assert stall_of(*groups, *(waited(rank, call=("ALLREDUCE", "BROADCAST")[rank % 2]) for rank in range(4))) is None
