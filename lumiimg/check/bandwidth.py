"""What benchmarks in a job's log say of the network: wrong results, and bandwidth against what the site should give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Finding, Findings, Level, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.catalog.sites import Site, SiteBandwidth
    from lumiimg.nccl.report import Measurement

_WRONG_SOURCE = "nccl-tests src/common.cu (#wrong, out of bounds values)"


def bandwidth_findings(measurements: Sequence[Measurement], site: Site | None) -> tuple[Finding, ...]:
    """Return a problem for a test with wrong results, and for one below the site's least; else what it gave.

    A test is compared only with a reference for its name and its number of nodes.
    """
    findings = Findings(Level.RUN)
    for measured in measurements:
        where = f"{measured.file}:{measured.line}"
        if measured.wrong:
            findings.add(
                "run.data-errors",
                Severity.PROBLEM,
                f"{measured.name}: {measured.wrong} wrong results: the collective gives wrong data",
                where=f"{measured.file}:{measured.wrong_line or measured.line}",
                remedy=("Rule the network out: NCCL_NET=Socket; rule GPUDirect RDMA out: NCCL_NET_GDR_LEVEL=0",),
                source=_WRONG_SOURCE,
            )
        reference = _reference(measured, site)
        if reference is None or measured.best_gb_s is None:
            findings.add("run.bandwidth", Severity.INFO, _sentence(measured), where=where)
            continue
        slow = measured.best_gb_s < reference.least_gb_s
        findings.add(
            "run.bandwidth",
            Severity.PROBLEM if slow else Severity.OK,
            f"{_sentence(measured)}; a network that is well gives {reference.gb_s:g} GB/s",
            where=where,
            remedy=reference.remedy if slow else (),
            source=reference.source,
        )
    return tuple(findings.found)


def _reference(measured: Measurement, site: Site | None) -> SiteBandwidth | None:
    of_site = site.bandwidths if site else ()
    return next((b for b in of_site if b.test == measured.test and measured.nodes in {None, b.nodes}), None)


def _sentence(measured: Measurement) -> str:
    nodes = "" if measured.nodes is None else f" on {measured.nodes} node{'' if measured.nodes == 1 else 's'}"
    if measured.best_gb_s is None:
        latency = "" if measured.latency_us is None else f" {measured.latency_us:g} us latency"
        return f"{measured.name}{nodes}:{latency or ' no result'}"
    at = "" if measured.best_size is None else f" at {_bytes(measured.best_size)}"
    average = "" if measured.average_gb_s is None else f", {measured.average_gb_s:.4g} on average"
    return f"{measured.name}{nodes}: {measured.best_gb_s:.4g} GB/s{at}{average}"


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size} B"
