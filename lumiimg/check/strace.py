r"""What strace(1) writes of the calls on files of a process: which file, with which end, how many bytes.

A line is `PID name(arguments) = result`, with `-f -y -qq -o FILE` (strace 5 and 6). A call during which a line of
another thread was written is in two parts, `<unfinished ...>` and `<... name resumed>`. Strings are escaped as in C;
descriptors carry their path, `3</etc/hosts>`, in which `<` and `>` are escaped as well.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from lumiimg.errors import BadInputError

MAX_TRACE_BYTES = 512 << 20
_MAX_LINE_BYTES = 64 << 10
_MAX_WAITING = 10_000
"""Threads that are in a call at one time."""


class CallKind(StrEnum):
    """What a call asks of a file system."""

    OPEN = "open"
    STAT = "stat"
    """By a name; that of an open file is known since it was opened."""
    READLINK = "readlink"
    LIST = "list"
    OTHER = "other"
    """By a name too: made, removed, renamed, …"""
    READ = "read"
    MAP = "map"


_KINDS = {
    name: kind
    for kind, names in {
        CallKind.OPEN: "open openat openat2 creat execve execveat uselib",
        CallKind.STAT: "stat lstat stat64 lstat64 newfstatat fstatat64 statx access faccessat faccessat2",
        CallKind.READLINK: "readlink readlinkat",
        CallKind.LIST: "getdents getdents64",
        CallKind.READ: "read pread64 readv preadv preadv2",
        CallKind.MAP: "mmap mmap2",
        None: "getcwd fchdir",
    }.items()
    for name in names.split()
}
"""Of what `-e trace=%file` and the calls below show; what is not here is OTHER, where it names a file."""
TRACED = (
    f"%file,{','.join(name for name, kind in _KINDS.items() if kind in {CallKind.LIST, CallKind.READ, CallKind.MAP})}"
)
"""For `-e trace=`."""
_LINE = re.compile(r"(\d{1,10}) +(?:<\.\.\. \w+ resumed>(?P<rest>.*)|(?P<name>\w+)\((?P<arguments>.*))", re.DOTALL)
_UNFINISHED = "<unfinished ...>"
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>|[(){}\[\],]|[^"<(){}\[\],]+|.', re.DOTALL)
_RESULT = re.compile(r"\s+= (-?\d+|0x[0-9a-f]+|\?)(?:<([^<>]*)>)?(?: (E[A-Z0-9]+))?")
_DESCRIPTOR = re.compile(r"(?:-?\d+|AT_FDCWD)<([^<>]*)>", re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-f]{2})|(.))", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f", b"a": b"\a", b"b": b"\b"}


class TraceError(BadInputError):
    """A trace that is larger than any of an import."""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call on a file that has ended."""

    name: str
    kind: CallKind
    path: str
    """Absolute, as it was asked for: symlinks are not followed."""
    error: str | None = None
    """`ENOENT`."""
    size_bytes: int = 0
    """Read; of a mapping, how far it reaches into the file."""
    opened: str | None = None
    """What an open led to, without symlinks."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Calls of one process and its children on some files."""

    opens: int = 0
    stats: int = 0
    readlinks: int = 0
    lists: int = 0
    """Reads of directories; one directory takes two or more."""
    others: int = 0
    failed: int = 0
    """Of all these, those that found nothing: searches along sys.path and library paths, most of them."""
    files: int = 0
    """Different names that were opened."""
    reads: int = 0
    read_bytes: int = 0
    mapped_bytes: int = 0
    """Of files that are mapped, as far as they are: how much of it is then looked at, no call shows."""

    @property
    def metadata(self) -> int:
        """All that a server of metadata may be asked for."""
        return self.opens + self.stats + self.readlinks + self.lists + self.others

    def __add__(self, other: Counts) -> Counts:
        """Return both together."""
        return Counts(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


def count(calls: Iterable[Call], is_wanted: Callable[[str], bool]) -> Counts:
    """Return the counts of the calls on paths that are wanted."""
    numbers = dict.fromkeys(CallKind, 0)
    failed = read_bytes = 0
    opened: set[str] = set()
    mapped: dict[str, int] = {}
    for call in calls:
        if not is_wanted(call.path):
            continue
        numbers[call.kind] += 1
        if call.kind is CallKind.READ:
            read_bytes += call.size_bytes
        elif call.kind is CallKind.MAP:
            mapped[call.path] = max(mapped.get(call.path, 0), call.size_bytes)
        else:
            failed += call.error in {"ENOENT", "ENOTDIR"}
            if call.kind is CallKind.OPEN and call.error is None:
                opened.add(call.path)
    return Counts(
        opens=numbers[CallKind.OPEN],
        stats=numbers[CallKind.STAT],
        readlinks=numbers[CallKind.READLINK],
        lists=numbers[CallKind.LIST],
        others=numbers[CallKind.OTHER],
        failed=failed,
        files=len(opened),
        reads=numbers[CallKind.READ],
        read_bytes=read_bytes,
        mapped_bytes=sum(mapped.values()),
    )


def read_trace(path: Path) -> list[Call]:
    """Return the calls in a file of strace. Raises TraceError for one that is too large."""
    with path.open("rb") as stream:
        return list(parse(_lines(stream, path)))


def _lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    total = 0
    while line := stream.readline(_MAX_LINE_BYTES):
        total += len(line)
        if total > MAX_TRACE_BYTES:
            raise TraceError(f"strace wrote more than {MAX_TRACE_BYTES} bytes", where=str(path))
        yield line.decode("utf-8", "surrogateescape")


def parse(lines: Iterable[str]) -> Iterator[Call]:
    """Yield the calls on files that have ended, in the order of their ends; any other line is passed over."""
    waiting: dict[str, tuple[str, str]] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        pid, text = match[1], line
        if match["name"] is not None:
            name, text = match["name"], match["arguments"].rstrip()
            if text.endswith(_UNFINISHED):
                if len(waiting) < _MAX_WAITING:
                    waiting[pid] = name, text.removesuffix(_UNFINISHED)
                continue
        else:
            name, before = waiting.pop(pid, ("", ""))
            text = before + match["rest"]
        call = _call(name, text)
        if call is not None:
            yield call


def _call(name: str, text: str) -> Call | None:
    """Return a call by what stands behind its opening parenthesis; None where it is about no file, or has no end."""
    kind = _KINDS.get(name, CallKind.OTHER)
    arguments, rest = _split(text)
    result = _RESULT.match(rest)
    if kind is None or result is None or result[1] == "?" or not arguments:
        return None
    if kind in {CallKind.LIST, CallKind.READ, CallKind.MAP}:
        path = _path_of(arguments[4] if kind is CallKind.MAP and len(arguments) > 4 else arguments[0])
        size = _number(result[1]) if kind is CallKind.READ and not result[3] else 0
        if kind is CallKind.MAP and len(arguments) > 5:
            size = _number(arguments[1]) + _number(arguments[5])
        # pipes and sockets have names without a slash
        return Call(name, kind, path, result[3], size) if path is not None and path.startswith("/") else None
    named = next((argument for argument in arguments[:3] if argument.startswith('"')), None)
    folder = _path_of(arguments[0]) or "/"
    if not named:
        return None
    path = _unescape(named.removesuffix("...")[1:-1])
    # an empty name asks about the open file itself
    if not path or not folder.startswith("/"):
        return None
    opened = _unescape(result[2]) if result[2] else None
    return Call(name, kind, os.path.normpath(os.path.join(folder, path)), result[3], 0, opened)  # noqa: PTH118


def _split(text: str) -> tuple[list[str], str]:
    """Return (the arguments, what follows the parenthesis that ends them); no arguments where nothing ends them."""
    arguments: list[str] = []
    current: list[str] = []
    depth = 0
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece == ")" and depth == 0:
            return [*arguments, "".join(current).strip()], text[match.end() :]
        if piece == "," and depth == 0:
            arguments.append("".join(current).strip())
            current = []
            continue
        depth += (piece in "({[") - (piece in ")}]") if len(piece) == 1 else 0
        current.append(piece)
    return [], ""


def _path_of(descriptor: str) -> str | None:
    match = _DESCRIPTOR.fullmatch(descriptor)
    return _unescape(match[1]) if match else None


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _unescape(text: str) -> str:
    def byte(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes((int(match[1], 8) & 0xFF,))
        return bytes((int(match[2], 16),)) if match[2] else _LETTERS.get(match[3], match[3])

    if "\\" not in text:
        return text
    return _ESCAPE.sub(byte, text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
