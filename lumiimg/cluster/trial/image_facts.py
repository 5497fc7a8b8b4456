"""What probes and collectives of an image showed, for each claim about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.cluster.trial.claims import ALIKE, AS_FILES, NO_CHANGE, RUNS
from lumiimg.cluster.trial.gpu_targets import target
from lumiimg.cluster.trial.reading import NOT_KNOWN, ClaimReading, joined
from lumiimg.core.findings import Answer, Code, Family, Severity
from lumiimg.core.text import count
from lumiimg.joblog.report import FAST, TRANSPORTS, Confidence

if TYPE_CHECKING:
    from lumiimg.check.run.collective import CollectiveOutcome
    from lumiimg.cluster.nodes.report import NodesReport
    from lumiimg.cluster.trial.case import TrialCase
    from lumiimg.cluster.trial.values import Claim

_TOLERANCE = 0.1
"""By which two runs alike may differ; more where the two that were made do."""
_NO_RESULT = "the collective gave no result"
_OF_PATH = frozenset({"rccl", "rccl_version", "plugin", "libfabric", "libcxi"})
"""Fields of a FabricPath that are claimed."""
_BANDWIDTHS = frozenset({"bandwidth", "alone"})
_FAILED = "failed: "
"""Begins what a report says of a level that was taken, and broke (`cluster/nodes/check.py`)."""


def of_image(case: TrialCase, claim: Claim) -> ClaimReading:
    """Return what was measured of a claim about an image."""
    key = claim.id.partition(".")[2].partition(":")[0]
    if key == "target":
        return target(case.gpus.get(claim.step))
    report = case.reports.get(claim.step)
    if report is None:
        return ClaimReading(None, "nothing was printed")
    if key in {"without", "with"}:
        return _changed(case, claim, report)
    if key in {"network", "socket.network", "bandwidth", "alone", "gpu-code", "driver"}:
        return _of_run(report, key, claim.ranks)
    if not report.groups:
        return ClaimReading(None, "no node has answered")
    if key in {"one-node", "one-node-vni"}:
        return _listens(report)
    if key == "maps":
        return _of_some(report, _maps(report))
    if key == "alike":
        differs = dict.fromkeys(text for group in report.groups for text in group.differs)
        return _of_some(report, ClaimReading("; ".join(differs) or ALIKE))
    return _of_probe(report, key)


def _of_run(report: NodesReport, key: str, ranks: int | None) -> ClaimReading:
    ran = report.collective
    if ran is None:
        return ClaimReading(None, report.levels.get("run", "no collective was run"))
    best = _best(report)
    if key in {"network", "socket.network"}:
        if ran.verdict not in TRANSPORTS:
            return ClaimReading(None, f"its log says {ran.verdict}")
        if ran.confidence is not Confidence.PROVED:
            return ClaimReading(ran.verdict.value, "its log does not prove it", partial=True)
        return ClaimReading(ran.verdict.value, count(ran.ranks, "rank"))
    if best is None:
        return ClaimReading(None, _NO_RESULT)
    if key in _BANDWIDTHS and ranks not in {None, ran.ranks}:
        return ClaimReading(None, f"{best:.4g} GB/s with {count(ran.ranks, 'rank')}: the least is of {ranks}")
    if key in _BANDWIDTHS:
        return ClaimReading(f"{best:.4g} GB/s", number=best)
    return ClaimReading(RUNS, f"in {ran.program}")


def _best(report: NodesReport | None) -> float | None:
    rows = report.collective.measurements if report is not None and report.collective is not None else ()
    return max((row.best_gb_s for row in rows if row.best_gb_s), default=None)


def _of_probe(report: NodesReport, key: str) -> ClaimReading:
    if key == "answer":
        if all(group.answer is Answer.UNDECIDED for group in report.groups):
            read = ClaimReading(None, report.groups[0].sentence)
        else:
            answers = ((None if g.answer is Answer.UNDECIDED else g.answer.value, len(g.nodes)) for g in report.groups)
            read = joined(answers, "")
    else:
        name = key.replace("-", "_")
        if name not in _OF_PATH:
            return ClaimReading(None, NOT_KNOWN)
        found = ((getattr(group.path, name), len(group.nodes)) for group in report.groups)
        read = joined(found, "the probes did not come so far")
    return _of_some(report, read)


def _of_some(report: NodesReport, read: ClaimReading) -> ClaimReading:
    """Return a reading that is partial where some nodes gave no answer."""
    silent = sum(len(entry.nodes) for entry in report.silent)
    if not silent or read.value is None:
        return read
    return replace(read, partial=True, why=read.why or f"{count(silent, 'node')} gave no answer")


def _listens(report: NodesReport) -> ClaimReading:
    """Return whether the plugin got onto the fabric: a handshake that failed for want of a NIC shows nothing."""
    found = report.groups[0].findings
    if any(finding.id is Code.PROVIDER_CXI and finding.severity is Severity.OK for finding in found):
        return ClaimReading("yes")
    about = [finding for finding in found if finding.id.family in {Family.PLUGIN, Family.PROVIDER}]
    failed = next((finding for finding in about if finding.severity is Severity.PROBLEM), None)
    if failed is not None:
        return ClaimReading("no", failed.summary)
    unknown = next((finding for finding in about if finding.severity is Severity.UNKNOWN), None)
    return ClaimReading(None, unknown.summary if unknown is not None else "the plugin did not come so far")


def _maps(report: NodesReport) -> ClaimReading:
    """Return whether the process that a job starts had the libraries that the files predict, by /proc/self/maps."""
    words = {Code.PROGRAM_OPENS: AS_FILES, Code.PROGRAM_OTHER_FILES: "other libraries"}
    found = []
    for group in report.groups:
        told = next((words[finding.id] for finding in group.findings if finding.id in words), None)
        found.append((told, len(group.nodes)))
    return joined(found, "the process was not seen")


def _changed(case: TrialCase, claim: Claim, report: NodesReport) -> ClaimReading:
    """Compare a collective with the one that had what jobs there have; two of the same say how far two runs differ."""
    name = claim.step.partition(".")[0]
    base, same = case.reports.get(f"{name}.run"), case.reports.get(f"{name}.again")
    first, again, now = _best(base), _best(same), _best(report)
    if base is None or base.collective is None or first is None:
        return ClaimReading(None, "there is no run to compare it with")
    if (why := _not_comparable(base.collective, same, report)) is not None:
        return ClaimReading(None, why)
    if report.collective is None or now is None:
        why = report.levels["run"] if report.collective is None else _NO_RESULT
        return ClaimReading("it fails", why, same=False)
    verdict, before = report.collective.verdict, base.collective.verdict
    if verdict is not before:
        return ClaimReading(f"{verdict} instead of {before}", number=now, same=False)
    noise = max(_TOLERANCE, abs(first - again) / first * 2 if again is not None else 0.0)
    ratio = now / first
    what = NO_CHANGE if abs(ratio - 1) <= noise else "slower" if ratio < 1 else "faster"
    told = f"{what}: {now:.4g} GB/s, {ratio:.2f} of {first:.4g}"
    return ClaimReading(told, f"two runs alike differ by up to {noise:.0%}", now, same=what == NO_CHANGE)


def _not_comparable(base: CollectiveOutcome, same: NodesReport | None, report: NodesReport) -> str | None:
    """Return why a run says nothing beside the first one; `same`: the first one, made again."""
    if base.verdict not in FAST:
        return f"the run to compare it with went over {base.verdict}"
    others = [one.collective for one in (same, report) if one is not None and one.collective is not None]
    if any(one.ranks != base.ranks for one in others):
        return f"not all runs had the {base.ranks} ranks of the one to compare it with"
    if same is not None and _best(same) is None and same.levels.get("run", "").startswith(("done", _FAILED)):
        return "of two runs alike one failed"
    why = report.levels.get("run", "")
    if report.collective is None and not why.startswith(_FAILED):
        return why or "no collective was run"
    return None
