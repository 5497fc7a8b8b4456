"""What was seen in the log of a job: a bounded table of matches for each of its processes.

A position is a single number for a message: piece of the log, line in the piece, message in the line. Positions are in
the order in which the log was written, if that is known: by file, and by line within a file.
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
    from lumiimg.joblog.learned import LearnedPrefix

VALUE_LIMIT = 16
"""Maximum number of distinct values stored per event and process (network names, missing libraries)."""
JOB_VALUE_LIMIT = 512
"""The same limit for the whole job (variables)."""
COMMUNICATOR_LIMIT = 64
"""Maximum number of communicators stored per process."""
PROCESS_LIMIT = 65_536
"""Maximum number of processes distinguished; the lines of all others are treated as one process."""
STATED = frozenset(
    {"network", "channel", "local-channel", "provider", "initialized", "socket", "ib", "gdr-device", "connected"}
    | {"communicator", "coordinates", "oneccl-library", "endpoints"}
)
"""Events that a library prints with its origin. If it does, the same text without an origin is a quotation."""
_BEYOND = "processes beyond the limit"
_MAX_RUNS = 64
_TASK = -1
"""Stands in for the number of ranks if the rank is a task number; a task may start several processes."""
_BEGINNING = ("bootstrap", "library", "plugin", "loaded", "provider", "initialized", "socket", "ib", "network")
"""Events that a process prints before it has a rank."""
_END_ROLES = frozenset(ExitRole) - {ExitRole.NO, ExitRole.RAISED, ExitRole.WAITED, ExitRole.OTHER}
_PIECE_SHIFT, _LINE_SHIFT = 40, 8
"""With a million pieces, positions stay below 2^60, where an integer uses the least memory."""

Values = tuple[tuple[str, str], ...]
"""Named groups of a match."""


def position(piece: int, line: int, message: int) -> int:
    """Return the position of a message; lines count from 0."""
    return piece << _PIECE_SHIFT | line << _LINE_SHIFT | min(message, 255)


def piece_and_line(at: int) -> tuple[int, int]:
    """Return the piece and the line in it, counted from 0."""
    return at >> _PIECE_SHIFT, at >> _LINE_SHIFT & (1 << _PIECE_SHIFT - _LINE_SHIFT) - 1


@dataclass(slots=True, eq=False)
class Match:
    """An event with given values, seen once or several times."""

    event: str
    values: Values
    before: str
    """Text before `said`, stored apart because the processes of a job mostly print identical text."""
    said: str
    """Stored part of the first message that showed it, unchanged."""
    first_at: int
    """Position of that message."""
    last_at: int
    """Position of the latest message that showed it."""
    has_origin: bool = True
    """Whether a line with `host:pid:tid` showed it."""

    def value(self, name: str) -> str:
        return dict(self.values).get(name, "")

    @property
    def excerpt(self) -> str:
        """Stored part of the first message."""
        return self.before + self.said

    @property
    def text(self) -> str:
        """The same text in a form fit for a report."""
        return evidence_text(self.excerpt)


@dataclass(slots=True)
class CommunicatorSeen:
    """What a process printed about one of its communicators."""

    rank: int
    ranks: int
    nodes: int | None = None
    id: str | None = None
    has_origin: bool = True
    """As in Match."""
    here: int | None = None
    """Number of its ranks on this process's node, if that is known and the number of nodes is not."""

    @property
    def crosses(self) -> bool | None:
        """Whether it spans nodes; None if the log does not say (before 2.21 no line has `nNodes`)."""
        if self.here is not None or self.ranks == 1:
            return self.ranks > (self.here or 1)
        return None if self.nodes is None else self.nodes > 1


@dataclass(slots=True, eq=False)
class ProcessLog:
    """What one process printed; lines without a prefix form a separate one until their process is known."""

    name: str
    shared: bool = False
    """Whether these are lines without prefix or task, which any process of the job may have printed."""
    limit: int = VALUE_LIMIT
    task: str | None = None
    """The number that the launcher put before its lines."""
    matches: list[Match] = field(default_factory=list)
    """In the order in which they were first seen; a dict by event would need a third more memory for 24,000 ranks."""
    communicators: dict[str, CommunicatorSeen] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """Host name; None if the lines carry none."""
        host, colon, pid = self.name.rpartition(":")
        return host if colon and pid.isdecimal() and host and not self.shared else None

    @property
    def events(self) -> set[str]:
        """Ids of all events seen."""
        return {match.event for match in self.matches}

    def known(self, event: str, values: Values) -> Match | None:
        """Return the match of the event with these values."""
        for match in self.matches:
            if match.event == event and match.values == values:
                return match
        return None

    def add(self, match: Match) -> bool:
        """Add a new match; return whether it stays: beyond the limit, only the first ones and the latest do."""
        same = [one for one in self.matches if one.event == match.event]
        if is_full := len(same) >= self.limit:
            self.matches.remove(same[-1])
        self.matches.append(match)
        return not is_full

    def add_communicator(self, key: str, seen: CommunicatorSeen) -> None:
        """Add what one line says about a communicator; beyond the limit, new ones are dropped."""
        known = self.communicators.get(key)
        if known is not None:
            known.nodes, known.id = seen.nodes or known.nodes, seen.id or known.id
            known.has_origin &= seen.has_origin
        elif len(self.communicators) < COMMUNICATOR_LIMIT:
            self.communicators[key] = seen

    def saw(self, *events: str) -> list[Match]:
        """Return all matches of these events, in the order in which they were first seen."""
        return [match for match in self.matches if match.event in events]

    def without(self, events: Collection[str]) -> ProcessLog:
        """Return a copy without some events."""
        left = [match for match in self.matches if match.event not in events]
        communicators = {} if "communicator" in events else self.communicators
        return replace(self, matches=left, communicators=communicators)

    def since(self, start: int) -> ProcessLog:
        """Return what was seen from a position on; for repeated events, only the first and last positions are known."""
        left = [
            match if match.first_at >= start else replace(match, first_at=match.last_at)
            for match in self.matches
            if match.last_at >= start
        ]
        return replace(self, matches=sorted(left, key=_first_at))


def joined(parts: Sequence[ProcessLog]) -> ProcessLog:
    """Return several logs of one process merged into one, leaving them unchanged."""
    if len(parts) == 1:
        return parts[0]
    whole = replace(parts[0], matches=[], communicators={}, task=next((one.task for one in parts if one.task), None))
    found: dict[tuple[str, Values], Match] = {}
    for match in sorted((match for part in parts for match in part.matches), key=_first_at):
        known = found.setdefault((match.event, match.values), match)
        if known is not match:
            found[match.event, match.values] = replace(
                known, last_at=max(known.last_at, match.last_at), has_origin=known.has_origin | match.has_origin
            )
    # the result is the same as if all had been seen in order
    for match in found.values():
        whole.add(match)
    for part in parts:
        for key, seen in part.communicators.items():
            whole.add_communicator(key, replace(seen))
    return whole


def _first_at(match: Match) -> int:
    return match.first_at


def first_matches(processes: Iterable[ProcessLog], event: str) -> list[Match]:
    """Return one match for each distinct value of the event in the job, in order."""
    found: dict[Values, Match] = {}
    for match in sorted((match for process in processes for match in process.saw(event)), key=_first_at):
        found.setdefault(match.values, match)
    return list(found.values())


@dataclass(slots=True)
class LogSegment:
    """A file, or the part of it that was read before another file."""

    file: str
    prefix: LearnedPrefix
    """What precedes the lines of the file; shared by all its segments."""
    before: int = 0
    """Lines of the file that were read in earlier segments."""
    lines: int = 0
    records: int = 0
    """Lines that look like a record of a container log collector, or are empty."""
    tail: bytes | None = None
    """The end of the segment, if an error was seen in it."""

    @property
    def last_lines(self) -> list[bytes]:
        """Lines of that end, of which the first may be cut."""
        return (self.tail or b"").removesuffix(b"\n").split(b"\n")


@dataclass(slots=True)
class JobLog:
    """Everything stored about a log; memory grows with the processes, not with the lines."""

    processes: dict[str, ProcessLog] = field(default_factory=dict)
    bare: dict[tuple[str, str | None], ProcessLog] = field(default_factory=dict)
    """Lines without `host:pid`, by file and task."""
    owners: dict[tuple[str, str | None], tuple[str, ...]] = field(default_factory=dict)
    """Processes that wrote to the same file and task; two are enough to know that the owner is unknown."""
    job: ProcessLog = field(default_factory=lambda: ProcessLog("job", limit=JOB_VALUE_LIMIT))
    """What holds for the whole job, whichever process printed it: variables, versions."""
    segments: list[LogSegment] = field(default_factory=list)
    last_piece: dict[str, int] = field(default_factory=dict)
    """Number of the last segment with lines, by file."""
    bandwidth: BandwidthReader | None = None
    """Benchmark tables, if there are any."""
    dumps: list[FlightDump] = field(default_factory=list)
    """Dumps of PyTorch's flight recorder that were given together with the log."""

    def note_owner(self, process: str, task: str | None, file: str) -> None:
        """Record that a process wrote to a file, and for which task."""
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
            # All beyond the limit are one, under the name of the first: a host name hints at the network.
            return self.bare.setdefault((file, _BEYOND), ProcessLog(name, shared=True))
        key = (file, task)
        if task is None or (key not in self.bare and len(self.bare) >= PROCESS_LIMIT):
            return self.bare.setdefault((file, None), ProcessLog(file, shared=True))
        return self.bare.setdefault(key, ProcessLog(f"task {task}"))

    def attributed(self) -> list[ProcessLog]:
        """Return the processes in the order of their first lines, with lines without a prefix assigned if certain.

        They belong to the only process that wrote to the same file for the same task. If none did (libfabric warns on
        stderr, in a separate file), they belong to the only process that wrote for that task anywhere.
        """
        stated = STATED.intersection(match.event for one in self.processes.values() for match in one.matches)
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
                # lines that any process may have printed stay together, even from several files
                parts.setdefault(("", "" if bare.shared else f"{task}"), []).append(bare.without(stated))
        return sorted(map(joined, parts.values()), key=lambda one: min(map(_first_at, one.matches), default=0))

    def same_file(self, one: int, other: int) -> bool:
        """Return whether two positions are in one file, so that the smaller one was written first."""
        return self.file(one) == self.file(other)

    def file(self, at: int) -> str:
        """Return the file of a position."""
        return self.segments[piece_and_line(at)[0]].file

    def lines_after(self, at: int) -> list[bytes] | None:
        """Return the lines that follow a position in its file; None if more follow than are stored."""
        number, line = piece_and_line(at)
        here = self.segments[number]
        is_cut = 0 < here.lines - line - 1 >= len(here.last_lines)
        return None if is_cut or self.last_piece[here.file] > number else self.last_lines(at)

    def last_lines(self, at: int) -> list[bytes]:
        """Return the lines that follow a position in its segment and are stored."""
        number, line = piece_and_line(at)
        here = self.segments[number]
        return here.last_lines[max(0, len(here.last_lines) - (here.lines - line - 1)) :]

    def place(self, at: int) -> tuple[str, int]:
        """Return the file and the line of a position, counted from 1."""
        number, line = piece_and_line(at)
        here = self.segments[number]
        return here.file, here.before + line + 1

    @property
    def matches(self) -> Iterator[Match]:
        """Matches of all processes."""
        every = (*self.processes.values(), *self.bare.values(), self.job)
        return (match for process in every for match in process.matches)

    def evidence(self, match: Match) -> Evidence:
        """Return the line that first showed a match."""
        return Evidence(*self.place(match.first_at), match.text)


# -- several runs in one log: a job that Slurm requeued, or jobs that wrote to one file one after the other


@dataclass(slots=True)
class _Span:
    """Processes whose lines are interleaved."""

    start: int
    end: int
    names: set[str]
    ranks: dict[tuple[int, int], set[str | None]]
    """Nodes of each rank, by rank and number of ranks."""
    nodes: set[str]
    connected: bool
    """Whether one of its processes was connected."""
    begun: bool
    """Whether it contains only the start of processes that have no rank yet."""

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
        """Return whether the later one belongs to another run.

        That is so if a rank starts again, on the same node or, after the job ended (`marks`), on another one; or if a
        process that does not become a rank starts on a node whose ranks were connected before.
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
    """Return the part of a log that belongs to its last run, and the number of runs.

    In several files, the order of lines is not known, so they count as one run.
    """
    places = (log.file(match.first_at) for match in log.matches)
    if (first := next(places, None)) is None or any(file != first for file in places):
        return log, 1
    runs: list[_Span] = []
    marks = sorted(_marks(log))
    for span in _apart(log.processes.values()):
        if not runs or (len(runs) < _MAX_RUNS and runs[-1].ends_before(span, marks)):
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
        bare={key: process for key, process in bare.items() if process.matches},
        owners={key: left for key, of in log.owners.items() if (left := tuple(names.intersection(of)))},
        job=log.job.since(start),
    )
    return run, len(runs)


def _apart(processes: Iterable[ProcessLog]) -> list[_Span]:
    """Return groups of processes that do not overlap in the log, in its order."""
    found: list[_Span] = []
    for span in sorted(map(_Span.of, (one for one in processes if one.matches)), key=lambda span: span.start):
        if found and span.start <= found[-1].end:
            found[-1].take(span)
        else:
            found.append(span)
    return found


def _marks(log: JobLog) -> Iterator[int]:
    """Yield the positions where the log says that a job ended, or that another one began."""
    signatures = vocabulary().signatures
    for process in log.bare.values():
        for match in process.matches:
            if match.event in signatures and signatures[match.event].ends in _END_ROLES:
                yield from (match.first_at, match.last_at)
    numbers = [one for one in log.job.saw("slurm") if one.value("name") == "SLURM_JOB_ID"]
    yield from (one.first_at for one in numbers[1:])
