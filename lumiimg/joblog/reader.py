"""The log reader: takes blocks of lines, in any order of processes, and gives an answer at any time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from sys import intern
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from lumiimg.joblog.answer import answer
from lumiimg.joblog.flight import DUMP_LIMIT
from lumiimg.joblog.gate import Gate, Repeats, is_flooded
from lumiimg.joblog.learned import LearnedPrefix
from lumiimg.joblog.lines import Message, announces_table, excerpt, messages, warns, without_records
from lumiimg.joblog.state import CommunicatorSeen, JobLog, LogSegment, Match, ProcessLog, Values, position
from lumiimg.joblog.vocabulary import ExitRole, MessagePattern, Signature, vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumiimg.joblog.flight import FlightDump
    from lumiimg.joblog.report import LogReport

TAIL_BYTES = 8192
"""Bytes stored of the end of a log segment that has an error: about the last 100 lines."""
_CACHE_SIZE = 4096
"""Size limit of the caches of parsed texts and of values."""
_SHORT_BYTES = 300
"""Maximum length in bytes of a line whose parsed text is cached; evidence shows such a line whole."""
_ORIGIN = re.compile(rb"([A-Za-z][\w.-]{2,200}:\d{1,10}):\d{1,10} \[\d{1,11}\] (?=NCCL )")
"""Beginning of most lines of a job (lines.py has all forms)."""
_RANK_MARK = b" comm 0x"
"""Marks texts that differ for every rank, so caching them is useless."""
_TAIL_EVENTS = frozenset({"traceback", "warning", "failure"})
_TAIL_ROLES = frozenset({ExitRole.RAISED, ExitRole.FOLLOWS})
"""Errors after which a program may have continued."""
_MAX_TAILS = 4096
"""Maximum number of log segments whose end is stored."""


@cache
def _gate() -> Gate:
    """Return the gate shared by all logs: its cache depends only on the text of lines."""
    return Gate(vocabulary())


class _Finding(NamedTuple):
    """One finding extracted from a message."""

    entry: MessagePattern
    values: Values
    said: str
    """The part of the message stored as evidence."""
    communicator: tuple[str, CommunicatorSeen] | None = None
    """Key of a communicator, and what the message says about it."""


class LogReader:
    """Reads the log of one job, from one file or several, into a JobLog."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary()
        self._gate = _gate()
        self._repeats = Repeats()
        self._known: dict[bytes, tuple[_Finding, ...]] = {}
        """Findings by the text after the origin: ranks print identical texts, and may repeat them 100,000 times."""
        self._values: dict[Values, Values] = {}
        """Interned values, so that several processes share one object."""
        self._log = JobLog()
        self._origin: tuple[bytes, Message] = (b"", Message(None, None, ""))
        """Origin of the latest line with a cached text: most lines of a file begin alike."""
        self._writer: tuple[str | None, str | None, str] | None = None
        """Process, task and file of the latest line; the next line usually has the same."""
        self._process: ProcessLog | None = None
        """Log of that process, if already looked up."""
        self._number = -1
        """Number of the current log segment."""
        self._tails = 0
        self.changes = 0
        """Counter that increases when something new is seen."""

    def begin(self, file: str) -> None:
        """Start a file, or another segment of one."""
        self._repeats.flush_positions(self._number)
        segments = self._log.segments
        if segments and segments[-1].file != file:
            self._repeats = Repeats()  # in another file, the same line may come from another process
        self._number += 1
        if (known := self._log.last_piece.get(file)) is None:
            segments.append(LogSegment(file, LearnedPrefix()))
        else:
            last = segments[known]
            segments.append(LogSegment(file, last.prefix, before=last.before + last.lines))

    def feed(self, file: str, block: bytes) -> None:
        """Read the next whole lines of a file; never raises, whatever the bytes.

        A block without a final line end is one line that may be cut off: it counts only if it reports a failure.
        """
        segments = self._log.segments
        if not segments or segments[-1].file != file:
            self.begin(file)
        segment = segments[-1]
        start = segment.lines
        block, records = without_records(block, segment.records, start - segment.records)
        segment.records += records
        if segment.prefix.is_open:
            before = segment.prefix.learn(block, self._gate.select(block)[1])
            first = start - before.count(b"\n")
            for index, line, entries in self._gate.select(before)[1]:
                self._read(line, entries, file, max(0, first + index))
        block = segment.prefix.without(block)
        is_cut = not block.endswith(b"\n")
        if not is_cut and is_flooded(block):
            count = block.count(b"\n")
            for index, line, key in self._repeats.unread(block, start):
                entries = self._gate.entries(line)
                seen = self._read(line, entries, file, start + index) if entries else None
                if seen is not None:
                    self._repeats.remember(key, seen)
        else:
            count, hits = self._gate.select(block)
            for index, line, entries in hits:
                self._read(line, entries, file, start + index, is_cut=is_cut)
        if not is_cut:
            self._read_tables(file, block, start)
            if segment.tail is not None:
                segment.tail = (segment.tail + block)[-TAIL_BYTES:]
        segment.lines += count
        self._log.last_piece[file] = self._number

    def take_dump(self, dump: FlightDump) -> None:
        """Add a dump of PyTorch's flight recorder."""
        if len(self._log.dumps) < DUMP_LIMIT:
            self._log.dumps.append(dump)
        self.changes += 1

    def report(self) -> LogReport:
        """Return the answer about all lines read so far."""
        self._repeats.flush_positions(self._number)
        return answer(self._log)

    def _read(
        self, line: bytes, entries: Sequence[MessagePattern], file: str, number: int, *, is_cut: bool = False
    ) -> tuple[Match, ...] | None:
        """Read a line; return its matches if it is a single message that names its process."""
        origin = _ORIGIN.match(line) if len(line) <= _SHORT_BYTES and not is_cut else None
        behind = line[origin.end() :] if origin is not None else b""
        if origin is not None and (known := self._known.get(behind)) is not None:
            message = self._written_by(origin)
            return self._take(message, known, file, position(self._number, number, 0), message.text)
        if is_cut:
            entries = [entry for entry in entries if entry.is_grave]
        whole: tuple[Match, ...] | None = None
        said = messages(line) if entries else []
        for index, one in enumerate(said):
            shown = tuple(self._findings(one, entries))
            seen = self._take(one, shown, file, position(self._number, number, index))
            if len(said) == 1 and one.process is not None:
                whole = seen
                if origin is None or one.task is not None or _RANK_MARK in behind:
                    continue
                if one.process == origin[1].decode():
                    self._remember(behind, origin[0].decode(), shown)
        return whole

    def _written_by(self, origin: re.Match[bytes]) -> Message:
        """Return the message for an origin; lines that begin alike share one object, as each match stores its text."""
        if self._origin[0] != origin[0]:
            self._origin = (origin[0], Message(origin[1].decode(), None, origin[0].decode(), has_origin=True))
        return self._origin[1]

    def _remember(self, text: bytes, before: str, shown: tuple[_Finding, ...]) -> None:
        """Cache the findings of a text, except communicators, which differ for every rank."""
        if any(one.communicator or not one.said.startswith(before) for one in shown):
            return
        if len(self._known) >= _CACHE_SIZE:
            self._known.clear()
        self._known[text] = tuple(one._replace(said=one.said.removeprefix(before)) for one in shown)

    def _findings(self, message: Message, entries: Sequence[MessagePattern]) -> Iterator[_Finding]:
        """Yield the findings of a message, independent of the process that wrote it."""
        found = [(entry, match) for entry in entries if (match := entry.match(message)) is not None]
        if not message.signed:
            found = [(entry, match) for entry, match in found if not (entry.is_grave and warns(message, match.start()))]
        if not found or any(name in message.text for name in self._vocabulary.foreign):
            return
        if len(found) > 1:
            found = [(entry, match) for entry, match in found if not entry.of_program]
            # if several entries match one line, a generic Python error is the least specific
            first = min((one.order for one, _ in found if isinstance(one, Signature) and one.is_grave), default=0)
            found = [(entry, match) for entry, match in found if not _says_little(entry) or entry.order == first]
        if any(entry.id == "warning" for entry, _ in found) and self._vocabulary.harmless.search(message.text):
            found = [(entry, match) for entry, match in found if entry.id != "warning"]
        for entry, match in found:
            groups, communicator = match.groupdict(default=""), None
            if entry.id in {"communicator", "coordinates"}:
                communicator = _communicator(groups, has_origin=message.has_origin)
                groups = groups if entry.id == "coordinates" else {}
            values = tuple(groups.items())
            if len(self._values) < _CACHE_SIZE:
                self._values.setdefault(values, values)
            values = self._values.get(values, values)
            yield _Finding(entry, values, excerpt(message.text, match.span()), communicator)

    def _take(
        self, message: Message, shown: Sequence[_Finding], file: str, at: int, before: str = ""
    ) -> tuple[Match, ...] | None:
        """Store the findings of a message; return the matches if all of them stay. `before` precedes the evidence."""
        writer = (message.process, message.task, file)
        if writer != self._writer:
            self._writer, self._process = writer, None
            if message.process is not None:
                self._log.note_owner(message.process, message.task, file)
        if not shown:
            return ()
        process = self._process = self._process or self._log.process(*writer)
        seen: list[Match] = []
        stay = True
        for entry, values, said, communicator in shown:
            if communicator is not None:
                process.add_communicator(*communicator)
            home = self._log.job if entry.of_job else process
            known = home.known(entry.id, values)
            if known is not None:
                known.last_at = max(known.last_at, at)
                known.has_origin |= message.has_origin
                seen.append(known)
                continue
            seen.append(Match(entry.id, values, before, said, at, at, message.has_origin))
            stay &= home.add(seen[-1])
            if entry.id in _TAIL_EVENTS or (isinstance(entry, Signature) and entry.ends in _TAIL_ROLES):
                self._keep_tail()
            self.changes += 1
        return tuple(seen) if stay else None

    def _keep_tail(self) -> None:
        """Start storing the end of this segment: it shows whether the error ended the program."""
        segment = self._log.segments[self._number]
        self._tails += segment.tail is None
        if segment.tail is None and self._tails <= _MAX_TAILS:
            segment.tail = b""

    def _read_tables(self, file: str, block: bytes, start: int) -> None:
        if self._log.bandwidth is None and announces_table(block):
            from lumiimg.joblog.bandwidth import BandwidthReader  # 10 ms for patterns that few logs need

            self._log.bandwidth = BandwidthReader()
        if self._log.bandwidth is not None:
            self._log.bandwidth.feed(file, block, lambda index: position(self._number, start + index, 0))


def _says_little(entry: MessagePattern) -> TypeGuard[Signature]:
    return isinstance(entry, Signature) and entry.ends is ExitRole.OTHER


def _communicator(groups: Mapping[str, str], *, has_origin: bool) -> tuple[str, CommunicatorSeen]:
    """Return a key that is unique within the process for a communicator, and what a line says about it.

    oneCCL's position of a process among all ranks counts as its rank in a communicator of all ranks.
    """
    rank, ranks = int(groups["rank"]), int(groups["ranks"])
    if "here" in groups:
        here = int(groups["here"])
        nodes, name = 1 if here == ranks else None, f"oneCCL, {ranks} ranks"
        return f"oneCCL/{rank}/{ranks}", CommunicatorSeen(rank, ranks, nodes, name, has_origin, here)
    # the address alone is not enough: it may be reused after the communicator is destroyed
    nodes = int(groups["nodes"]) if groups["nodes"] else None
    id_ = intern(groups["id"])  # all its ranks print the same id
    return f"{groups['comm']}/{rank}/{ranks}", CommunicatorSeen(rank, ranks, nodes, id_ or None, has_origin)


def read_lines(file: str, lines: Iterable[str | bytes]) -> LogReport:
    """Return the answer about the lines of one file."""
    reader = LogReader()
    whole = (line if isinstance(line, bytes) else line.encode("utf-8", "replace") for line in lines)
    reader.feed(file, b"".join(line.removesuffix(b"\n") + b"\n" for line in whole))
    return reader.report()
