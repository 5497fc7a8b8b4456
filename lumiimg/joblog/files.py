"""Read a log from files, folders, compressed files or standard input, always as blocks of whole lines."""

from __future__ import annotations

import gc
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from lumiimg.core.access import zstd
from lumiimg.core.errors import BadInputError
from lumiimg.core.files import open_regular, read_beginning
from lumiimg.joblog.ending import How
from lumiimg.joblog.flight import DUMP_LIMIT_BYTES, is_dump, is_pickle, parsed
from lumiimg.joblog.reader import LogReader

if TYPE_CHECKING:
    from lumiimg.joblog.flight import FlightDump
    from lumiimg.joblog.report import LogReport

STDIN = "-"
BLOCK_BYTES = 256 * 1024
LINE_LIMIT_BYTES = 1024 * 1024
"""Maximum length of a line: NCCL prints no longer ones. The rest is skipped, so that memory stays constant."""
ENDLESS_BYTES = 1 << 30
"""Maximum number of bytes without a line end: after that, none is expected, as with /dev/zero."""
REPEATED_BYTES = 256 << 20
"""Maximum number of bytes of one repeated line in a stream: the rest is the same, as with yes(1)."""
STREAM_BYTES = 64 << 30
"""Maximum number of bytes read from a stream; no piped job log is larger."""
FILE_LIMIT = 65_536
DEPTH_LIMIT = 8
HEAD_BYTES = 64
XZ_MEMORY_BYTES = 128 << 20
"""Memory limit for xz: `xz -9` needs 65 MiB; zstd's own limit is the same."""
_BZIP2 = "is compressed with bzip2"
_ANSWER = b'{\n  "schema": '
"""Beginning of lumiimg's JSON output: it may quote lines of a log, but is not one."""
_POLL_SECONDS = 1.0
"""Interval between reads of a log that is still being written."""
_DIGITS = re.compile(r"(\d+)")

Warn = Callable[[str], None]


def read_log(
    names: Sequence[str], warn: Warn, progress: Callable[[int, int | None], None] = lambda _, __: None
) -> LogReport:
    """Return the answer about a job's log: files, folders, or `-` for standard input; see `read_files`."""
    return read_files(log_files(names, warn), warn, progress)


def read_files(
    files: Sequence[str], warn: Warn, progress: Callable[[int, int | None], None] = lambda _, __: None
) -> LogReport:
    """Return the answer about the log of a job in these files.

    `warn` is called for files that could not be read to the end, `progress` with the bytes read so far and the total,
    which is None if unknown. Raises BadInputError if a file cannot be read or is not a log.
    """
    sizes = [_size_bytes(file) for file in files]
    total = None if None in sizes else sum(filter(None, sizes))
    reader, done = LogReader(), 0
    with _gc_paused():
        for file in files:
            reader.begin(file)
            for block in blocks(file, warn, reader.take_dump):
                reader.feed(file, block)
                progress(done := done + len(block), total)
    return reader.report()


def _size_bytes(file: str) -> int | None:
    """Return the size of a regular file; None for anything else."""
    if file == STDIN:
        return None
    status = os.stat(file)  # noqa: PTH116 - of 24,000 files
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Suspend garbage collection: everything stored for 24,000 files is in use, and scanning it takes 3 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# -- which files


def log_files(names: Sequence[str], warn: Warn = lambda _: None) -> list[str]:
    """Return the files to read, with folders replaced by the text files in them, in natural order of their names.

    `warn` is called for logs in a folder that are skipped because they are compressed with bzip2. A file that is named
    twice, or named and in a named folder, is returned once. Raises BadInputError for a name that does not exist, a
    folder without a log, or a file that is not text.
    """
    once: dict[object, str] = {}
    for name in names:
        is_folder = name != STDIN and Path(name).is_dir()
        for file in _in_folder(name, warn) if is_folder else [name]:
            if file != STDIN and not is_folder:
                refuse_binary(file)
            status = None if file == STDIN else Path(file).stat()
            once.setdefault((status.st_dev, status.st_ino) if status else STDIN, file)
    return list(once.values())


def _in_folder(folder: str, warn: Warn) -> list[str]:
    def refuse(error: OSError) -> None:
        what = f"cannot be read: {error.strerror or error}"
        raise BadInputError(what, where=str(error.filename), hint="name the files that can be read") from error

    files: list[str] = []
    packed: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        depth = len(Path(parent).relative_to(folder).parts)
        folders[:] = sorted(folders, key=_natural) if depth < DEPTH_LIMIT else []
        paths = [Path(parent, name) for name in sorted(names, key=_natural)]
        faults = {path: _fault(read_beginning(path, HEAD_BYTES)) for path in paths if path.is_file()}
        files += [str(path) for path, fault in faults.items() if not fault]
        packed += [path for path, fault in faults.items() if fault == _BZIP2]
        if len(files) > FILE_LIMIT:
            raise BadInputError(f"more than {FILE_LIMIT} files", where=folder, hint="name the files of one job")
    if not files:
        raise BadInputError(f"no log in this folder{', except those with bzip2' if packed else ''}", where=folder)
    if packed:
        warn(f"{packed[0]} {_BZIP2} and not read" + f", as are {len(packed) - 1} more" * (len(packed) > 1))
    return files


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key: rank2 before rank10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name[:255])]


def refuse_binary(name: str) -> None:
    """Raise BadInputError for a file that cannot be a log, or cannot be read."""
    try:
        # a pipe can be read only once
        head = b"" if Path(name).is_fifo() else read_beginning(name, HEAD_BYTES)
    except (OSError, ValueError) as error:
        raise BadInputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=name) from error
    if fault := _fault(head):
        raise BadInputError(fault, where=name, hint="lumiimg log reads what a job printed; it may be gzip, zstd or xz")


def _fault(head: bytes) -> str | None:
    """Return why a file with this start cannot be a log; one truncated while it was written begins with zeros."""
    if is_dump(head) or _packing(head):
        return None
    if head.startswith(b"1AY&SY", 4):
        return _BZIP2
    if b"\0" in head.lstrip(b"\0"):
        return "is not text"
    return "is --json output of lumiimg" if head.startswith(_ANSWER) else None


# -- their lines


class _Packing(NamedTuple):
    """How a compressed file is unpacked."""

    unpacked: Callable[[BinaryIO], Iterator[bytes]]
    error: type[Exception]
    """Raised, besides OSError, for a damaged file; EOFError is raised if the end is missing."""


def _packing(head: bytes) -> _Packing | None:
    """Return how to unpack a file with this start; None if it is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        gzip, zlib = import_module("gzip"), import_module("zlib")
        return _Packing(lambda stream: _read(gzip.GzipFile(fileobj=stream)), zlib.error)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _Packing(lambda stream: _read(zstd().ZstdFile(stream)), zstd().ZstdError)
    if head.startswith(b"\xfd7zXZ\0"):
        return _Packing(_from_xz, import_module("lzma").LZMAError)
    return None


def _from_xz(stream: BinaryIO) -> Iterator[bytes]:
    """Yield data unpacked from xz. LZMAFile does not limit the memory that a file may require, up to 4 GiB."""
    import lzma

    packed = b""
    while packed := packed.lstrip(b"\0") or stream.read(BLOCK_BYTES):  # several streams, with padding between them
        inner = lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES)
        while not inner.eof:
            if inner.needs_input and not (packed := packed or stream.read(BLOCK_BYTES)):
                raise EOFError
            yield inner.decompress(packed, max_length=BLOCK_BYTES)
            packed = b""
        packed = inner.unused_data


def blocks(name: str, warn: Warn, take_dump: Callable[[FlightDump], None] | None = None) -> Iterator[bytes]:
    """Yield the file, unpacked, as blocks of whole lines; memory does not grow with it.

    `take_dump` is called with a dump of PyTorch's flight recorder, which has no lines. If the end of a compressed file
    is missing (still being written), `warn` is called. Raises BadInputError if it cannot be read or unpacked.
    """
    packing = None
    damaged: tuple[type[Exception], ...] = ()
    try:
        with _opened(name) as stream:
            head = stream.peek(HEAD_BYTES) if hasattr(stream, "peek") else b""
            data = _read(stream)
            if packing := _packing(head):
                data, damaged = packing.unpacked(stream), (packing.error,)
            if take_dump is not None and is_dump(head):
                dump = stream.read(DUMP_LIMIT_BYTES + 1)
                try:
                    take_dump(parsed(dump, name))
                except BadInputError as error:
                    if is_pickle(head):
                        raise
                    warn(f"{error}; read as text")  # other JSON may be lines of a log
                    data = chain(_read(BytesIO(dump)), data)
                else:
                    return
            lines = whole_lines(data, name, warn)
            is_of_known_size = not packing and _size_bytes(name) is not None
            yield from lines if is_of_known_size else _bounded(lines, name, warn)
    except EOFError:
        warn(f"{name}: the compressed file ends too early; read up to there")
    except OSError as error:
        what = "unpacked" if packing else "read"
        raise BadInputError(f"cannot be {what}: {error.strerror or error}", where=name) from error
    except damaged as error:
        raise BadInputError(f"cannot be unpacked: {error}", where=name) from error


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STDIN:
        if sys.stdin is None:
            raise BadInputError("there is no standard input to read")
        yield sys.stdin.buffer
    else:
        with Path(name).open("rb") if Path(name).is_fifo() else open_regular(name) as stream:
            yield stream


def _read(stream: BinaryIO) -> Iterator[bytes]:
    read = getattr(stream, "read1", stream.read)
    while block := read(BLOCK_BYTES):
        yield block


class LineSplitter:
    """Splits blocks at line ends; a line longer than any that NCCL prints is truncated."""

    def __init__(self) -> None:
        self.rest = b""
        """Beginning of a line whose end has not been read yet."""
        self._skipping = False

    def push(self, block: bytes) -> bytes:
        """Add the next block and return the lines that are now complete."""
        if self._skipping:
            at = block.find(b"\n")
            if at < 0:
                return b""
            block, self._skipping = block[at + 1 :], False
        held = self.rest + block
        end = held.rfind(b"\n") + 1
        if not end and len(held) >= LINE_LIMIT_BYTES:
            self._skipping, held, end = True, held + b"\n", len(held) + 1
        self.rest = held[end:]
        return held[:end]


def whole_lines(data: Iterable[bytes], name: str, warn: Warn) -> Iterator[bytes]:
    """Yield the data in blocks of whole lines, then a last line without a line end, for which `warn` is called.

    That line may be cut off, since jobs write in blocks: `nRanks 1` of 16, or a provider `c`, would be misread.

    Raises BadInputError for input that never has a line end.
    """
    splitter = LineSplitter()
    since = 0
    for block in data:
        since = 0 if b"\n" in block else since + len(block)
        if since > ENDLESS_BYTES:
            raise BadInputError(f"has no line end in {ENDLESS_BYTES >> 20} MiB, so it is not a log", where=name)
        if lines := splitter.push(block):
            yield lines
    if splitter.rest.strip():
        yield splitter.rest
        warn(f"{name}: its last line may be cut off, so it counts only if it reports a failure")


def _bounded(blocks_of_lines: Iterable[bytes], name: str, warn: Warn) -> Iterator[bytes]:
    """Yield the lines of input of unknown size: at most 64 GiB, and at most 256 MiB of the same line repeated."""
    total = repeated = 0
    line = b""
    for lines in blocks_of_lines:
        yield lines
        total += len(lines)
        before, line = line, lines[: lines.find(b"\n") + 1]
        is_repeated = line == before and lines.count(line) * len(line) == len(lines)
        repeated = repeated + len(lines) if is_repeated else 0
        if total > STREAM_BYTES or repeated > REPEATED_BYTES:
            what = "never ends" if total > STREAM_BYTES else "repeats one line forever"
            warn(f"{name}: {what}; the first {total >> 20} MiB of it were read")
            return


# -- a log that is still being written


class WrittenAgainError(Exception):
    """The part of a file that was already read is no longer in it."""


class Tail:
    """The growing end of a file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._offset = 0
        self._inode = -1
        self._lines = LineSplitter()

    def read(self) -> Iterator[bytes]:
        """Yield the new lines in blocks; nothing while the file does not exist.

        Raises WrittenAgainError if the file became shorter or was replaced, and BadInputError if it is not text or
        cannot be read.
        """
        try:
            with open_regular(self.file) as stream:
                status = os.fstat(stream.fileno())
                if self._offset and (status.st_size < self._offset or status.st_ino != self._inode):
                    raise WrittenAgainError
                self._inode = status.st_ino
                head = stream.peek(HEAD_BYTES)
                if _fault(head) or is_pickle(head) or _packing(head):
                    raise BadInputError("is not text", where=self.file, hint="omit --follow")
                stream.seek(self._offset)
                while block := stream.read1(BLOCK_BYTES):
                    self._offset += len(block)
                    if lines := self._lines.push(block):
                        yield lines
        except FileNotFoundError:
            return
        except OSError as error:
            raise BadInputError(f"cannot be read: {error.strerror or error}", where=self.file) from error


def follow(files: Sequence[str], sleep: Callable[[float], None] = time.sleep) -> Iterator[LogReport]:
    """Yield an empty answer, then a new one each time the files show something new.

    If one file is rewritten, all of them are read again from the start. It never ends by itself: a silent job may still
    be running. Raises BadInputError if a file cannot be read.
    """
    reader, tails, seen = LogReader(), [Tail(file) for file in files], 0
    yield _running(reader.report())
    while True:
        try:
            for tail in tails:
                for block in tail.read():
                    reader.feed(tail.file, block)
        except WrittenAgainError:
            reader, tails, seen = LogReader(), [Tail(file) for file in files], -1
            continue
        if reader.changes != seen:
            seen = reader.changes
            yield _running(reader.report())
        sleep(_POLL_SECONDS)


def _running(report: LogReport) -> LogReport:
    """Return a report on a log that is still being written: a job without a visible end is running."""
    is_open = report.ended.how is How.UNKNOWN and report.ended.cause is None
    return replace(report, ended=replace(report.ended, how=How.RUNNING)) if is_open else report
