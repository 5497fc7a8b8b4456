"""What benchmarks in a job's log say of the network: wrong results, and bandwidth against what the site should give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.check.registry import Findings
from lumiimg.core.findings import Finding, Level, Remedy, Severity
from lumiimg.core.text import count, size

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site, SiteBandwidth
    from lumiimg.joblog import LogReport, Measurement

SAME_TEST = {"lumiimg-allreduce": "all_reduce_perf", "lumiimg-torch-allreduce": "all_reduce_perf"}
"""What the project brings, by the test whose bandwidth it measures."""


def bandwidth_findings(report: LogReport, site: Site | None) -> tuple[Finding, ...]:
    """Return a problem for a test with wrong results, and for one below the site's least; else what it gave.

    A test is compared only with a reference for its name, its nodes and its ranks, and only if its messages were large
    enough. Where its table does not say the nodes, they are the job's.
    """
    findings = Findings(Level.RUN)
    for measured in report.measurements:
        where = f"{measured.file}:{measured.line}"
        if measured.wrong:
            findings.add(
                "run.data-errors",
                Severity.PROBLEM,
                f"{measured.name}: {count(measured.wrong, 'wrong result')}: the collective gives wrong data",
                reason="benchmark",
                where=f"{measured.file}:{measured.wrong_line}",
            )
        nodes = measured.nodes or report.coverage.of_nodes
        if measured.ranks == 1:
            continue  # it has none
        reference = reference_of(measured, nodes, site)
        if reference is None or measured.best_gb_s is None:
            why = _not_compared(measured, nodes, site)
            findings.add("run.bandwidth", Severity.INFO, f"{measured.sentence}{why}", where=where)
            continue
        slow = measured.best_gb_s < reference.least_gb_s
        findings.add(
            "run.bandwidth",
            Severity.PROBLEM if slow else Severity.OK,
            f"{measured.sentence}; a healthy network gives {reference.gb_s:g} GB/s",
            where=where,
            remedy=tuple(map(Remedy, reference.remedy)) if slow else (),
            source=reference.source,
        )
    return tuple(findings.found)


def reference_of(measured: Measurement, nodes: int | None, site: Site | None) -> SiteBandwidth | None:
    """Return what a site should give for this test on that number of nodes; None where it has no figure."""
    if site is None or measured.largest_size is None:
        return None
    for reference in _references(measured, site):
        is_same = reference.nodes == nodes and measured.ranks in {None, reference.ranks}
        if is_same and measured.largest_size >= reference.from_bytes:
            return reference
    return None


def _references(measured: Measurement, site: Site) -> list[SiteBandwidth]:
    test = SAME_TEST.get(measured.test or "", measured.test)
    return [reference for reference in site.bandwidths if reference.test == test]


def _not_compared(measured: Measurement, nodes: int | None, site: Site | None) -> str:
    """Return what is missing to compare a test with a site's; nothing where no site is asked about."""
    if site is None or not site.bandwidths:
        return ""
    missing = ["the name of its test"] if measured.test is None else []
    missing += ["its number of nodes"] if nodes is None else []
    if missing:
        return f"; not compared with {site.name}: the log does not say {' and '.join(missing)}"
    known = _references(measured, site)
    if not known:
        return f"; not compared: {site.name} has no figure of this test"
    wanted = " or ".join(f"{count(one.nodes, 'node')} from {size(one.from_bytes)} on" for one in known)
    return f"; not compared: {site.name} has a figure for {wanted}"
