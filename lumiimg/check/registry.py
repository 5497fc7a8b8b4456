"""The registry of findings: what each code means, which part of the fabric path it is about, and its texts.

A probe may answer a finding about files, and a collective over Slingshot every finding below level run (`answer.py`).
The table is `registry.toml`, from which docs/reference/findings.md is generated.
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
    """What decides which part of the path a finding is about, if its code alone does not."""

    CHAIN = "the last library of its chain"
    LIBRARY = "the library that it names"
    VERDICT = "the network that the collective took"


@dataclass(frozen=True, slots=True)
class Reason:
    """The texts of a finding; each may contain `{name}`."""

    summary: str | None = None
    """The sentence of the finding; None if the code that finds it supplies the sentence."""
    cause: str | None = None
    """The cause."""
    remedy: tuple[Mapping[str, str], ...] = ()
    """What to do: the parts of each remedy."""
    source: str | None = None
    """Where the rule comes from."""

    def remedies(self, names: Mapping[str, str]) -> tuple[Remedy, ...]:
        """Return the remedies with names filled in; in a command they are quoted for a shell."""
        return tuple(_remedy(names, **parts) for parts in self.remedy)


def _remedy(names: Mapping[str, str], text: str = "", command: str | None = None, where: str | None = None) -> Remedy:
    words = {name: shell_quote(value) for name, value in names.items()}
    return Remedy(with_values(text, names), with_values(command, words) if command else None, where)


@dataclass(frozen=True, slots=True)
class FindingType(Reason):
    """What lumiimg knows about a finding code."""

    text: str = ""
    """Its meaning in one sentence, for the page of findings."""
    part: Part | None = None
    """The part of the path that such a finding breaks or leaves unknown; None if it is not about a single one."""
    decided_by: PartSource | None = None
    static: tuple[Severity, ...] = ()
    """Its possible severities at level static; empty if it is not found there."""
    probe: tuple[Severity, ...] = ()
    run: tuple[Severity, ...] = ()
    no: str | None = None
    """The sentence of an answer whose first problem it is; None if the sentence about TCP sockets applies."""
    answered_by: str | None = None
    """The OK finding of a probe that replaces this finding about files."""
    demoted_by: str | None = None
    """The OK finding of a probe that demotes this obstacle or open question about files to a note."""
    outweighs: str | None = None
    """For an OK finding of a probe: the text appended to findings that are `demoted_by` it."""
    survives_probe: bool = False
    """Whether, as an open question, it stays open even if cxi listens: RCCL may bypass a plugin that works."""
    needs_nic: bool = False
    """Whether, as an open question, it only means that no NIC could be used where the probe ran."""
    hangs_on: tuple[str, ...] = ("process", "loader", "NCCL_NET_PLUGIN")
    """Variables, or groups of them, that it depends on: if one of them is uncertain, a problem is an open question."""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """Texts by reason, which replace those of the code."""

    def severities(self, level: Level) -> tuple[Severity, ...]:
        """Return its possible severities at a level; empty if it is not found there."""
        return {Level.STATIC: self.static, Level.PROBE: self.probe, Level.RUN: self.run}[level]


@cache
def finding_types() -> dict[str, FindingType]:
    """Return the finding types by code."""
    import msgspec

    return msgspec.convert(package_toml(__package__, "registry.toml"), dict[str, FindingType])


def remedies_for(code: str, reason: str, **names: str) -> tuple[Remedy, ...]:
    """Return the registry's remedies for one of several reasons for a finding."""
    return finding_types()[code].reasons[reason].remedies(names)


SHOWN = 8
"""Maximum number of evidence lines in a finding."""


class FindingDetails(TypedDict, total=False):
    """Optional parts of a finding besides code, severity and summary; the registry supplies those that are missing."""

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

        `summary`: None if the registry has the sentence. `reason`: one of its code's. `names`, and `where`, are
        filled into the texts of the registry.
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
