"""What one process of the job was seen to print: a bounded table, event by event, that lines are dropped into.

A position is one number for a line of the job: piece of the log, line in the piece, message in the line. Positions are
in the order in which the log was written as far as that is known: that of its files, and of the lines in each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lumiimg.joblog.lines import evidence_text
from lumiimg.joblog.report import spans_nodes

VALUE_LIMIT = 16
"""Different values kept of one event and process (network names, missing libraries)."""
JOB_VALUE_LIMIT = 512
"""The same for what is kept of the whole job (variables)."""
COMMUNICATOR_LIMIT = 64
"""Communicators kept of one process."""

Values = tuple[tuple[str, str], ...]
"""The named groups of a match."""

_PIECE_SHIFT, _LINE_SHIFT = 48, 8


def position(piece: int, line: int, message: int) -> int:
    """Return the position of a message; lines count from 0."""
    return piece << _PIECE_SHIFT | line << _LINE_SHIFT | min(message, 255)


def piece_and_line(position: int) -> tuple[int, int]:
    """Return the piece, and the line in it from 0 on."""
    return position >> _PIECE_SHIFT, position >> _LINE_SHIFT & (1 << _PIECE_SHIFT - _LINE_SHIFT) - 1


@dataclass(slots=True)
class Sighting:
    """An event with the same values, seen once or more."""

    event: str
    values: Values
    excerpt: str
    """Of the first message that showed it, as it stood there."""
    first: int
    """Position of that message; `last` is that of the latest."""
    last: int
    has_origin: bool = True
    """A line with `host:pid:tid` showed it."""

    def value(self, name: str) -> str:
        return dict(self.values).get(name, "")

    @property
    def text(self) -> str:
        """Of the first message that showed it, as it may stand in a report."""
        return evidence_text(self.excerpt)

    def copied(self) -> Sighting:
        """Return one that changes apart from this; of a job of 24,000 ranks `replace` takes seconds."""
        return Sighting(self.event, self.values, self.excerpt, self.first, self.last, self.has_origin)


@dataclass(slots=True)
class CommunicatorSeen:
    """What a process said about one of its communicators."""

    rank: int
    ranks: int
    nodes: int | None = None
    id: str | None = None
    has_origin: bool = True
    """As of a Sighting."""
    here: int | None = None
    """Ranks of it on this process's node, where that is known and the number of nodes is not."""

    @property
    def crosses(self) -> bool | None:
        """Whether it spans nodes; None where the log does not tell."""
        return spans_nodes(self.ranks, self.nodes) if self.here is None else self.here < self.ranks


@dataclass(slots=True)
class ProcessState:
    """The state of one process; lines without a prefix have one of their own until it is known whose they are."""

    name: str
    shared: bool = False
    """Lines without prefix or task: they may be of any process of the job."""
    events: dict[str, list[Sighting]] = field(default_factory=dict)
    communicators: dict[str, CommunicatorSeen] = field(default_factory=dict)
    limit: int = VALUE_LIMIT
    task: str | None = None
    """The number that the launcher put before its lines."""

    @property
    def node(self) -> str | None:
        """The host's name; None where the lines carry none."""
        host, colon, pid = self.name.rpartition(":")
        return host if colon and pid.isdecimal() and host and not self.shared else None

    def known(self, event: str, values: Values) -> Sighting | None:
        """Return the sighting of the event with these values."""
        return next((s for s in self.events.get(event, ()) if s.values == values), None)

    def see(self, sighting: Sighting) -> None:
        """Keep a sighting that is not known yet, if there is room."""
        kinds = self.events.setdefault(sighting.event, [])
        if len(kinds) < self.limit:
            kinds.append(sighting)

    def see_communicator(self, groups: Mapping[str, str], *, has_origin: bool) -> None:
        rank, ranks = int(groups["rank"]), int(groups["ranks"])
        # the address alone would not do: it may be given again after the communicator is destroyed
        key = f"{groups['comm']}/{rank}/{ranks}"
        if key not in self.communicators and len(self.communicators) >= COMMUNICATOR_LIMIT:
            return
        seen = self.communicators.setdefault(key, CommunicatorSeen(rank, ranks))
        if groups["nodes"]:
            seen.nodes = int(groups["nodes"])
        seen.id = groups["id"] or seen.id
        seen.has_origin &= has_origin

    def see_coordinates(self, groups: Mapping[str, str], *, has_origin: bool) -> None:
        """Take oneCCL's place of the process among all ranks as that of a communicator of them all."""
        rank, ranks, here = int(groups["rank"]), int(groups["ranks"]), int(groups["here"])
        key = f"oneCCL/{rank}/{ranks}"
        if key in self.communicators or len(self.communicators) < COMMUNICATOR_LIMIT:
            nodes = 1 if here == ranks else None
            self.communicators[key] = CommunicatorSeen(rank, ranks, nodes, f"oneCCL, {ranks} ranks", has_origin, here)

    def disown(self) -> None:
        """Take all that was seen as what an excerpt shows."""
        for event, seen in self.events.items():
            self.events[event] = [replace(sighting, has_origin=False) for sighting in seen]
        for communicator in self.communicators.values():
            communicator.has_origin = False

    def saw(self, *events: str) -> Iterator[Sighting]:
        """Yield all sightings of these events, in the order in which they were first seen."""
        found = [s for event in events for s in self.events.get(event, ())]
        yield from sorted(found, key=_first)

    def absorb(self, other: ProcessState, without: Collection[str] = ()) -> None:
        """Take in what was seen of the same process elsewhere, but for some events."""
        self.task = self.task or other.task
        for event, theirs in other.events.items():
            if event in without:
                continue
            if event not in self.events:
                self.events[event] = sorted((seen.copied() for seen in theirs), key=_first)[: self.limit]
                continue
            kinds = self.events[event]
            for seen in theirs:
                mine = self.known(event, seen.values)
                if mine is None:
                    kinds.append(seen.copied())
                    continue
                if seen.first < mine.first:
                    mine.first, mine.excerpt = seen.first, seen.excerpt
                mine.last = max(mine.last, seen.last)
                mine.has_origin |= seen.has_origin
            # as if all had been seen in order: the first are kept, whoever saw them
            kinds.sort(key=_first)
            del kinds[self.limit :]
        for key, seen_there in () if "communicator" in without else other.communicators.items():
            known = self.communicators.get(key)
            if known is not None:
                known.nodes, known.id = known.nodes or seen_there.nodes, known.id or seen_there.id
                known.has_origin &= seen_there.has_origin
            elif len(self.communicators) < COMMUNICATOR_LIMIT:
                self.communicators[key] = replace(seen_there)


def _first(sighting: Sighting) -> int:
    return sighting.first


def first_sightings(processes: Iterable[ProcessState], event: str) -> list[Sighting]:
    """One sighting for each different value of the event in the job, in order."""
    found: dict[Values, Sighting] = {}
    for sighting in sorted((s for p in processes for s in p.saw(event)), key=_first):
        found.setdefault(sighting.values, sighting)
    return list(found.values())
