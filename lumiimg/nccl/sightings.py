"""What one process of the job was seen to print: a bounded table, event by event, that lines are dropped into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lumiimg.nccl.report import Evidence

VALUE_LIMIT = 16
"""Different values kept of one event and process (network names, missing libraries)."""
COMMUNICATOR_LIMIT = 64
"""Communicators kept of one process."""

Values = tuple[tuple[str, str], ...]
"""The named groups of a match."""


@dataclass(slots=True)
class Sighting:
    """An event with the same values, seen once or more."""

    event: str
    values: Values
    evidence: Evidence
    """The first line that showed it."""
    first: int
    """Running number of that line in the job; `last` is that of the latest."""
    last: int

    def value(self, name: str) -> str:
        return dict(self.values).get(name, "")


@dataclass(slots=True)
class CommunicatorSeen:
    """What a process said about one of its communicators."""

    rank: int
    ranks: int
    nodes: int | None = None
    id: str | None = None


@dataclass(slots=True)
class Process:
    """The state of one process; lines without a prefix have one of their own until it is known whose they are."""

    name: str
    shared: bool = False
    """Lines without prefix or task: they may be of any process of the job."""
    events: dict[str, dict[Values, Sighting]] = field(default_factory=dict)
    communicators: dict[str, CommunicatorSeen] = field(default_factory=dict)

    def see(self, event: str, values: Values, evidence: Evidence, number: int) -> None:
        kinds = self.events.setdefault(event, {})
        known = kinds.get(values)
        if known is not None:
            known.last = number
        elif len(kinds) < VALUE_LIMIT:
            kinds[values] = Sighting(event, values, evidence, number, number)

    def see_communicator(self, groups: Mapping[str, str]) -> None:
        rank, ranks = int(groups["rank"]), int(groups["ranks"])
        # the address alone would not do: it may be given again after the communicator is destroyed
        key = f"{groups['comm']}/{rank}/{ranks}"
        if key not in self.communicators and len(self.communicators) >= COMMUNICATOR_LIMIT:
            return
        seen = self.communicators.setdefault(key, CommunicatorSeen(rank, ranks))
        if groups["nodes"]:
            seen.nodes = int(groups["nodes"])
        seen.id = groups["id"] or seen.id

    def saw(self, *events: str) -> Iterator[Sighting]:
        """Yield all sightings of these events, in the order in which they were first seen."""
        found = [s for event in events for s in self.events.get(event, {}).values()]
        yield from sorted(found, key=lambda s: s.first)

    def last_seen(self, event: str) -> int:
        """Return the running number of the latest line that showed the event; -1 where none did."""
        return max((s.last for s in self.events.get(event, {}).values()), default=-1)

    def joined(self, other: Process) -> Process:
        """Return this process with the lines of `other`, which turned out to be its own; neither is changed."""
        both = Process(self.name, self.shared, communicators=self.communicators | other.communicators)
        for part in (self, other):
            for event, kinds in part.events.items():
                mine = both.events.setdefault(event, {})
                for values, seen in kinds.items():
                    known = mine.get(values, seen)
                    first = min(known, seen, key=lambda s: s.first)
                    mine[values] = Sighting(event, values, first.evidence, first.first, max(known.last, seen.last))
        return both


def first_sightings(processes: Iterable[Process], event: str) -> list[Sighting]:
    """One sighting for each different value of the event in the job, in order."""
    found: dict[Values, Sighting] = {}
    for sighting in sorted((s for p in processes for s in p.saw(event)), key=lambda s: s.first):
        found.setdefault(sighting.values, sighting)
    return list(found.values())
