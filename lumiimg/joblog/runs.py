"""Several runs in one log: a job that Slurm queued again, or two jobs that wrote to one file, the one after the other.

A run ends where all its processes have printed their last, and a rank begins again: on the same node, or on another
one after the job ended, or under another number of a job; or a process begins that does not get as far as a rank, on a
node whose ranks were connected before. In several files the order of lines is not known: they count as one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lumiimg.joblog.events import ProcessState, Sighting, piece_and_line
from lumiimg.joblog.job import JobState
from lumiimg.joblog.vocabulary import Ends, vocabulary

RUN_LIMIT = 64
_TASK = -1
"""In place of how many ranks there are: the number is that of a task, which may start several processes."""
_BEGINNING = ("bootstrap", "library", "plugin", "loaded", "provider", "initialized", "socket", "ib", "network")
"""What a process prints before it has a rank."""
_OF_AN_END = frozenset(Ends) - {Ends.NO, Ends.RAISED, Ends.WAITED, Ends.OTHER}


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


def runs(state: JobState) -> list[JobState]:
    """Return the state of each run, in order; that of the job alone where there is one run."""
    if len({state.pieces[piece_and_line(at)[0]].file for at in _positions(state)}) != 1:
        return [state]
    spans = list(_spans(state))
    if len(spans) < 2:
        return [state]
    marks = sorted(_marks(state))
    found = spans[:1]
    for span in spans[1:]:
        between = any(found[-1].end < mark <= span.start for mark in marks)
        if len(found) < RUN_LIMIT and _is_another_run(found[-1], span, between=between):
            found.append(span)
        else:
            found[-1].take(span)
    borders = [span.start for span in found[1:]]
    edges = zip([0, *borders], [*borders, 1 << 127], strict=True)
    return [_part(state, span.names, *edge) for span, edge in zip(found, edges, strict=True)] if borders else [state]


def first_line(state: JobState, of: JobState) -> int:
    """Return the line of the file on which a run begins: its first that is known."""
    return min((state.place(at)[1] for at in _positions(of)), default=1)


def _is_another_run(before: _Span, after: _Span, *, between: bool) -> bool:
    if before.connected and after.begun and after.nodes and after.nodes <= before.nodes:
        return True
    again = [(rank, before.ranks[rank], nodes) for rank, nodes in after.ranks.items() if rank in before.ranks]
    return any(between or (of != _TASK and not there.isdisjoint(nodes)) for (_, of), there, nodes in again)


def _spans(state: JobState) -> Iterator[_Span]:
    """Yield processes that are apart in the log, in its order."""
    spans = sorted(filter(None, map(_span, state.processes.values())), key=lambda span: span.start)
    current: _Span | None = None
    for span in spans:
        if current is not None and span.start <= current.end:
            current.take(span)
            continue
        if current is not None:
            yield current
        current = span
    if current is not None:
        yield current


def _span(process: ProcessState) -> _Span | None:
    seen = [sighting for kinds in process.events.values() for sighting in kinds]
    if not seen:
        return None
    largest = max((one.ranks for one in process.communicators.values()), default=0)
    ranks = {(one.rank, largest) for one in process.communicators.values() if one.ranks == largest}
    if process.task is not None:
        ranks.add((int(process.task), _TASK))
    start, end = min(one.first for one in seen), max(one.last for one in seen)
    connected = any(True for _ in process.saw("connected", "channel", "local-channel"))
    begun = not (connected or process.communicators) and any(True for _ in process.saw(*_BEGINNING))
    nodes = {process.node} if process.node else set()
    return _Span(start, end, {process.name}, {rank: {process.node} for rank in ranks}, nodes, connected, begun)


def _marks(state: JobState) -> Iterator[int]:
    """Yield where the log says that a job ended, or that another one began."""
    signatures = vocabulary().signatures
    for process in state.bare.values():
        for event, kinds in process.events.items():
            if event in signatures and signatures[event].ends in _OF_AN_END:
                yield from (at for one in kinds for at in (one.first, one.last))
    numbers = [one for one in state.job.saw("slurm") if one.value("name") == "SLURM_JOB_ID"]
    yield from (one.first for one in numbers[1:])


def _positions(state: JobState) -> Iterator[int]:
    for process in (*state.processes.values(), *state.bare.values(), state.job):
        yield from (one.first for kinds in process.events.values() for one in kinds)


def _part(state: JobState, names: set[str], start: int, end: int) -> JobState:
    """Return what is of one run: its processes, and the other lines between its first line and the next run's."""
    part = JobState(pieces=state.pieces)
    part.processes = {name: process for name, process in state.processes.items() if name in names}
    part.bare = {key: _cut(process, start, end) for key, process in state.bare.items()}
    part.bare = {key: process for key, process in part.bare.items() if process.events}
    part.owners = {key: left for key, of in state.owners.items() if (left := of & names)}
    part.holders = {key: left for key, of in state.holders.items() if (left := of & names)}
    part.job = _cut(state.job, start, end)
    if end > 1 << 120:
        part.bandwidth, part.dumps = state.bandwidth, state.dumps
    return part


def _cut(process: ProcessState, start: int, end: int) -> ProcessState:
    part = ProcessState(process.name, process.shared, limit=process.limit)
    part.communicators = process.communicators
    for event, kinds in process.events.items():
        if left := list(_between(kinds, start, end)):
            part.events[event] = left
    return part


def _between(seen: Iterable[Sighting], start: int, end: int) -> Iterator[Sighting]:
    """Yield what was seen there; of what was seen often only the first and the last place are known."""
    for one in seen:
        places = [at for at in (one.first, one.last) if start <= at < end]
        if places:
            yield replace(one, first=min(places), last=max(places))
