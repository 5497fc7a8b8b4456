"""Explain failures from an engine's output: its exit status is 255 for every failure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from lumiimg.core.errors import MissingHereError, one_safe_line
from lumiimg.core.toml import package_toml
from lumiimg.engine.process import ESCAPES

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

# Lines that the engine, bash's trace and pip print around a failure, not the failure itself.
_AROUND = re.compile(
    r"^(INFO|WARNING|FATAL|DEBUG|VERBOSE)\b|^\++ |^time=\""
    r"|^[\u00d7\u2570\u2502]|^\[end of output\]|^hint: See above"
    r"|^note: This (error originates from a subprocess|is an issue with the package)"
    r"|^error: (subprocess-exited-with-error|metadata-generation-failed|failed-wheel-build)"
    r"|^(ERROR: )?Failed (building|to build) "
)
_TAIL_CHARS = 64 * 1024
_MEANING_LIMIT = 300
_LINES = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A known failure, with parts of the output filled in."""

    id: str
    meaning: str
    remedy: str


@cache
def _known() -> tuple[tuple[str, re.Pattern[str], str, str], ...]:
    known = package_toml(__package__, "failures.toml")["failure"]
    return tuple((entry["id"], re.compile(entry["pattern"]), entry["meaning"], entry["remedy"]) for entry in known)


def explain(output: str) -> Failure | None:
    """Return the last known failure in the end of an engine's output, or None."""
    tail = ESCAPES.sub("", output[-_TAIL_CHARS:])
    last: tuple[int, Failure] | None = None
    for identity, pattern, meaning, remedy in _known():
        for match in pattern.finditer(tail):
            found = {name: value or "?" for name, value in match.groupdict().items()}
            if last is None or match.start() > last[0]:
                last = match.start(), Failure(identity, meaning.format(**found), remedy)
    return last[1] if last else None


def last_words(output: str) -> str:
    """Return the last line of an output that is not one of the lines around a failure, without colours.

    If there is none, return the engine's last FATAL line; empty if there is none of these either.
    """
    lines = [line.strip() for line in reversed(ESCAPES.sub("", output[-_TAIL_CHARS:]).splitlines()) if line.strip()]
    return next(
        (line for line in lines if not _AROUND.match(line)),
        next((line for line in lines if line.startswith("FATAL")), ""),
    )


def not_started(engine: Engine, output: str, *, where: str | None = None) -> MissingHereError:
    """Return the error, with the remedy, for a container that does not start, from the engine's output."""
    known = explain(output)
    why = known.meaning if known else one_safe_line(last_words(output))[:_MEANING_LIMIT] or "it does not say why"
    return MissingHereError(
        f"{engine.name} cannot start a container here: {why}",
        where=where,
        hint=known.remedy if known else None,
        more=output[-_TAIL_CHARS:].splitlines()[-_LINES:],
    )
