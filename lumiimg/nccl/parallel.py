"""A large log, or a set of many files, read by several processes: each takes every n-th piece."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lumiimg.errors import BadInputError, FailedError
from lumiimg.files import read_beginning
from lumiimg.nccl import flight, sources
from lumiimg.nccl.events import position
from lumiimg.nccl.reader import LogReader
from lumiimg.nccl.records import unpacked

if TYPE_CHECKING:
    from lumiimg.nccl.bandwidth import BandwidthReader
    from lumiimg.nccl.flight import FlightDump
    from lumiimg.nccl.job import JobState

PIECE_BYTES = 8 * 1024 * 1024
WORTH_BYTES = 32 * 1024 * 1024
"""A log that is smaller is read sooner by one process than others are started."""
CPU_LIMIT = 8
_LOOK_S = 0.5
_counts: list[MutableSequence[int]] = []
"""In a process that helps: how many bytes each of them has read, in memory that all share."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A piece of a file by its bytes; `end` None: all of a file that cannot be read from the middle."""

    number: int
    file: str
    start: int = 0
    end: int | None = None


def read_logs(
    files: Sequence[str], warn: Callable[[str], None], seen: Callable[[int], None] = lambda _: None
) -> LogReader:
    """Return a reader that has read all files.

    `warn` gets what could not be read to its end, `seen` now and then how many bytes were read so far.

    Raises BadInputError if one cannot be read, FailedError if a process that helps was killed.
    """
    sizes = [_size(file) for file in files]
    parts = _parts(files, sizes)
    cpus = min(len(os.sched_getaffinity(0)), CPU_LIMIT)
    if cpus < 2 or len(parts) < 2 or None in sizes or sum(filter(None, sizes)) < WORTH_BYTES:
        reader = LogReader()
        _read(reader, parts, warn, seen)
        return reader
    return _read_together([parts[n::cpus] for n in range(cpus)], warn, seen)


def total_bytes(files: Sequence[str]) -> int | None:
    """Return how many bytes there are to read; None where one is a pipe, or is compressed."""
    sizes = [_size(file) for file in files]
    return None if None in sizes else sum(filter(None, sizes))


def _parts(files: Sequence[str], sizes: Sequence[int | None]) -> list[FileRange]:
    spans = [(file, *span) for file, size in zip(files, sizes, strict=True) for span in _spans(file, size)]
    return [FileRange(number, *span) for number, span in enumerate(spans)]


def _spans(file: str, size: int | None) -> list[tuple[int, int | None]]:
    if size is None or size <= PIECE_BYTES:
        return [(0, None)]
    with Path(file).open("rb") as stream:
        head = stream.read(sources.HEAD_BYTES)
        if sources.opener_of(head) is not None or flight.is_dump(head):
            return [(0, None)]
        return [(start, min(start + PIECE_BYTES, size)) for start in _written(stream, size)]


def _written(stream: BinaryIO, size: int) -> Iterator[int]:
    """Yield where the pieces start that are more than a hole."""
    start = 0
    while (data := sources.written_from(stream, start, size)) < size:
        yield (start := data - data % PIECE_BYTES)
        start += PIECE_BYTES


def _size(file: str) -> int | None:
    """Return the bytes of a plain file; None for standard input or a pipe, which can be read once, by one process."""
    path = Path(file)
    return path.stat().st_size if file != sources.STDIN and path.is_file() else None


def _read(
    reader: LogReader, parts: Sequence[FileRange], warn: Callable[[str], None], seen: Callable[[int], None]
) -> None:
    total = 0
    for part in parts:
        reader.begin(part.file, part.number)
        if part.end is None and (dump := _dump(part.file, warn)) is not None:
            reader.take_dump(dump)
            continue
        for block in _blocks(part, warn):
            reader.feed(part.file, block)
            seen(total := total + len(block))


def _dump(file: str, warn: Callable[[str], None]) -> FlightDump | None:
    """Return a dump of PyTorch's flight recorder; None where the file is none.

    Raises BadInputError for a pickle of anything else. Other JSON may be lines of a log: that is a warning.
    """
    if not _size(file):
        return None
    head = read_beginning(file, sources.HEAD_BYTES)
    if not flight.is_dump(head):
        return None
    try:
        return flight.read_dump(file)
    except BadInputError as error:
        if not flight.is_json_dump(head):
            raise
        warn(f"{error}; read as text")
        return None


def _blocks(part: FileRange, warn: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the lines that start in the part."""
    if part.end is None:
        yield from sources.blocks(part.file, warn)
        return
    try:
        with Path(part.file).open("rb") as stream:
            start = _line_start(stream, part.start, part.end)
            # a line that goes on for longer is cut all the same (LineSplitter)
            end = _line_start(stream, part.end, part.end + sources.LINE_LIMIT_BYTES)
            stream.seek(start)
            if start < part.end:
                yield from sources.whole_lines(stream, part.file, warn, end - start)
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror or error}", where=part.file) from error


def _line_start(stream: BinaryIO, offset: int, limit: int) -> int:
    """Return where the first line starts that does not start before `offset`; `limit` where there is none before it."""
    if offset == 0:
        return 0
    stream.seek(at := offset - 1)
    while block := stream.read(min(sources.BLOCK_BYTES, limit - at)):
        if (newline := block.find(b"\n")) >= 0:
            return at + newline + 1
        at += len(block)
    return at


def _read_together(
    shares: Sequence[Sequence[FileRange]], warn: Callable[[str], None], seen: Callable[[int], None]
) -> LogReader:
    import multiprocessing  # 20 ms that a small log should not cost
    from concurrent.futures import ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    reader = LogReader()
    tables = False
    forked = multiprocessing.get_context("fork")
    counts = forked.RawArray("Q", len(shares))
    with ProcessPoolExecutor(len(shares), mp_context=forked, initializer=_share_counts, initargs=(counts,)) as pool:
        try:
            futures = [pool.submit(_read_share, number, share) for number, share in enumerate(shares)]
            while wait(futures, timeout=_LOOK_S).not_done:
                seen(sum(counts))
            for state, has_tables, warnings, fault in (future.result() for future in futures):
                if fault is not None:
                    raise BadInputError(fault)
                reader.state.absorb(state)
                tables |= has_tables
                for warning in warnings:
                    warn(warning)
        except BrokenProcessPool as error:
            raise FailedError(
                "a process that read a part of the log was killed", hint="is the node out of memory?"
            ) from error
    if tables:
        reader.state.bandwidth = _tables(sorted((part for share in shares for part in share), key=lambda p: p.number))
    return reader


def _tables(parts: Sequence[FileRange]) -> BandwidthReader:
    """Read the tables of benchmarks again, in order: one that was cut between two processes has lost rows."""
    from lumiimg.nccl.bandwidth import BandwidthReader

    tables = BandwidthReader()
    for part in parts:
        line = others = 0
        for block in _blocks(part, lambda _: None):
            lines, others = unpacked(block, line - others, others)
            # the table may have lost its head
            tables.feed(part.file, lines, partial(_position, part.number, line), rows=True)
            line += block.count(b"\n") + (not block.endswith(b"\n"))
    return tables


def _position(piece: int, line: int, index: int) -> int:
    return position(piece, line + index, 0)


def _share_counts(counts: MutableSequence[int]) -> None:
    """Begin a process that helps: `counts` has how many bytes each has read."""
    _counts[:] = [counts]


def _read_share(number: int, parts: Sequence[FileRange]) -> tuple[JobState, bool, list[str], str | None]:
    """Read in a process of its own; what goes wrong comes back as text, for exceptions of ours do not travel."""
    reader, warnings, fault = LogReader(), list[str](), None
    try:
        _read(reader, parts, warnings.append, partial(_counts[0].__setitem__, number))
    except BadInputError as error:
        fault = str(error)
    has_tables, reader.state.bandwidth = reader.state.bandwidth is not None, None
    return reader.state, has_tables, warnings, fault
