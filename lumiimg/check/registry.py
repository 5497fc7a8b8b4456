"""The registry of findings: what each code means, which part of the fabric path it is about, and its texts.

A finding of files may be answered by a probe, and every finding below level run by a collective that goes over
Slingshot (`answer.py`). The table is `registry.toml`, from which docs/reference/findings.md is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TypedDict, Unpack

from lumiimg.core.findings import Finding, Level, Remedy, Severity, with_values
from lumiimg.core.text import shell_quote
from lumiimg.core.toml import package_toml
from lumiimg.fabric.path import Part  # noqa: TC001 - msgspec reads the types of the fields


class PartSource(StrEnum):
    """What decides which part of the path a finding is about, where its code alone does not."""

    CHAIN = "the last library of its chain"
    LIBRARY = "the library that it names"
    VERDICT = "the network that the collective took"


@dataclass(frozen=True, slots=True)
class Reason:
    """The texts of a finding; each may hold `{name}`."""

    summary: str | None = None
    """The sentence of the finding; None where the code that finds it has it from elsewhere."""
    cause: str | None = None
    """Why it is so."""
    remedy: tuple[Mapping[str, str], ...] = ()
    """What to do: the parts of each remedy."""
    source: str | None = None
    """Where the rule comes from."""

    def remedies(self, names: Mapping[str, str]) -> tuple[Remedy, ...]:
        """Return what to do, with names in it: in a command they are words of a shell."""
        return tuple(_made(names, **parts) for parts in self.remedy)


def _made(names: Mapping[str, str], text: str = "", command: str | None = None, where: str | None = None) -> Remedy:
    words = {name: shell_quote(value) for name, value in names.items()}
    return Remedy(with_values(text, names), with_values(command, words) if command else None, where)


@dataclass(frozen=True, slots=True)
class FindingType(Reason):
    """What lumiimg knows of a code."""

    text: str = ""
    """One sentence, for the page."""
    part: Part | None = None
    """The part of the path that breaks, or is not known, by such a finding; None where it is about no single one."""
    decided_by: PartSource | None = None
    static: tuple[Severity, ...] = ()
    """The severities that it has at level static; empty where it is not found there."""
    probe: tuple[Severity, ...] = ()
    run: tuple[Severity, ...] = ()
    no: str | None = None
    """The sentence of an answer whose first problem it is; None where the sentence about TCP sockets fits."""
    answered_by: str | None = None
    """The good finding of a probe that takes the place of this one of files."""
    demoted_by: str | None = None
    """The good finding of a probe beside which an obstacle or open question of files is only a note."""
    outweighs: str | None = None
    """As a good finding of a probe: the text added to those that are `demoted_by` it."""
    survives_probe: bool = False
    """Whether, as an open question, it stays open when cxi listens: RCCL may go past a plugin that works."""
    needs_nic: bool = False
    """Whether, as an open question, it says no more than that no NIC can be used where the probe ran."""
    hangs_on: tuple[str, ...] = ("process", "loader", "NCCL_NET_PLUGIN")
    """Variables, or groups of them, that decide whether it is so: as a problem it is open where one is not sure."""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """Texts by reason, in place of those of the code."""

    def severities(self, level: Level) -> tuple[Severity, ...]:
        """Return its possible severities at a level; empty where it is not found there."""
        return {Level.STATIC: self.static, Level.PROBE: self.probe, Level.RUN: self.run}[level]


@cache
def finding_types() -> dict[str, FindingType]:
    """Return the table."""
    import msgspec

    return msgspec.convert(package_toml(__package__, "registry.toml"), dict[str, FindingType])


def remedies_for(code: str, reason: str, **names: str) -> tuple[Remedy, ...]:
    """Return what the registry says to do about one of several reasons for a finding."""
    return finding_types()[code].reasons[reason].remedies(names)


SHOWN = 8
"""Lines of evidence that a finding has at most."""


class FindingDetails(TypedDict, total=False):
    """What a finding may have beside its code, severity and summary; where it has none, the registry says it."""

    where: str | None
    evidence: Sequence[str]
    chain: tuple[str, ...]
    cause: str | None
    remedy: tuple[Remedy, ...]
    source: str | None


@dataclass(slots=True)
class Findings:
    """Findings of one level while they are collected."""

    level: Level
    found: list[Finding] = field(default_factory=list)

    def add(
        self,
        code: str,
        severity: Severity,
        summary: str | None = None,
        *,
        reason: str | None = None,
        names: Mapping[str, str] | None = None,
        **details: Unpack[FindingDetails],
    ) -> None:
        """Append a finding of this level.

        `summary`: None where the registry has the sentence. `reason` is one of its code's; `names` are for the texts of
        the registry, as is `where`.
        """
        kind, values = finding_types()[code], {"where": details.get("where") or "", **(names or {})}
        own = kind.reasons[reason] if reason is not None else kind
        cause = own.cause or kind.cause
        self.found.append(
            Finding(
                code,
                severity,
                self.level,
                summary or with_values(own.summary or kind.summary or "", values),
                details.get("where"),
                tuple(details.get("evidence", ())[:SHOWN]),
                details.get("chain", ()),
                details.get("cause") or (with_values(cause, values) if cause else None),
                details.get("remedy") or own.remedies(values) or kind.remedies(values),
                details.get("source") or own.source or kind.source,
            )
        )
