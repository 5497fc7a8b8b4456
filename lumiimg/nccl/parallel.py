"""A large log, or a set of many files, read by several processes: each takes every n-th piece."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lumiimg.errors import BadInputError, FailedError
from lumiimg.nccl import sources
from lumiimg.nccl.events import position
from lumiimg.nccl.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from lumiimg.nccl.bandwidth import BandwidthReader
    from lumiimg.nccl.job import JobState

PIECE_BYTES = 8 * 1024 * 1024
WORTH_BYTES = 32 * 1024 * 1024
"""A log that is smaller is read sooner by one process than others are started."""
CPU_LIMIT = 8


@dataclass(frozen=True, slots=True)
class FileRange:
    """A piece of a file by its bytes; `end` None: all of a file that cannot be read from the middle."""

    number: int
    file: str
    start: int = 0
    end: int | None = None


def read_logs(files: Sequence[str], warn: Callable[[str], None]) -> LogReader:
    """Return a reader that has read all files; `warn` is told what could not be read to its end.

    Raises BadInputError if one cannot be read, FailedError if a process that helps was killed.
    """
    sizes = [_size(file) for file in files]
    parts = _parts(files, sizes)
    cpus = min(len(os.sched_getaffinity(0)), CPU_LIMIT)
    if cpus < 2 or len(parts) < 2 or None in sizes or sum(filter(None, sizes)) < WORTH_BYTES:
        reader = LogReader()
        _read(reader, parts, warn)
        return reader
    return _read_together([parts[n::cpus] for n in range(cpus)], warn)


def _parts(files: Sequence[str], sizes: Sequence[int | None]) -> list[FileRange]:
    spans = [(file, *span) for file, size in zip(files, sizes, strict=True) for span in _spans(file, size)]
    return [FileRange(number, *span) for number, span in enumerate(spans)]


def _spans(file: str, size: int | None) -> list[tuple[int, int | None]]:
    if size is None or size <= PIECE_BYTES:
        return [(0, None)]
    with Path(file).open("rb") as stream:
        if sources.opener_of(stream.read(16)) is not None:
            return [(0, None)]
    return [(start, min(start + PIECE_BYTES, size)) for start in range(0, size, PIECE_BYTES)]


def _size(file: str) -> int | None:
    """Return the bytes of a plain file; None for standard input or a pipe, which can be read once, by one process."""
    path = Path(file)
    return path.stat().st_size if file != sources.STDIN and path.is_file() else None


def _read(reader: LogReader, parts: Sequence[FileRange], warn: Callable[[str], None]) -> None:
    for part in parts:
        reader.begin(part.file, part.number)
        for block in _blocks(part, warn):
            reader.feed(part.file, block)


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


def _read_together(shares: Sequence[Sequence[FileRange]], warn: Callable[[str], None]) -> LogReader:
    import multiprocessing  # 20 ms that a small log should not cost
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    reader = LogReader()
    tables = False
    with ProcessPoolExecutor(len(shares), mp_context=multiprocessing.get_context("fork")) as pool:
        try:
            for state, has_tables, warnings, fault in pool.map(_read_share, shares):
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
        line = 0
        for block in _blocks(part, lambda _: None):
            tables.feed(part.file, block, partial(_position, part.number, line))
            line += block.count(b"\n") + (not block.endswith(b"\n"))
    return tables


def _position(piece: int, line: int, index: int) -> int:
    return position(piece, line + index, 0)


def _read_share(parts: Sequence[FileRange]) -> tuple[JobState, bool, list[str], str | None]:
    """Read in a process of its own; what goes wrong comes back as text, for exceptions of ours do not travel."""
    reader, warnings, fault = LogReader(), list[str](), None
    try:
        _read(reader, parts, warnings.append)
    except BadInputError as error:
        fault = str(error)
    has_tables, reader.state.bandwidth = reader.state.bandwidth is not None, None
    return reader.state, has_tables, warnings, fault
