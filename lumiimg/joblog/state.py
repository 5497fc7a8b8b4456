"""What a log was seen to say of a job: a bounded table for each of its processes, match by match.

A position is one number for a message of the job: piece of the log, line in the piece, message in the line. Positions
are in the order in which the log was written, where that is known: that of its files, and of the lines in each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lumiimg.joblog.lines import evidence_text
from lumiimg.joblog.report import Evidence
from lumiimg.joblog.vocabulary import ExitRole, vocabulary

if TYPE_CHECKING:
    from lumiimg.joblog.bandwidth import BandwidthReader
    from lumiimg.joblog.flight import FlightDump

VALUE_LIMIT = 16
"""Different values of one event and process that are kept (network names, missing libraries)."""
JOB_VALUE_LIMIT = 512
"""The same for what is kept of the whole job (variables)."""
COMMUNICATOR_LIMIT = 64
"""Communicators kept of one process."""
PROCESS_LIMIT = 65_536
"""Processes that are distinguished; the lines of any more are read as if they were of one."""
STATED = frozenset(
    {"network", "channel", "local-channel", "provider", "initialized", "socket", "ib", "gdr-device", "connected"}
    | {"communicator", "coordinates", "oneccl-library", "endpoints"}
)
"""What a library prints with its origin. Where it does, the same without one is quoted."""
_BEYOND = "processes beyond the limit"
_MOST_RUNS = 64
_TASK = -1
"""In place of how many ranks there are: the number is that of a task, which may start several processes."""
_BEGINNING = ("bootstrap", "library", "plugin", "loaded", "provider", "initialized", "socket", "ib", "network")
"""What a process prints before it has a rank."""
_OF_AN_END = frozenset(ExitRole) - {ExitRole.NO, ExitRole.RAISED, ExitRole.WAITED, ExitRole.OTHER}
_PIECE_SHIFT, _LINE_SHIFT = 40, 8
"""Positions in a million pieces stay below 2^60, where an integer takes the least memory."""

Values = tuple[tuple[str, str], ...]
"""The named groups of a match."""


def position(piece: int, line: int, message: int) -> int:
    """Return the position of a message; lines count from 0."""
    return piece << _PIECE_SHIFT | line << _LINE_SHIFT | min(message, 255)


def piece_and_line(at: int) -> tuple[int, int]:
    """Return the piece, and the line in it from 0 on."""
    return at >> _PIECE_SHIFT, at >> _LINE_SHIFT & (1 << _PIECE_SHIFT - _LINE_SHIFT) - 1


@dataclass(slots=True, eq=False)
class Match:
    """An event with the same values, seen once or more."""

    event: str
    values: Values
    before: str
    """What stood before `said`: most of what the processes of a job say, they say alike."""
    said: str
    """What is kept of the first message that showed it, as it stood there."""
    first_at: int
    """Position of that message."""
    last_at: int
    """Position of the latest."""
    has_origin: bool = True
    """A line with `host:pid:tid` showed it."""

    def value(self, name: str) -> str:
        return dict(self.values).get(name, "")

    @property
    def excerpt(self) -> str:
        """What is kept of the first message."""
        return self.before + self.said

    @property
    def text(self) -> str:
        """Of the first message that showed it, as it may stand in a report."""
        return evidence_text(self.excerpt)


@dataclass(slots=True)
class CommunicatorSeen:
    """What a process said about one of its communicators."""

    rank: int
    ranks: int
    nodes: int | None = None
    id: str | None = None
    has_origin: bool = True
    """As of a Match."""
    here: int | None = None
    """Ranks of it on this process's node, where that is known and the number of nodes is not."""

    @property
    def crosses(self) -> bool | None:
        """Whether it spans nodes; None where the log does not say (before 2.21 no line has `nNodes`)."""
        if self.here is not None or self.ranks == 1:
            return self.ranks > (self.here or 1)
        return None if self.nodes is None else self.nodes > 1


@dataclass(slots=True, eq=False)
class ProcessLog:
    """What one process printed; lines without a prefix have one of their own until it is known whose they are."""

    name: str
    shared: bool = False
    """Lines without prefix or task: they may be of any process of the job."""
    limit: int = VALUE_LIMIT
    task: str | None = None
    """The number that the launcher put before its lines."""
    events: dict[str, tuple[Match, ...]] = field(default_factory=dict)
    communicators: dict[str, CommunicatorSeen] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The host's name; None where the lines carry none."""
        host, colon, pid = self.name.rpartition(":")
        return host if colon and pid.isdecimal() and host and not self.shared else None

    @property
    def matches(self) -> Iterator[Match]:
        """Matches of all events."""
        return (match for matches in self.events.values() for match in matches)

    def known(self, event: str, values: Values) -> Match | None:
        """Return the match of the event with these values."""
        for match in self.events.get(event, ()):
            if match.values == values:
                return match
        return None

    def add(self, match: Match) -> bool:
        """Take a match that is not known yet; return whether it stays: of too many, the first and the latest do."""
        matches = self.events.get(match.event, ())
        self.events[match.event] = (*matches[: self.limit - 1], match)
        return len(matches) < self.limit

    def add_communicator(self, key: str, seen: CommunicatorSeen) -> None:
        """Take what one line says of a communicator; of many the first are kept."""
        known = self.communicators.get(key)
        if known is not None:
            known.nodes, known.id = seen.nodes or known.nodes, seen.id or known.id
            known.has_origin &= seen.has_origin
        elif len(self.communicators) < COMMUNICATOR_LIMIT:
            self.communicators[key] = seen

    def saw(self, *events: str) -> list[Match]:
        """Return all matches of these events, in the order in which they were first seen."""
        found = [match for event in events for match in self.events.get(event, ())]
        if len(found) > 1:
            found.sort(key=_first_at)
        return found

    def without(self, events: Collection[str]) -> ProcessLog:
        """Return the same but for some events."""
        left = {event: matches for event, matches in self.events.items() if event not in events}
        communicators = {} if "communicator" in events else self.communicators
        return replace(self, events=left, communicators=communicators)

    def since(self, start: int) -> ProcessLog:
        """Return what was seen from a position on; of what was seen often, the first and the last place are known."""
        events: dict[str, list[Match]] = {}
        for match in self.matches:
            if match.last_at >= start:
                at = match.first_at if match.first_at >= start else match.last_at
                events.setdefault(match.event, []).append(replace(match, first_at=at))
        return replace(self, events={event: tuple(matches) for event, matches in events.items()})


def joined(parts: Sequence[ProcessLog]) -> ProcessLog:
    """Return what several logs of one process show together; it changes none of them."""
    if len(parts) == 1:
        return parts[0]
    whole = replace(parts[0], events={}, communicators={}, task=next((one.task for one in parts if one.task), None))
    for event in dict.fromkeys(event for part in parts for event in part.events):
        found: dict[Values, Match] = {}
        for match in sorted((match for part in parts for match in part.events.get(event, ())), key=_first_at):
            known = found.get(match.values)
            if known is None:
                found[match.values] = replace(match)
            else:
                known.last_at = max(known.last_at, match.last_at)
                known.has_origin |= match.has_origin
        # as if all had been seen in order, whoever saw them
        whole.events[event] = ()
        for match in found.values():
            whole.add(match)
    for part in parts:
        for key, seen in part.communicators.items():
            whole.add_communicator(key, replace(seen))
    return whole


def _first_at(match: Match) -> int:
    return match.first_at


def first_matches(processes: Iterable[ProcessLog], event: str) -> list[Match]:
    """Return one match for each different value of the event in the job, in order."""
    found: dict[Values, Match] = {}
    for match in sorted((match for process in processes for match in process.events.get(event, ())), key=_first_at):
        found.setdefault(match.values, match)
    return list(found.values())


@dataclass(slots=True)
class LogSegment:
    """A file, or what was read of it before another one."""

    file: str
    before: int = 0
    """Lines of the file that were read before."""
    lines: int = 0
    records: int = 0
    """Lines that begin as one of a collector of containers' logs, or are empty."""
    tail: bytes | None = None
    """The end of it, where an error was seen in it."""


@dataclass(slots=True)
class JobLog:
    """All that is kept of a log; memory grows with the processes, not with the lines."""

    processes: dict[str, ProcessLog] = field(default_factory=dict)
    bare: dict[tuple[str, str | None], ProcessLog] = field(default_factory=dict)
    """Lines without `host:pid`, by file and task."""
    owners: dict[tuple[str, str | None], tuple[str, ...]] = field(default_factory=dict)
    """Processes seen beside them; two are enough to know that the owner is unknown."""
    job: ProcessLog = field(default_factory=lambda: ProcessLog("job", limit=JOB_VALUE_LIMIT))
    """What is true of the whole job, whoever printed it: variables, versions."""
    segments: dict[int, LogSegment] = field(default_factory=dict)
    last_piece: dict[str, int] = field(default_factory=dict)
    """Of each file, the number of the last segment that has lines."""
    bandwidth: BandwidthReader | None = None
    """Tables of benchmarks, where there are any."""
    dumps: list[FlightDump] = field(default_factory=list)
    """Of PyTorch's flight recorder, those that were handed in beside the log."""

    def note_owner(self, process: str, task: str | None, file: str) -> None:
        """Note that a process wrote to a file, and for which task."""
        for key in ((file, task), (file, None)):
            owners = self.owners.get(key, ())
            if process not in owners and len(owners) < 2 and (owners or len(self.owners) < PROCESS_LIMIT):
                self.owners[key] = (*owners, process)

    def process(self, name: str | None, task: str | None, file: str) -> ProcessLog:
        """Return the process that a message belongs to."""
        if name is not None and (known := self.processes.get(name)) is not None:
            return known
        if name is not None and len(self.processes) < PROCESS_LIMIT:
            return self.processes.setdefault(name, ProcessLog(name, task=task))
        if name is not None:
            # All beyond the limit are one, under the name of the first: a host's name is a hint of its network.
            return self.bare.setdefault((file, _BEYOND), ProcessLog(name, shared=True))
        key = (file, task)
        if task is None or (key not in self.bare and len(self.bare) >= PROCESS_LIMIT):
            return self.bare.setdefault((file, None), ProcessLog(file, shared=True))
        return self.bare.setdefault(key, ProcessLog(f"task {task}"))

    def attributed(self) -> list[ProcessLog]:
        """Return the processes in the order of their first lines, lines without prefix given to whose they must be.

        They are those of the one process that wrote to the same file for the same task; where no process did (libfabric
        warns on stderr, in a file of its own), those of the one that wrote for that task anywhere.
        """
        stated = STATED.intersection(event for process in self.processes.values() for event in process.events)
        anywhere: dict[str | None, set[str]] = {}
        for (_, task), names in self.owners.items():
            anywhere.setdefault(task, set()).update(names)
        parts = {(name, ""): [process] for name, process in self.processes.items()}
        for (file, task), bare in self.bare.items():
            owners = self.owners.get((file, task)) or tuple(anywhere.get(task, ()))
            if task == _BEYOND:
                parts.setdefault(("", _BEYOND), []).append(bare)
            elif len(owners) == 1:
                (name,) = owners
                parts.setdefault((name, ""), []).append(replace(bare.without(stated), name=name, shared=False))
            else:
                # lines of any process stay lines of any process, in however many files they stand
                parts.setdefault(("", "" if bare.shared else f"{task}"), []).append(bare.without(stated))
        return sorted(map(joined, parts.values()), key=lambda one: min(map(_first_at, one.matches), default=0))

    def same_file(self, one: int, other: int) -> bool:
        """Whether two positions are in one file, so that the smaller one was written first."""
        return self.file(one) == self.file(other)

    def file(self, at: int) -> str:
        """Return the file of a position."""
        return self.segments[piece_and_line(at)[0]].file

    def lines_after(self, at: int) -> list[bytes] | None:
        """Return the lines of its file that follow a position; None where they are more than are kept."""
        number, line = piece_and_line(at)
        here = self.segments[number]
        count = here.lines - line - 1
        tail = (here.tail or b"").removesuffix(b"\n")
        if self.last_piece[here.file] > number or 0 < count >= tail.count(b"\n") + 1:
            return None
        kept = tail.split(b"\n")
        return kept[len(kept) - count :]

    def place(self, at: int) -> tuple[str, int]:
        """Return the file and the line, from 1 on, of a position."""
        number, line = piece_and_line(at)
        here = self.segments[number]
        return here.file, here.before + line + 1

    @property
    def matches(self) -> Iterator[Match]:
        """All of all processes."""
        every = (*self.processes.values(), *self.bare.values(), self.job)
        return (match for process in every for match in process.matches)

    def evidence(self, match: Match) -> Evidence:
        """Return the line that showed a match first."""
        return Evidence(*self.place(match.first_at), match.text)


# -- several runs in one log: a job that Slurm queued again, or two jobs that wrote to one file, one after the other


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

    @classmethod
    def of(cls, process: ProcessLog) -> _Span:
        largest = max((one.ranks for one in process.communicators.values()), default=0)
        ranks = {(one.rank, largest) for one in process.communicators.values() if one.ranks == largest}
        if process.task is not None:
            ranks.add((int(process.task), _TASK))
        connected = bool(process.saw("connected", "channel", "local-channel"))
        return cls(
            start=min(one.first_at for one in process.matches),
            end=max(one.last_at for one in process.matches),
            names={process.name},
            ranks={rank: {process.node} for rank in ranks},
            nodes={process.node} if process.node else set(),
            connected=connected,
            begun=not (connected or process.communicators) and bool(process.saw(*_BEGINNING)),
        )

    def take(self, other: _Span) -> None:
        self.end = max(self.end, other.end)
        self.names |= other.names
        self.nodes |= other.nodes
        self.connected |= other.connected
        self.begun &= other.begun
        for rank, nodes in other.ranks.items():
            self.ranks.setdefault(rank, set()).update(nodes)

    def ends_before(self, after: _Span, marks: Sequence[int]) -> bool:
        """Whether the later one is of another run.

        A rank begins again: on the same node, or on another one after the job ended (`marks`); or a process begins
        that does not become a rank, on a node whose ranks were connected before.
        """
        if self.connected and after.begun and after.nodes and after.nodes <= self.nodes:
            return True
        mark = bisect_right(marks, self.end)
        between = mark < len(marks) and marks[mark] <= after.start
        again = [
            (of, self.ranks[rank, of], nodes) for (rank, of), nodes in after.ranks.items() if (rank, of) in self.ranks
        ]
        return any(between or (of != _TASK and not there.isdisjoint(nodes)) for of, there, nodes in again)


def last_run(log: JobLog) -> tuple[JobLog, int]:
    """Return what is of the last run of a log, and how many runs there are.

    In several files the order of lines is not known: they count as one run.
    """
    places = (log.file(match.first_at) for match in log.matches)
    if (first := next(places, None)) is None or any(file != first for file in places):
        return log, 1
    runs: list[_Span] = []
    marks = sorted(_marks(log))
    for span in _apart(log.processes.values()):
        if not runs or (len(runs) < _MOST_RUNS and runs[-1].ends_before(span, marks)):
            runs.append(span)
        else:
            runs[-1].take(span)
    if len(runs) < 2:
        return log, 1
    names, start = runs[-1].names, runs[-1].start
    bare = {key: process.since(start) for key, process in log.bare.items()}
    run = replace(
        log,
        processes={name: process for name, process in log.processes.items() if name in names},
        bare={key: process for key, process in bare.items() if process.events},
        owners={key: left for key, of in log.owners.items() if (left := tuple(names.intersection(of)))},
        job=log.job.since(start),
    )
    return run, len(runs)


def _apart(processes: Iterable[ProcessLog]) -> list[_Span]:
    """Return processes that are apart in the log, in its order."""
    found: list[_Span] = []
    for span in sorted(map(_Span.of, (one for one in processes if one.events)), key=lambda span: span.start):
        if found and span.start <= found[-1].end:
            found[-1].take(span)
        else:
            found.append(span)
    return found


def _marks(log: JobLog) -> Iterator[int]:
    """Yield where the log says that a job ended, or that another one began."""
    signatures = vocabulary().signatures
    for process in log.bare.values():
        for match in process.matches:
            if match.event in signatures and signatures[match.event].ends in _OF_AN_END:
                yield from (match.first_at, match.last_at)
    numbers = [one for one in log.job.saw("slurm") if one.value("name") == "SLURM_JOB_ID"]
    yield from (one.first_at for one in numbers[1:])
