"""What may follow in a log when a program has ended with an error: other ranks' tracebacks, and the launcher's words.

Any other line says that something went on: programs catch errors, and print them all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from lumiimg.core.toml import package_toml
from lumiimg.joblog.lines import plain
from lumiimg.joblog.prefixes import end_of, prefixes

TAIL_BYTES = 8192
"""Of the end of a piece of a log, kept where it has an error: the last 100 lines or so."""
_INDENTED = (" ", "\t")
"""A launcher's prefix may have taken a space."""


def is_aftermath(lines: Iterable[bytes]) -> bool:
    """Whether all these lines may follow when a program has ended."""
    inside = False
    for line in lines:
        text = plain(line.rpartition(b"\r")[2])
        text = text[end_of(prefixes().launcher, text) :].rstrip()
        if inside and text.startswith(_INDENTED):
            continue  # a frame of a traceback, and its line of source
        inside = text.startswith(("Traceback (most recent call last)", "Thread 0x", "Current thread 0x"))
        if text and not inside and not _is_known(text):
            return False
    return True


def _is_known(text: str) -> bool:
    return any(_known().match(text, begin) for begin in (0, end_of(prefixes().program, text)))


@cache
def _known() -> re.Pattern[str]:
    kinds = package_toml(__package__, "deaths.toml")["aftermath"]
    return re.compile("|".join(table["pattern"] for table in kinds))
