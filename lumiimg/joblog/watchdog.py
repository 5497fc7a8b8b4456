"""With which ranks a stall began, by what PyTorch's watchdog of each rank says when a collective takes too long.

torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: collectives are numbered in each process group, and the line that says
which call took too long does not name the group; others of the same rank do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.joblog.flight import Stall, differing, rank_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.joblog.report import Coverage, RankResult
    from lumiimg.joblog.state import Match, ProcessLog


def stall_of(job: ProcessLog, ranks: Sequence[RankResult], seen: Coverage) -> Stall | None:
    """Return which ranks a stall began with: those behind the others, that called something else, or never waited."""
    begun, waited = job.saw("work-begun"), job.saw("collective-waited")
    return _behind(begun) or _differing(begun, waited) or _silent(waited, ranks, seen)


def _behind(begun: Sequence[Match]) -> Stall | None:
    groups: dict[str, dict[int, tuple[int, int]]] = {}
    for one in begun:
        groups.setdefault(one.value("group"), {})[_number(one, "rank")] = (
            _number(one, "enqueued"),
            _number(one, "completed"),
        )
    for of in groups.values():
        least, most = (choose(number for number, _ in of.values()) for choose in (min, max))
        # others wait in the next one; behind it, ranks may have asked for more or less
        if least >= 0 and any(completed in {-1, least} and least < number for number, completed in of.values()):
            behind = [rank for rank, (number, _) in of.items() if number == least]
            return Stall(rank_ranges(behind), f"had begun {least} collectives where others had begun {most}")
    return None


def _differing(begun: Sequence[Match], waited: Sequence[Match]) -> Stall | None:
    group_of = {(_number(one, "rank"), _number(one, "number")): one.value("group") for one in begun}
    alike: dict[tuple[str, int], dict[int, Match]] = {}
    for one in waited:
        rank, number = _number(one, "rank"), _number(one, "number")
        if number >= 0:
            alike.setdefault((group_of.get((rank, number), ""), number), {})[rank] = one
    for (group, number), of in alike.items():
        calls = {rank: one.value("call") for rank, one in of.items()}
        sizes = {rank: _number(one, "elements") for rank, one in of.items()}
        what = f"collective {number} of process group {group}" if group else f"collective {number}"
        if found := differing(what, calls, sizes):
            return found
    return None


def _silent(waited: Sequence[Match], ranks: Sequence[RankResult], seen: Coverage) -> Stall | None:
    waiting = {_number(one, "rank") for one in waited}
    everyone = {rank.rank for rank in ranks if rank.rank is not None}
    if seen.of_ranks and len(waiting) <= seen.of_ranks:
        everyone = set(range(seen.of_ranks))
    missing = everyone - waiting
    if waiting and missing and 2 * len(missing) <= len(everyone):
        return Stall(rank_ranges(missing), "never reported that a collective timed out, as the others did")
    return None


def _number(match: Match, name: str) -> int:
    return int(match.value(name) or -1)
