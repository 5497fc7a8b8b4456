"""Lines that may follow the error that killed a program: any other line shows that something continued."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.joblog.lines import end_of, plain, prefixes
from lumiimg.joblog.vocabulary import vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

_INDENTED = (" ", "\t")
"""One space is enough: stripping a launcher's prefix may have removed one."""


_STEP = re.compile(r"[^\w]{0,8}(?i:step|epoch|iter(?:ation)?|batch|update|generation)s?[ :=#/(\[-]{1,3}(\d{1,9})\b")
"""A progress counter that a program prints."""
_DONE = re.compile(
    r"[^\w]{0,8}(?i:(?:training|evaluation|all|run|job)[ ,:]{1,3}(?:is |was |has )?)?(?i:done|finished|completed?)\b"
)


def has_continued(lines: Iterable[bytes]) -> bool:
    """Return whether a program counts on after printing an error: to a higher step, or from a step to completion."""
    texts = [text[end_of(prefixes().launcher, text) :] for text in map(plain, lines)]
    steps = [(int(step[1]), at) for at, step in enumerate(map(_STEP.match, texts)) if step]
    return bool(steps) and (max(steps)[0] > steps[0][0] or any(map(_DONE.match, texts[steps[0][1] + 1 :])))


def is_aftermath(lines: Iterable[bytes]) -> bool:
    """Return whether all these lines may follow a program's fatal error: tracebacks and messages of the launcher.

    Any other line shows that something continued: programs print errors even if they catch them.
    """
    inside = False
    for line in lines:
        text = plain(line.rpartition(b"\r")[2])
        text = text[end_of(prefixes().launcher, text) :].rstrip()
        if inside and text.startswith(_INDENTED):
            continue  # a traceback frame and its source line
        inside = text.startswith(("Traceback (most recent call last)", "Thread 0x", "Current thread 0x"))
        known = (vocabulary().aftermath.match(text, at) for at in (0, end_of(prefixes().program, text)))
        if text and not inside and not any(known):
            return False
    return True
