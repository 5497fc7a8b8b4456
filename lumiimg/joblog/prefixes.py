"""What may stand before a message of a line: the knowledge base prefixes.toml, compiled."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from lumiimg.core.toml import package_toml

_MOST = 8
"""Prefixes that follow each other: a container's, a launcher's, a framework's, a time."""
_NET = r"(?:\t| {0,2}+)(?:\[Rank \d{1,7}\] )?(?:\w{0,8}(?:NET|ncclComm)[\w/]{1,40}(?: Libfabric)? ?:? )?"
_CHANNEL = r"(?:Channel \d{1,4}(?:/\d{1,4})? ?: \d{1,7}\[\w{1,10}\] (?:-> \d{1,7}\[\w{1,10})?)?"


class Prefixes(NamedTuple):
    """Patterns, each of all prefixes that may follow each other."""

    launcher: re.Pattern[str]
    """Before any line."""
    library: re.Pattern[str]
    """One with which a library signs that prints no `host:pid:tid`."""
    bare: re.Pattern[str]
    """Before a message of a collective library from which somebody has taken its origin."""
    program: re.Pattern[str]
    """Of an error of any program."""
    warning: re.Pattern[str]
    """In what stands before the words of a program that logs less than an error."""


@cache
def prefixes() -> Prefixes:
    """Return the knowledge base; a mistake in it is an error found by its tests."""
    data = package_toml(__package__, "prefixes.toml")
    launcher, library, program = (
        "|".join(table["pattern"] for table in data[kind]) for kind in ("launcher", "library", "program")
    )
    return Prefixes(
        launcher=re.compile(f"(?:{launcher}){{0,{_MOST}}}+"),
        library=re.compile(library),
        bare=re.compile(_NET + _CHANNEL),
        warning=re.compile(data["warning"]["pattern"]),
        program=re.compile(rf"(?:\t| {{0,2}}+)(?:{program}|{launcher}){{0,{_MOST}}}+(?:/[\w./+-]{{0,300}}/)?"),
    )


def end_of(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Return where the prefixes end that stand at `start`."""
    found = pattern.match(text, start)
    return found.end() if found else start
