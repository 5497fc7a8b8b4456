"""What a job was seen to print: its processes, and the lines whose process is not known yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.joblog.events import JOB_VALUE_LIMIT, ProcessState, piece_and_line

if TYPE_CHECKING:
    from lumiimg.joblog.bandwidth import BandwidthReader
    from lumiimg.joblog.flight import FlightDump

HOLDERS = 4096
"""Processes kept of which it is known that they have a value of a variable."""
PROCESS_LIMIT = 65_536
"""Processes told apart; the lines of any more are read as if they were of one."""
_BEYOND = "processes beyond the limit"


STATED = frozenset(
    {"network", "channel", "local-channel", "provider", "initialized", "socket", "ib", "gdr-device", "connected"}
    | {"communicator", "coordinates", "oneccl-library", "endpoints"}
)
"""What a library prints with its origin. Where it does, the same without one is quoted."""


@dataclass(slots=True)
class FileChunk:
    """A file, or what was read of it before another one."""

    file: str
    lines: int = 0
    others: int = 0
    """Lines that no collector of a container's log wrote (records.py)."""
    quoted: int = 0
    """Lines that begin with `>`."""
    tail: bytes | None = None
    """The end of it, where an error was seen in it."""


@dataclass(slots=True)
class JobState:
    """All that is kept of a log; memory grows with the processes, not with the lines."""

    processes: dict[str, ProcessState] = field(default_factory=dict)
    bare: dict[tuple[str, str | None], ProcessState] = field(default_factory=dict)
    """Lines without `host:pid`, by file and task."""
    owners: dict[tuple[str, str | None], set[str]] = field(default_factory=dict)
    """Processes seen beside them; two are enough to know that the owner is unknown."""
    job: ProcessState = field(default_factory=lambda: ProcessState("job", limit=JOB_VALUE_LIMIT))
    """What is true of the whole job, whoever printed it: variables, versions."""
    bandwidth: BandwidthReader | None = None
    """Tables of benchmarks, where there are any."""
    pieces: dict[int, FileChunk] = field(default_factory=dict)
    holders: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Processes that printed a value of a variable; of very many the first."""
    dumps: list[FlightDump] = field(default_factory=list)
    """Of PyTorch's flight recorder, those that were handed in beside the log."""
    copies: JobState | None = None
    """What stands behind marks that people put before lines which they copy."""

    def of_copies(self) -> JobState:
        """Return the state of copied lines."""
        if self.copies is None:
            self.copies = JobState()
        return self.copies

    def counted(self) -> JobState:
        """Return what counts: copied lines only where no other names a process.

        They prove nothing, unless the log as a whole was copied so: most of its lines begin with the mark.
        """
        if self.processes or self.copies is None:
            return self
        both = JobState(pieces=self.pieces, bandwidth=self.bandwidth, dumps=self.dumps)
        both.absorb(self)
        both.absorb(self.copies)
        if not self.is_copy:
            for process in both.processes.values():
                process.disown()
        return both

    def own(self) -> JobState:
        """Return what the job itself printed: a line that somebody copied into its log ended nothing."""
        return self.counted() if self.is_copy else self

    @property
    def is_copy(self) -> bool:
        """Whether the log as a whole was copied, as into a mail: most of its lines begin with the mark."""
        return 2 * sum(piece.quoted for piece in self.pieces.values()) > sum(p.lines for p in self.pieces.values())

    def note_value(self, name: str, value: str, process: str) -> None:
        """Note that a process has a value of a variable."""
        if len(self.holders) < JOB_VALUE_LIMIT and len(of := self.holders.setdefault((name, value), set())) < HOLDERS:
            of.add(process)

    def note_owner(self, process: str, task: str | None, file: str) -> None:
        """Note that a process wrote to a file, and for which task."""
        for key in ((file, task), (file, None)):
            owners = self.owners.get(key)
            if owners is not None and len(owners) < 2:
                owners.add(process)
            elif owners is None and len(self.owners) < PROCESS_LIMIT:
                self.owners[key] = {process}

    def process(self, name: str | None, task: str | None, file: str) -> ProcessState:
        """Return the process that a message belongs to."""
        if name is not None and (known := self.processes.get(name)) is not None:
            return known
        if name is not None and len(self.processes) < PROCESS_LIMIT:
            return self.processes.setdefault(name, ProcessState(name, task=task))
        if name is not None:
            # All beyond the limit are one, under the name of the first: a host's name is a hint of its network.
            return self.bare.setdefault((file, _BEYOND), ProcessState(name, shared=True))
        key = (file, task)
        if task is None or (key not in self.bare and len(self.bare) >= PROCESS_LIMIT):
            return self.bare.setdefault((file, None), ProcessState(file, shared=True))
        return self.bare.setdefault(key, ProcessState(f"task {task}"))

    def absorb(self, other: JobState) -> None:
        """Take in other lines of the same files."""
        for name, process in other.processes.items():
            self.process(name, None, "").absorb(process)
        for key, process in other.bare.items():
            self.bare.setdefault(key, ProcessState(process.name, process.shared)).absorb(process)
        for key, names in other.owners.items():
            self.owners.setdefault(key, set()).update(names)
        self.job.absorb(other.job)
        for (variable, value), names in other.holders.items():
            for process_name in names:
                self.note_value(variable, value, process_name)

    def settled(self) -> list[ProcessState]:
        """Return the processes in the order of their first lines, lines without prefix given to whose they must be.

        They are those of the one process that wrote to the same file for the same task; where no process did (libfabric
        warns on stderr, in a file of its own), those of the one that wrote for that task anywhere.
        """
        stated = STATED.intersection(event for process in self.processes.values() for event in process.events)
        anywhere: dict[str | None, set[str]] = {}
        for (_, task), names in self.owners.items():
            anywhere.setdefault(task, set()).update(names)
        settled: dict[str, ProcessState] = {}
        for name, process in self.processes.items():
            settled[name] = _copy(process)
        left: dict[str, ProcessState] = {}
        for (file, task), bare in self.bare.items():
            owners = self.owners.get((file, task)) or anywhere.get(task, set())
            if len(owners) == 1 and task != _BEYOND:
                name = next(iter(owners))
                settled.setdefault(name, ProcessState(name)).absorb(bare, stated)
            else:
                # Lines of any process stay lines of any process, in however many files they stand.
                key = "" if bare.shared and task != _BEYOND else f"{task}"
                left.setdefault(key, ProcessState(bare.name, bare.shared)).absorb(
                    bare, stated if task != _BEYOND else ()
                )
        return sorted([*settled.values(), *left.values()], key=_first_line)

    def same_file(self, one: int, other: int) -> bool:
        """Whether two positions are in one file, so that the smaller one was written first."""
        return self.pieces[piece_and_line(one)[0]].file == self.pieces[piece_and_line(other)[0]].file

    def lines_after(self, position: int) -> list[bytes] | None:
        """Return the lines of its file that follow a position; None where they are more than are kept."""
        number, line = piece_and_line(position)
        here = self.pieces[number]
        later = any(p.lines and p.file == here.file for n, p in self.pieces.items() if n > number)
        count = here.lines - line - 1
        kept = (here.tail or b"").removesuffix(b"\n").split(b"\n")
        if later or (count >= len(kept) > 0 and count):
            return None
        return kept[len(kept) - count :]

    def place(self, position: int) -> tuple[str, int]:
        """Return the file and the line, from 1 on, of a position."""
        number, line = piece_and_line(position)
        piece = self.pieces[number]
        before = sum(p.lines for n, p in self.pieces.items() if n < number and p.file == piece.file)
        return piece.file, before + line + 1


def _copy(process: ProcessState) -> ProcessState:
    copied = ProcessState(process.name, process.shared)
    copied.absorb(process)
    return copied


def _first_line(process: ProcessState) -> int:
    return min((s.first for kinds in process.events.values() for s in kinds), default=0)
