"""The registry of findings: what each code means, which part of the fabric path it is about, and what answers it.

A finding of files may be answered by a probe, and every finding below level run by a collective that goes over
Slingshot (`answer.py`). The table is `codes.toml`, from which docs/reference/findings.md is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from lumiimg.fabric.path import Part  # noqa: TC001 - msgspec reads the types of the fields
from lumiimg.findings import Code, Level, Severity
from lumiimg.toml import own_table


class Decider(StrEnum):
    """What decides which part of the path a finding is about, where its code alone does not."""

    CHAIN = "the last library of its chain"
    LIBRARY = "the library that it names"
    VERDICT = "the network that the collective took"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What lumiimg knows of a code."""

    text: str
    """One sentence, for the page."""
    part: Part | None = None
    """The part of the path that breaks, or is not known, by such a finding; None where it is about no single one."""
    decided_by: Decider | None = None
    static: tuple[Severity, ...] = ()
    """The severities that it has at level static; empty where it is not found there."""
    probe: tuple[Severity, ...] = ()
    run: tuple[Severity, ...] = ()
    no: str | None = None
    """The sentence of an answer whose first problem it is; None where the sentence about TCP sockets fits."""
    replaced_by: Code | None = None
    """The good finding of a probe that takes the place of this one of files."""
    noted_beside: Code | None = None
    """The good finding of a probe beside which an obstacle or open question of files is only a note."""
    outlasts_probes: bool = False
    """Whether, as an open question, it stays open when cxi listens: RCCL may go past a plugin that works."""

    def severities(self, level: Level) -> tuple[Severity, ...]:
        """Return the severities that it has at a level."""
        return {Level.STATIC: self.static, Level.PROBE: self.probe, Level.RUN: self.run}[level]


@cache
def meanings() -> dict[Code, Meaning]:
    """Return the table."""
    import msgspec

    return msgspec.convert(own_table(__package__, "codes.toml"), dict[Code, Meaning])
