"""Parts that several answers share: findings as items, the fabric path step by step, bandwidth by message size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.run.log_answer import reference_of
from lumiimg.core.findings import Finding, Level, Severity
from lumiimg.core.text import size
from lumiimg.fabric.path import path_sentence
from lumiimg.report.document import Curve, Item, PathSteps, Row, Section, Shown, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumiimg.catalog.sites import Site
    from lumiimg.fabric.path import Step
    from lumiimg.joblog import Measurement

PATH = "The path to the fast network"
_ALWAYS = frozenset({"image", "gpu", "program"})
"""Families of findings that are always shown: they do not affect the network, but they affect jobs."""


def finding_items(findings: Iterable[Finding], of: str = "", *, is_green: bool = False) -> Iterator[Item]:
    """Yield an item for each finding; one that affects the answer is also a case for CI, whose name ends with `of`.

    If the answer `is_green`, CI does not count an open question: a higher level has answered what matters.
    """
    for finding in findings:
        is_weighty = finding.level is Level.RUN or finding.family in _ALWAYS
        bears = finding.severity is not Severity.INFO
        yield Item(
            finding.severity,
            finding.summary,
            tag=f"{finding.id}, {finding.level.value}",
            evidence=finding.evidence,
            via=finding.chain,
            why=(finding.cause,) if finding.cause else (),
            remedies=finding.remedy,
            source=finding.source,
            verbose=not bears and not is_weighty,
            case=f"{finding.id} ({finding.level.value}){of}" if bears else None,
            is_answered=is_green and finding.severity is Severity.UNKNOWN,
        )


def path_steps(steps: Sequence[Step], of: str = "") -> PathSteps:
    """Return a fabric path as a block."""
    return PathSteps(tuple(steps), path_sentence(steps), of)


def bandwidth_section(measured: Sequence[Measurement], site: Site | None, nodes: int | None) -> Section:
    """Return the curve and the table of each measurement of several sizes; `nodes` is the node count of the job."""
    blocks = (block for one in measured if len(one.points) > 1 for block in _blocks(one, site, nodes))
    return Section("Bandwidth by message size", blocks, Shown.PAGE)


def _blocks(measured: Measurement, site: Site | None, nodes: int | None) -> Iterator[Curve | Table]:
    reference = reference_of(measured, measured.nodes or nodes, site)
    named = [(measured.name, tuple((float(message), speed) for message, speed in measured.points))]
    if reference is not None and site is not None:
        known_from, largest = float(reference.from_bytes), float(max(measured.points[-1][0], reference.from_bytes))
        level = ((known_from, reference.gb_s), (largest, reference.gb_s))
        named.append((f"a healthy network of {site.name}", level))
    yield Curve(measured.name, "message, bytes", "bus bandwidth, GB/s", tuple(named))
    rows = tuple(Row((size(message), f"{speed:.4g}")) for message, speed in measured.points)
    yield Table(("message", "GB/s"), rows, f"Best bus bandwidth of {measured.name}, by size")
