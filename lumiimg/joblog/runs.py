"""Several runs in one log: a job that Slurm queued again, or two jobs that wrote to one file, the one after the other.

A run ends where all its processes have printed their last, and a rank begins again: on the same node, or on another
one after the job ended, or under another number of a job; or a process begins that does not get as far as a rank, on a
node whose ranks were connected before. In several files the order of lines is not known: they count as one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lumiimg.joblog.state import JobLog, Match, ProcessLog, piece_and_line
from lumiimg.joblog.vocabulary import ExitRole, vocabulary

_MOST_RUNS = 64
_TASK = -1
"""In place of how many ranks there are: the number is that of a task, which may start several processes."""
_BEGINNING = ("bootstrap", "library", "plugin", "loaded", "provider", "initialized", "socket", "ib", "network")
"""What a process prints before it has a rank."""
_OF_AN_END = frozenset(ExitRole) - {ExitRole.NO, ExitRole.RAISED, ExitRole.WAITED, ExitRole.OTHER}
_BEYOND_ALL = 1 << 127


@dataclass(slots=True)
class _Span:
    """Processes whose lines lie among each other's."""

    start: int
    end: int
    names: set[str]
    ranks: dict[tuple[int, int], set[str | None]]
    """Nodes of each rank, by its number and how many there are."""
    nodes: set[str]
    connected: bool
    """A process of it was connected."""
    begun: bool
    """All it has is the beginning of processes that have no rank yet."""

    def take(self, other: _Span) -> None:
        self.end = max(self.end, other.end)
        self.names |= other.names
        self.nodes |= other.nodes
        self.connected |= other.connected
        self.begun &= other.begun
        for rank, nodes in other.ranks.items():
            self.ranks.setdefault(rank, set()).update(nodes)


def runs(log: JobLog) -> list[JobLog]:
    """Return what is of each run, in order; the log alone where there is one run."""
    if len({log.segments[piece_and_line(match.first_at)[0]].file for match in _matches(log)}) != 1:
        return [log]
    marks = sorted(_marks(log))
    found: list[_Span] = []
    for span in _spans(log):
        between = bool(found) and any(found[-1].end < mark <= span.start for mark in marks)
        if not found or (len(found) < _MOST_RUNS and _is_another_run(found[-1], span, between=between)):
            found.append(span)
        else:
            found[-1].take(span)
    if len(found) < 2:
        return [log]
    borders = [0, *(span.start for span in found[1:]), _BEYOND_ALL]
    return [_part(log, span.names, *borders[number : number + 2]) for number, span in enumerate(found)]


def first_line(log: JobLog, run: JobLog) -> int:
    """Return the line of the file on which a run begins: its first that is known."""
    return min((log.place(match.first_at)[1] for match in _matches(run)), default=1)


def _matches(log: JobLog) -> Iterator[Match]:
    for process in (*log.processes.values(), *log.bare.values(), log.job):
        yield from process.matches


def _is_another_run(before: _Span, after: _Span, *, between: bool) -> bool:
    if before.connected and after.begun and after.nodes and after.nodes <= before.nodes:
        return True
    again = [(rank, before.ranks[rank], nodes) for rank, nodes in after.ranks.items() if rank in before.ranks]
    return any(between or (of != _TASK and not there.isdisjoint(nodes)) for (_, of), there, nodes in again)


def _spans(log: JobLog) -> list[_Span]:
    """Return processes that are apart in the log, in its order."""
    found: list[_Span] = []
    spans = [_span(process) for process in log.processes.values() if process.events]
    for span in sorted(spans, key=lambda span: span.start):
        if found and span.start <= found[-1].end:
            found[-1].take(span)
        else:
            found.append(span)
    return found


def _span(process: ProcessLog) -> _Span:
    largest = max((one.ranks for one in process.communicators.values()), default=0)
    ranks = {(one.rank, largest) for one in process.communicators.values() if one.ranks == largest}
    if process.task is not None:
        ranks.add((int(process.task), _TASK))
    connected = bool(process.saw("connected", "channel", "local-channel"))
    return _Span(
        start=min(one.first_at for one in process.matches),
        end=max(one.last_at for one in process.matches),
        names={process.name},
        ranks={rank: {process.node} for rank in ranks},
        nodes={process.node} if process.node else set(),
        connected=connected,
        begun=not (connected or process.communicators) and bool(process.saw(*_BEGINNING)),
    )


def _marks(log: JobLog) -> Iterator[int]:
    """Yield where the log says that a job ended, or that another one began."""
    signatures = vocabulary().signatures
    for process in log.bare.values():
        for match in process.matches:
            if match.event in signatures and signatures[match.event].ends in _OF_AN_END:
                yield from (match.first_at, match.last_at)
    numbers = [one for one in log.job.saw("slurm") if one.value("name") == "SLURM_JOB_ID"]
    yield from (one.first_at for one in numbers[1:])


def _part(log: JobLog, names: set[str], start: int, end: int) -> JobLog:
    """Return what is of one run: its processes, and the other lines between its first line and the next run's."""
    bare = {key: _cut(process, start, end) for key, process in log.bare.items()}
    is_last = end == _BEYOND_ALL
    return replace(
        log,
        processes={name: process for name, process in log.processes.items() if name in names},
        bare={key: process for key, process in bare.items() if process.events},
        owners={key: left for key, of in log.owners.items() if (left := of & names)},
        values_by_process={key: left for key, of in log.values_by_process.items() if (left := of & names)},
        job=_cut(log.job, start, end),
        bandwidth=log.bandwidth if is_last else None,
        dumps=log.dumps if is_last else [],
    )


def _cut(process: ProcessLog, start: int, end: int) -> ProcessLog:
    """Return what was seen there; of what was seen often only the first and the last place are known."""
    events: dict[str, list[Match]] = {}
    for match in process.matches:
        if places := [at for at in (match.first_at, match.last_at) if start <= at < end]:
            cut = replace(match, first_at=min(places), last_at=max(places))
            events.setdefault(match.event, []).append(cut)
    return replace(process, events=events)
