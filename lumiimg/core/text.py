"""Text for messages and reports: numbers, names of nodes, words of a shell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from itertools import groupby

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,5}")
_NUMBERED = re.compile(r"(.*?)(\d{1,9})((?:[.-]\D.*)?)")
"""Prefix, number and domain of a node's name: `nid005000.hsn.example`."""
_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "'": r"\'", "\\": r"\\"}


def count(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`, `2 libraries`, `2 processes`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and not noun.endswith("ay"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def shell_quote(text: str) -> str:
    r"""Return one word for bash on one line: a newline in it is written `$'\n'`."""
    if text.isprintable():
        return shlex.quote(text)
    spelled = "".join(
        _ESCAPES.get(c) or (c if c.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(c)))
        for c in text
    )
    return f"$'{spelled}'"


def address_of(name: str) -> str | None:
    """Return `docker://…` or `docker-daemon://…` if a name is the address of an image; None for that of a file.

    A Path has one slash where an address has two; engines and skopeo write `docker-daemon:NAME`.
    """
    found = re.fullmatch(r"(?:(docker):/{1,2}|(docker-daemon):/{0,2})([^/].*)", name)
    return found and f"{found[1] or found[2]}://{found[3]}"


def as_operand(name: str) -> str:
    """Return the name of a file in a form that a command does not take for an option."""
    return f"./{name}" if name.startswith("-") else name


def with_folder(image: str) -> str:
    """Return the path of an image in a form for --base and other options, where a bare name may be in the catalogue."""
    return image if "/" in image else f"./{image}"


def shell_join(words: Iterable[str]) -> str:
    """Return words as a command for bash, on one line."""
    return " ".join(map(shell_quote, words))


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """Return `49-55,57`; numbers of fewer digits than `width` are padded with zeros."""
    runs = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        found = [f"{number:0{width}}" for _, number in run]
        runs.append(f"{found[0]}-{found[-1]}" if len(found) > 1 else found[0])
    return ",".join(runs)


def hostlist(names: Iterable[str]) -> str:
    """Return names of nodes in one line, sorted, as Slurm writes them: `nid[005000-005001,005003]`."""
    numbered: dict[tuple[str, int, str], set[int]] = {}
    plain: set[str] = set()
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            numbered.setdefault((match[1], len(match[2]), match[3]), set()).add(int(match[2]))
        else:
            plain.add(name)
    parts = sorted(plain)
    for (prefix, width, domain), numbers in sorted(numbered.items()):
        inner = ranges(numbers, width)
        parts.append(f"{prefix}{inner}{domain}" if len(numbers) == 1 else f"{prefix}[{inner}]{domain}")
    return ",".join(parts)


def size(size_bytes: int) -> str:
    """Return a size in readable units."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def duration(seconds: float) -> str:
    """Return a duration in readable units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def rough_duration(seconds: float) -> str:
    """Return a duration that was measured at another time, or on another machine: in minutes."""
    hours, minutes = divmod(max(1, round(seconds / 60)), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers at the end of a version's name, GLIBC_2.38 or 2.38; empty where there are none."""
    number = version.rpartition("_")[2]
    return tuple(map(int, number.split("."))) if _VERSION.fullmatch(number) else ()
