r"""What strace(1) writes of the calls by which a process looks for files, and how many there are of each kind.

With `-ff -y -qq -o FILE` (strace 5 and 6) each thread has a file of its own, and a line is `name(arguments) = result`.
Strings are escaped as in C; descriptors carry their path, `3</etc/hosts>`, in which `<` and `>` are escaped as well.
"""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lumiimg.errors import BadInputError
from lumiimg.files import open_regular

TRACED = "%file,getdents,getdents64"
"""For `-e trace=`."""
MAX_TRACE_BYTES = 512 << 20
_MAX_LINE_BYTES = 64 << 10
_KINDS = {
    name: kind
    for kind, names in {
        "opens": "open openat openat2 creat execve execveat uselib",
        "stats": "stat lstat stat64 lstat64 newfstatat fstatat64 statx access faccessat faccessat2",
        "lists": "getdents getdents64",
    }.items()
    for name in names.split()
}
"""The field of Counts by the name of a call."""
_LINE = re.compile(
    r"(\w+)\((.*)\) += (?:-?\d+|0x[0-9a-f]+)(?:<([^<>]*)>)?(?: (E[A-Z0-9]+) \([^()<>]*\))?\n?", re.DOTALL
)
_PATH = re.compile(r'(?:(?:-?\d+|AT_FDCWD)(?:<([^<>]*)>)?(?:, )?)?(?:"((?:[^"\\]|\\.)*)")?', re.DOTALL)
"""How the arguments begin: a descriptor, a name, or a descriptor and a name below it."""
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f", b"a": b"\a", b"b": b"\b"}


@dataclass(frozen=True, slots=True)
class Call:
    """One system call by which a process looks for a file."""

    name: str
    path: str
    """Absolute, as it was asked for: symlinks are not followed."""
    error: str | None = None
    """`ENOENT`."""
    opened: str | None = None
    """What an open led to, without symlinks."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Calls of one process and its children on some files."""

    metadata: int = 0
    """All that a server of metadata may be asked for: opens, stats, lists, readlinks and others."""
    opens: int = 0
    """Calls of open, and starts of programs."""
    stats: int = 0
    """Calls of stat and access by a name; that of an open file is known since it was opened."""
    lists: int = 0
    """Reads of directories; one directory takes two or more."""
    failed: int = 0
    """Of all these, those that found nothing: searches along sys.path and library paths, most of them."""


def count(calls: Iterable[Call]) -> Counts:
    """Return how many calls there are of each kind."""
    calls = list(calls)
    return Counts(
        metadata=len(calls),
        failed=sum(call.error in {"ENOENT", "ENOTDIR"} for call in calls),
        **Counter(kind for call in calls if (kind := _KINDS.get(call.name)) is not None),
    )


def read_traces(files: Iterable[Path]) -> list[Call]:
    """Return the calls in files of strace. Raises BadInputError where they are larger than those of any import."""
    calls, total = [], 0
    for file in files:
        with open_regular(file) as stream:
            while line := stream.readline(_MAX_LINE_BYTES):
                total += len(line)
                if total > MAX_TRACE_BYTES:
                    raise BadInputError(f"strace wrote more than {MAX_TRACE_BYTES} bytes", where=str(file))
                if (call := parse(line.decode("utf-8", "surrogateescape"))) is not None:
                    calls.append(call)
    return calls


def parse(line: str) -> Call | None:
    """Return the call of a line; None for a line of another kind, a call that did not end, and one of an open file."""
    match = _LINE.fullmatch(line)
    if match is None or match[1] in {"getcwd", "fchdir"}:
        return None
    name, arguments, opened, error = match.groups()
    found = _PATH.match(arguments)
    folder, below = found.groups() if found else (None, None)
    if not below and (not folder or _KINDS.get(name) != "lists"):
        return None
    path = os.path.normpath(os.path.join(_unescaped(folder or "/"), _unescaped(below or "")))  # noqa: PTH118
    # pipes and sockets have names without a slash
    return Call(name, path, error, _unescaped(opened) if opened else None) if path.startswith("/") else None


def _unescaped(text: str) -> str:
    def byte(match: re.Match[bytes]) -> bytes:
        return bytes((int(match[1], 8) & 0xFF,)) if match[1] else _LETTERS.get(match[2], match[2])

    return _ESCAPE.sub(byte, text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
