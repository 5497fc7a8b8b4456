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


_STEP = re.compile(
    r"(?<![\w/.-])(?i:(?:global_?)?step|epoch|iter(?:ation)?|batch|update|generation)s?['\"]?[ :=#/(\[-]{1,12}"
    r"(\d{1,9}(?:\.\d{1,9})?)\b(?:\]\[(\d{1,9})/)?"
)
"""A progress counter that a program prints, and one within it: `Epoch: [0][50/200]`."""
_FRACTION = re.compile(r"\| {0,3}(\d{1,9})/\d{1,9} \[")
"""The counter of a progress bar, which counts behind a named one."""
_DONE = re.compile(
    r"[^\w]{0,8}(?i:(?:training|evaluation|all|run|job)[ ,:]{1,3}(?:is |was |has )?)?(?i:done|finished|completed?)\b"
)


def has_continued(lines: Iterable[bytes]) -> bool:
    """Return whether a program counts on after printing an error: to a higher step, or from a step to completion."""
    texts = [text[end_of(prefixes().launcher, text) :] for text in map(plain, lines)]
    steps = [(counted, at) for at, counted in enumerate(map(_counters, texts)) if counted]
    if not steps:
        return False
    first, at = steps[0]
    return any(len(one) == len(first) and one > first for one, _ in steps) or any(map(_DONE.match, texts[at + 1 :]))


def _counters(text: str) -> tuple[float, ...]:
    """Return the progress counters of a line, the slowest first; none of a launcher's line, whose steps are Slurm's."""
    if vocabulary().aftermath.match(text):
        return ()
    named = [float(number) for found in _STEP.findall(text[:1024]) for number in found if number]
    return (*named, *map(float, _FRACTION.findall(text))) if named else ()


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
