"""What `lumiimg bench import` says: calls by kind, two rows a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.startup import ImportSource, Startup
from lumiimg.report.console import console, headline, marked, say, verbatim

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS = {
    "all": "metadata",
    "opens": "opens",
    "stats": "stats",
    "lists": "lists",
    "nothing": "failed",
}
"""The field of Counts below each title."""
_LABEL, _WIDTH = 16, 8
_NOTE = (
    "of all: opens, stats and accesses, reads of directories; how many found nothing. Reads of files are not counted. "
    "Each process of a job asks this"
)
_OF_AN_IMAGE = (
    "; of an image, its part that reaches it: what the engine asks of its file, of the folders above it and of the "
    "home, once per container, and what the program asks of paths that are bound"
)


def print_startups(startups: Sequence[Startup], module: str, *, stderr: bool = False) -> None:
    """Print them for a person."""
    out = console(stderr=stderr)
    headline(out, f"import {module}: calls on files and folders, counted with strace; no times")
    out.print(f"{'':<{_LABEL}}" + "".join(f"{title:>{_WIDTH}}" for title in _COLUMNS), style="dim")
    for startup in startups:
        verbatim(out, f"{startup.path} ({startup.kind}): Python {startup.python}, {module} {startup.version or '-'}")
        for label, counts in (("  program asks", startup.program), ("  reaches it", startup.shared)):
            numbers = [f"{getattr(counts, name):,}" if counts else "?" for name in _COLUMNS.values()]
            strong = "bold" if counts is startup.shared else None
            out.print(f"{label:<{_LABEL}}" + "".join(f"{number:>{_WIDTH}}" for number in numbers), style=strong)
        if startup.why_not:
            marked(out, "unknown", f"not counted: {startup.why_not}", first="  ")
    is_image = any(startup.kind is ImportSource.IMAGE for startup in startups)
    say(out, _NOTE + (_OF_AN_IMAGE if is_image else ""), style="dim")
