"""Which ranks a stall began with, from what PyTorch's watchdog on each rank prints when a collective takes too long.

torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: collectives are numbered within each process group, and the line that
reports which call took too long does not name the group; other lines of the same rank do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.core.text import count
from lumiimg.joblog.flight import Stall, differing, rank_ranges
from lumiimg.joblog.state import JOB_VALUE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.joblog.ending import Ending
    from lumiimg.joblog.report import Coverage, RankResult
    from lumiimg.joblog.state import Match, ProcessLog

_TIMED_OUT = "collective-timeout"


def stall_of(job: ProcessLog, ranks: Sequence[RankResult], seen: Coverage) -> Stall | None:
    """Return the ranks that a stall began with: they fell behind, called something else, or never waited."""
    begun, waited = job.saw("work-begun"), job.saw("collective-waited")
    return _differing(begun, waited) or _apart(begun) or _silent(waited, ranks, seen)


def ending_of(ending: Ending, stall: Stall | None) -> Ending:
    """Return the ending of a job whose collective timed out, refined if the ranks that caused it are known."""
    if stall is None or ending.cause != _TIMED_OUT:
        return ending
    return replace(ending, cause="ranks-differ" if stall.differs else "rank-behind", ranks=None, node=None)


def _apart(begun: Sequence[Match]) -> Stall | None:
    """Return the ranks that had not begun the collective that the others wait in, or had already ended it."""
    groups: dict[str, dict[int, tuple[int, int]]] = {}
    for one in begun:
        groups.setdefault(one.value("group"), {})[_number(one, "rank")] = (
            _number(one, "enqueued"),
            _number(one, "completed"),
        )
    for group, of in groups.items():
        least, most = (choose(number for number, _ in of.values()) for choose in (min, max))
        # others wait in the next one; beyond it, ranks may have enqueued more or fewer
        if least >= 0 and any(completed in {-1, least} and least < number for number, completed in of.values()):
            behind = [rank for rank, (number, _) in of.items() if number == least]
            return Stall(rank_ranges(behind), f"had begun {count(least, 'collective')} where others had begun {most}")
        waits = min((completed + 1 for number, completed in of.values() if 0 <= completed < number), default=0)
        if waits and (ahead := [rank for rank, (_, completed) in of.items() if completed >= waits]):
            of_group = f" of process group {group}" if group else ""
            reason = f"ended collective {waits}{of_group}, in which the others still wait"
            return Stall(rank_ranges(ahead), reason, differs=True)
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
    of_ranks = seen.of_ranks or 0
    if len(waited) == JOB_VALUE_LIMIT or of_ranks > 2 * len(waiting):  # limit reached, or most ranks did not wait
        return None
    if len(waiting) <= of_ranks:
        everyone = set(range(of_ranks))
    missing = everyone - waiting
    if waiting and missing and 2 * len(missing) <= len(everyone):
        return Stall(rank_ranges(missing), "never reported that a collective timed out, although the others did")
    return None


def _number(match: Match, name: str) -> int:
    return int(match.value(name) or -1)
