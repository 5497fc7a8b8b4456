"""What only all ranks of a job together show: nodes and variables that differ from the others, where a stall began."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from lumiimg.joblog import read_lines

if TYPE_CHECKING:
    from lumiimg.joblog import LogReport

FAST = (
    "NCCL_NET_GDR_LEVEL set by environment to PHB",
    "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
    "comm 0xa rank {rank} nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0",
    "Using network AWS Libfabric",
    "16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    "Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/AWS Libfabric/0/GDRDMA",
    "Channel 01/0 : 0[c1000] -> 1[c6000] via P2P/IPC",
    "Connected all rings",
)
SLOW = (
    "comm 0xa rank {rank} nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0",
    "NET/Plugin: Could not find: librccl-net.so.",
    "Using network Socket",
    "Channel 00/0 : 0[c1000] -> 8[c1000] [send] via NET/Socket/0",
)


def job(nodes: int, slow: tuple[int, ...] = ()) -> list[str]:
    return [
        f"nid{5100 + rank:06}:{200 + rank}:1 [0] NCCL INFO {line.format(rank=rank, ranks=nodes, nodes=nodes)}"
        for rank in range(nodes)
        for line in (SLOW if rank in slow else FAST)
    ]


def read(lines: list[str]) -> LogReport:
    return read_lines("job.out", lines)


def test_nodes_that_differ_lead_with_how_to_go_on_without_them_and_how_to_look_at_them() -> None:
    lead, *others = read(job(16, slow=(3, 4, 9))).causes
    assert lead.id == "some-nodes"
    assert lead.summary.startswith("3 of 16 nodes did not use the fast network: nid[005103-005104,005109]")
    assert "used it on 13, so look for a difference between nodes" in lead.summary
    assert lead.remedy[0].endswith("sbatch '--exclude=nid[005103-005104,005109]' {script}")
    assert "--nodes 3 --sbatch='--nodelist=nid[005103-005104,005109]" in lead.remedy[1]
    absent = next(cause for cause in others if cause.id == "plugin-absent")
    assert (absent.because, absent.remedy) == ((), lead.remedy[1:])
    assert absent.evidence
    # the nodes are one word where brackets are a pattern
    words = ["--exclude=nid[005103-005104,005109]", "--sbatch=--nodelist=nid[005103-005104,005109] --gpus-per-node=8"]
    for remedy, word in zip(lead.remedy, words, strict=True):
        program = f'sbatch() {{ printf "%s\n" "$@"; }}; lumiimg() {{ sbatch "$@"; }}; {remedy.command}'
        shell = ["bash", "--norc", "-O", "failglob", "-c", program]
        assert word in subprocess.run(shell, capture_output=True, text=True, check=True).stdout.splitlines()


def test_where_the_fast_network_worked_on_few_nodes_the_image_is_looked_at() -> None:
    for slow in [tuple(range(9)), tuple(range(16)), ()]:
        causes = {cause.id: cause for cause in read(job(16, slow=slow)).causes}
        assert "some-nodes" not in causes, slow
        assert not slow or causes["plugin-absent"].remedy, slow


WATCHDOG = "[rank{0}]:[E1124 10:00:00.123 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)"
BEGUN = "[rank{0}]:[E1124 10:00:00.123 ProcessGroupNCCL.cpp:1537] [PG ID 0 PG GUID 0 Rank {0}] Timeout at NCCL work: {1}, last enqueued NCCL work: {1}, last completed NCCL work: 10."


def test_a_stall_began_with_the_rank_that_had_begun_fewer_collectives_or_never_said_that_it_waited() -> None:
    stall = read([*job(4), *(BEGUN.format(rank, 11 if rank == 2 else 12) for rank in range(4))]).stall
    assert stall is not None
    assert (stall.ranks, stall.reason) == ("2", "had begun 11 collectives where others had begun 12")
    stall = read([*job(4), *(WATCHDOG.format(rank) for rank in (0, 1, 3))]).stall
    assert stall is not None
    assert stall.ranks == "2"
    assert read([*job(4), *map(WATCHDOG.format, range(4))]).stall is None
    assert read([*job(4), WATCHDOG.format(0)]).stall is None
