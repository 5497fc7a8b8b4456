"""Where a log comes from: files, folders, compressed files, standard input; always as blocks of whole lines."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from lumiimg.core.errors import BadInputError
from lumiimg.core.files import open_regular, read_beginning
from lumiimg.joblog.flight import FlightDump, is_dump, is_json_dump, is_recorded, read_dump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from lzma import LZMADecompressor

    from _typeshed import WriteableBuffer

STDIN = "-"
BLOCK_BYTES = 256 * 1024
LINE_LIMIT_BYTES = 1024 * 1024
"""A longer line is none that NCCL printed: what is beyond is passed over, so that memory stays constant."""
ENDLESS_BYTES = 1 << 30
"""So much without the end of a line, of a stream: none comes any more, as of /dev/zero."""
REPEATED_BYTES = 256 << 20
"""So much of one line over and over, of a stream: the rest is the same, as of yes(1)."""
STREAM_BYTES = 64 << 30
"""So much is read of a stream; no log of a job that is piped in is larger."""
FILE_LIMIT = 65_536
DEPTH_LIMIT = 8
HEAD_BYTES = 64
XZ_MEMORY_BYTES = 128 << 20
"""`xz -9` asks for 65 MiB; zstd's own limit is the same."""
_ANSWER = b'{\n  "schema": '
"""The beginning of what `--json` prints: it may quote lines of a log, and is none."""
_DIGITS = re.compile(r"(\d+)")


def log_files(names: Sequence[str]) -> list[str]:
    """Return the files to read, folders replaced by the text files in them, in natural order of their names.

    Raises BadInputError for a name that is not there, a folder without a log, or a file that is not text.
    """
    found: list[str] = []
    for name in names:
        if name == STDIN:
            found.append(name)
        elif Path(name).is_dir():
            found += _in_folder(name)
        else:
            refuse_binary(name)
            found.append(name)
    once: dict[object, str] = {}
    for file in found:
        once.setdefault(_identity(file), file)
    return list(once.values())


def _identity(file: str) -> object:
    """Return what distinguishes a file from another: one that is named twice, or through a folder too, is read once."""
    if file == STDIN:
        return STDIN
    status = Path(file).stat()
    return status.st_dev, status.st_ino


def _refuse_folder(error: OSError) -> NoReturn:
    what = f"cannot be read: {error.strerror or error}"
    raise BadInputError(what, where=str(error.filename), hint="name the files that can be read") from error


def _in_folder(folder: str) -> list[str]:
    files: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_refuse_folder):
        depth = len(Path(parent).relative_to(folder).parts)
        folders[:] = sorted(folders, key=natural) if depth < DEPTH_LIMIT else []
        for name in sorted(names, key=natural):
            path = Path(parent, name)
            if path.is_file() and _is_log(read_beginning(path, HEAD_BYTES)):
                files.append(str(path))
        if len(files) > FILE_LIMIT:
            raise BadInputError(f"more than {FILE_LIMIT} files", where=folder, hint="name the files of one job")
    if not files:
        raise BadInputError("no log in this folder", where=folder)
    return files


def _is_log(head: bytes) -> bool:
    """Whether a file of a folder is read; a pickle only where it begins as a flight recorder's does."""
    return opener_of(head) is not None or _is_text(head) or is_recorded(head)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key: rank2 before rank10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name[:255])]


def refuse_binary(name: str) -> None:
    """Raise BadInputError for a file that cannot be a log, or cannot be read."""
    try:
        # what a pipe holds can be read once
        head = b"" if Path(name).is_fifo() else read_beginning(name, HEAD_BYTES)
    except (OSError, ValueError) as error:
        raise BadInputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=name) from error
    if opener_of(head) is None and not is_dump(head):
        refuse_no_text(name, head)


def refuse_no_text(name: str, head: bytes) -> None:
    """Raise BadInputError for a file that starts as no text does."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInputError("is text in UTF-16", where=name, hint=f"iconv -f UTF-16 -t UTF-8 {shlex.quote(name)}")
    if not _is_text(head):
        what = "is not text" if is_binary(head) else "is an answer of lumiimg (--json)"
        raise BadInputError(what, where=name, hint="lumiimg log reads what a job printed")


def _is_text(head: bytes) -> bool:
    return not is_binary(head) and not head.startswith(_ANSWER)


def is_binary(head: bytes) -> bool:
    """Whether a file that starts so is not a log; a log whose start was cut off while it grew begins with zeros."""
    return b"\0" in head.lstrip(b"\0")


def opener_of(head: bytes) -> Callable[[BinaryIO], BinaryIO] | None:
    """Return what unpacks a file that starts so; None where it is not compressed."""
    openers = {b"\x1f\x8b": _gzip, b"\x28\xb5\x2f\xfd": _zstd, b"\xfd7zXZ\0": _xz, b"BZh": _bz2}
    return next((opener for magic, opener in openers.items() if head.startswith(magic)), None)


def blocks(
    name: str, warn: Callable[[str], None], take_dump: Callable[[FlightDump], None] | None = None
) -> Iterator[bytes]:
    """Yield the file, unpacked, as blocks of whole lines; memory does not grow with it.

    `take_dump` gets a dump of PyTorch's flight recorder, which has no lines.

    Raises BadInputError if it cannot be read or unpacked, and for a pickle of anything else. A compressed file whose
    end is missing (it is still written) is read up to there, and `warn` is called.
    """
    try:
        if name == STDIN:
            if sys.stdin is None:
                raise BadInputError("there is no standard input to read")
            yield from _endless(sys.stdin.buffer, name, warn)
            return
        if Path(name).is_fifo():
            with Path(name).open("rb") as stream:
                yield from _endless(stream, name, warn)
            return
        with open_regular(name) as stream:
            head = os.pread(stream.fileno(), HEAD_BYTES, 0)
            if take_dump is not None and is_dump(head) and (dump := _dump(name, head, warn)) is not None:
                take_dump(dump)
            elif opener_of(head) is not None:
                yield from _endless(stream, name, warn)
            else:
                yield from whole_lines((block for _, block in written(stream)), name, warn)
    except EOFError:
        warn(f"{name}: the compressed file ends too early; read up to there")
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror or error}", where=name) from error
    except _unpacking_errors() as error:
        raise BadInputError(f"cannot be unpacked: {error}", where=name) from error


def _dump(name: str, head: bytes, warn: Callable[[str], None]) -> FlightDump | None:
    """Return a dump; None for other JSON, which may be lines of a log: that is a warning.

    Raises BadInputError for a pickle of anything else.
    """
    try:
        return read_dump(name)
    except BadInputError as error:
        if not is_json_dump(head):
            raise
        warn(f"{error}; read as text")
        return None


class LineSplitter:
    """Makes whole lines of blocks; of a line that is longer than any that NCCL prints, the end is left out."""

    def __init__(self) -> None:
        self.rest = b""
        """Of a line whose end has not come yet."""
        self._skipping = False

    def push(self, block: bytes) -> bytes:
        """Take in the next block and return the lines that are whole now."""
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


def whole_lines(data: Iterable[bytes], name: str, warn: Callable[[str], None]) -> Iterator[bytes]:
    """Yield blocks as others that end with a line, then a last line without an end, for which `warn` is called.

    It may be cut off, as jobs write in blocks: `nRanks 1` of 16, or a provider `c`, would be taken for the whole.

    Raises BadInputError for what goes on without the end of a line.
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
        warn(f"{name}: its last line has no end and may be cut off, so it counts only if it says that something failed")


def _endless(stream: BinaryIO, name: str, warn: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the lines of a stream, unpacked, whose size is not known: no more than 64 GiB, and of one line over and
    over 256 MiB.
    """
    total = repeated = 0
    line = b""
    for lines in whole_lines(_blocks(_readable(stream)), name, warn):
        yield lines
        total += len(lines)
        before, line = line, lines[: lines.find(b"\n") + 1]
        is_repeated = line == before and lines.count(line) * len(line) == len(lines)
        repeated = repeated + len(lines) if is_repeated else 0
        if total > STREAM_BYTES or repeated > REPEATED_BYTES:
            what = "goes on without an end" if total > STREAM_BYTES else "repeats one line without an end"
            warn(f"{name}: {what}; the first {total >> 20} MiB of it were read")
            return


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    read = getattr(stream, "read1", stream.read)
    while block := read(BLOCK_BYTES):
        yield block


def written(stream: BinaryIO, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield what a file holds from an offset on, each block with where it ends.

    Holes are left out (lseek(2)), as no line ends there. Nothing is read through the buffer of the stream, which would
    not notice that the place in the file has changed.
    """
    number = stream.fileno()
    while True:
        try:
            offset = os.lseek(number, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
        try:
            block = os.pread(number, BLOCK_BYTES, offset)
        except BlockingIOError:  # a file of /proc that has nothing yet
            return
        if not block:
            return
        offset += len(block)
        yield offset, block


def _readable(stream: BinaryIO) -> BinaryIO:
    """Return what a stream holds, unpacked if it is compressed."""
    opener = opener_of(stream.peek(HEAD_BYTES)) if hasattr(stream, "peek") else None
    return opener(stream) if opener else stream


def _gzip(stream: BinaryIO) -> BinaryIO:
    import gzip

    return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]


def _xz(stream: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_Xz(stream), BLOCK_BYTES)


class _Xz(io.RawIOBase):
    """What xz has packed; unlike LZMAFile with a bound on the memory that a file may ask for: up to 4 GiB."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._inner = _xz_decompressor()
        self._packed = b""
        self._is_between = True
        """Whether all that came was the end of a part, behind which another one may stand."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        while True:
            if self._inner.needs_input and not self._packed:
                self._packed = self._stream.read(BLOCK_BYTES)
                if not self._packed and self._is_between:
                    return 0
                if not self._packed:
                    raise EOFError
            self._is_between = False
            data = self._inner.decompress(self._packed, max_length=len(view))
            self._packed = b""
            if self._inner.eof:
                rest = self._inner.unused_data
                self._inner, self._is_between = _xz_decompressor(), True
                self._packed = rest.lstrip(b"\0") if rest else b""  # stream padding
            if data:
                view[: len(data)] = data
                return len(data)


def _xz_decompressor() -> LZMADecompressor:
    import lzma

    return lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES)


def _bz2(stream: BinaryIO) -> BinaryIO:
    import bz2

    return bz2.BZ2File(stream)  # type: ignore[return-value]


def _zstd(stream: BinaryIO) -> BinaryIO:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdFile(stream)  # type: ignore[return-value]


def _unpacking_errors() -> tuple[type[Exception], ...]:
    """Return what the unpackers raise, of those that are loaded."""
    names = (
        ("zlib", "error"),
        ("lzma", "LZMAError"),
        ("backports.zstd", "ZstdError"),
        ("compression.zstd", "ZstdError"),
    )
    return tuple(getattr(sys.modules[module], name) for module, name in names if module in sys.modules)
