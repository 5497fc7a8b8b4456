"""The currency of lumiimg: one result of a check, with its evidence, its cause and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict, Unpack


class Severity(StrEnum):
    """How a finding bears on the answer."""

    OK = "ok"
    """Evidence for the fast path, at the finding's level and not beyond."""
    INFO = "info"
    """True, and of no weight for the answer."""
    UNKNOWN = "unknown"
    """A question that could not be answered here; keeps the answer from being green."""
    PROBLEM = "problem"
    """An obstacle: with this, the fast network is not used."""


class Level(StrEnum):
    """How a finding was got; a lower level never claims what only a higher one can see."""

    STATIC = "static"
    """From the files of the image, nothing run."""
    PROBE = "probe"
    """A program run inside the container, without a GPU."""
    RUN = "run"
    """A real collective on GPUs, or the log of one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    id: str
    """Stable, dotted: `plugin.absent`."""
    severity: Severity
    level: Level
    summary: str
    """One sentence."""
    where: str | None = None
    """A path in the image, or file:line of a log."""
    evidence: tuple[str, ...] = ()
    """Lines as they were printed or read, verbatim."""
    chain: tuple[str, ...] = ()
    """Why-chain, from what was asked to what failed: librccl.so.1, librccl-net.so, libfabric.so.1."""
    cause: str | None = None
    remedy: tuple[str, ...] = ()
    """What to do: sentences, or commands to copy."""
    source: str | None = None
    """Where the rule comes from."""


class Details(TypedDict, total=False):
    """What a finding may have beside its id, severity and summary."""

    where: str | None
    evidence: tuple[str, ...]
    chain: tuple[str, ...]
    cause: str | None
    remedy: tuple[str, ...]
    source: str | None


@dataclass(slots=True)
class Findings:
    """Findings of one level while they are collected."""

    level: Level
    found: list[Finding] = field(default_factory=list)

    def add(self, identity: str, severity: Severity, summary: str, **details: Unpack[Details]) -> None:
        """Append a finding of this level."""
        self.found.append(Finding(identity, severity, self.level, summary, **details))
