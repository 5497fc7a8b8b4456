"""Communicators that were begun but never completed, and the ranks that did not begin them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.joblog.ending import Ending
from lumiimg.joblog.flight import rank_ranges, ranks_word
from lumiimg.joblog.state import PROCESS_LIMIT
from lumiimg.joblog.vocabulary import vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.joblog.state import Match, ProcessLog


def incomplete_communicators(processes: Sequence[ProcessLog]) -> list[tuple[ProcessLog, Match]]:
    """Return where communicators of several ranks were begun but never completed."""
    found = []
    for process in processes:
        if len(begun := process.saw("init-begun")) < process.limit:
            ends = {(one.value("comm"), one.last_at) for one in process.saw("init-complete")}
            found += [
                (process, one)
                for one in begun
                if one.value("ranks") != "1" and not any(c == one.value("comm") and at > one.last_at for c, at in ends)
            ]
    return found


def ending_in_init(begun: tuple[ProcessLog, Match], processes: Sequence[ProcessLog]) -> Ending:
    """Return the ending of a job with a communicator that never completed, naming the ranks that did not begin it."""
    process, begin = begun
    here = next(
        (one for key, one in process.communicators.items() if key.startswith(f"{begin.value('comm')}/")),
        None,
    )
    summary, missing = vocabulary().advice["init-not-completed"].summary, set[int]()
    if here is not None and here.id is not None and here.ranks <= PROCESS_LIMIT:
        seen = (one for process in processes for one in process.communicators.values())
        missing = set(range(here.ranks)) - {one.rank for one in seen if one.id == here.id}
    if missing and here is not None:
        summary = f"{summary}: {ranks_word(rank_ranges(missing))} of {here.ranks} did not begin it in this log"
    return Ending(cause="init-not-completed", summary=summary)
