"""Read the measured value of a claim from the results of a trial's steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lumiimg.cluster.nodes.report import NodeGroup, NodesReport
from lumiimg.cluster.trial.model import (
    ALIKE,
    AS_FILES,
    LEFT,
    NO_CHANGE,
    NOT_YET,
    RUNS,
    THERE,
    Claim,
    Ending,
    Measured,
    Reads,
    StepResult,
    TrialPlan,
)
from lumiimg.core.findings import Answer, Severity
from lumiimg.core.text import count
from lumiimg.fabric.path import Part, part_of
from lumiimg.joblog import FAST, TRANSPORTS, Confidence

if TYPE_CHECKING:
    from lumiimg.check.run.collective import CollectiveOutcome
    from lumiimg.cluster.trial.node_facts import NodeFacts

T = TypeVar("T")
_NOTHING, _NO_RESULT = "nothing was printed", "the collective gave no result"
_TOLERANCE = 0.1
"""Relative difference allowed between identical runs; more if the two identical runs of the trial differ more."""
_PARTS = {"rccl": Part.RCCL, "plugin": Part.PLUGIN, "libfabric": Part.LIBFABRIC, "libcxi": Part.LIBCXI}
_ON_FABRIC = frozenset({"plugin.init", "plugin.devices", "plugin.properties", "plugin.listen", "provider.other"})
"""Findings of a plugin that was loaded but did not get onto the fabric."""
_BROKEN = frozenset({"run.failed", "run.hang", "run.data-errors"})
"""Findings of a collective that did not finish, or gave wrong data, whatever bandwidth it reached before."""
_FAILED = "failed: "
"""Prefix in a report for a level that was run and failed (`check/pipeline.py`)."""


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    """Facts that Slurm reports."""

    partitions: dict[str, str] = field(default_factory=dict)
    """Longest job of each partition in hours, or `no limit`."""
    mpi: dict[str, str] = field(default_factory=dict)
    """The available kinds of `srun --mpi=`."""


Printed = NodesReport | SlurmFacts


@dataclass(frozen=True, slots=True)
class TrialResults:
    """All results by which claims are judged."""

    plan: TrialPlan
    steps: Mapping[str, StepResult]
    """Results of the steps that were begun, by step name."""
    nodes: tuple[NodeFacts, ...] = ()
    printed: Mapping[str, Printed] = field(default_factory=dict)
    """Output by step name."""

    def of(self, step: str, kind: type[T]) -> T | None:
        """Return the output of a step, if it is of this kind."""
        found = self.printed.get(step)
        return found if isinstance(found, kind) else None

    def measured(self, claim: Claim) -> Measured:
        """Return the measured value of a claim, or why there is none."""
        result = self.steps.get(claim.step)
        if result is None or result.ending is Ending.BEGUN:
            return Measured(None, NOT_YET)
        if result.ending is not Ending.DONE:
            why = "; ".join(result.said[-1:])
            return Measured(None, f"{LEFT}{why}" if result.ending is Ending.PENDING else why)
        return _READERS[claim.reads](self, claim)


def _joined(values: Iterable[tuple[object, int]], nothing: str) -> Measured:
    """Return what nodes report: a single value, or each value with its number of nodes; `nothing` if none reports any.

    `values`: pairs of a value and a number of nodes.
    """
    numbers = Counter[str]()
    for value, nodes in values:
        numbers[f"{value or ''}"] += nodes
    silent = numbers.pop("", 0)
    if not numbers:
        return Measured(None, nothing)
    if len(numbers) == 1:
        why = f"{count(silent, 'node')} did not show it" if silent else ""
        return Measured(next(iter(numbers)), why, partial=bool(silent))
    by_value = (f"{value} on {count(nodes, 'node')}" for value, nodes in numbers.most_common())
    return Measured("; ".join(by_value), "the nodes differ", same=False)


def _of_some(read: Measured, silent: int) -> Measured:
    """Return a reading, marked as partial if some nodes gave no answer."""
    if silent <= 0 or read.value is None:
        return read
    return replace(read, partial=True, why=read.why or f"{count(silent, 'node')} gave no answer")


# -- readings of nodes and of Slurm


def _of_nodes(results: TrialResults, claim: Claim) -> Measured:
    nodes = results.nodes
    if not nodes:
        return Measured(None, "no node answered")
    no_fabric = next((node.no_fabric for node in nodes if node.no_fabric), None)
    nothing = no_fabric if no_fabric and claim.what in {"libfabric", "glibc"} else "the nodes do not show it"
    return _of_some(
        _joined(((node.shown.get(claim.what), 1) for node in nodes), nothing), results.plan.nodes - len(nodes)
    )


def _of_slurm(
    facts: Callable[[SlurmFacts], Mapping[str, str]], absent: str, results: TrialResults, claim: Claim
) -> Measured:
    known = facts(results.of(claim.step, SlurmFacts) or SlurmFacts())
    return Measured(known.get(claim.what, absent)) if known else Measured(None, "Slurm does not say")


# -- readings of probes


def _of_report(read: Callable[[NodesReport, str], Measured], results: TrialResults, claim: Claim) -> Measured:
    report = results.of(claim.step, NodesReport)
    if report is None or not report.groups:
        return Measured(None, _NOTHING if report is None else "no node answered")
    return _of_some(read(report, claim.what), sum(len(entry.nodes) for entry in report.silent))


def _of_groups(report: NodesReport, show: Callable[[NodeGroup], str | None], nothing: str) -> Measured:
    return _joined(((show(group), len(group.nodes)) for group in report.groups), nothing)


def _answer(report: NodesReport, _: str) -> Measured:
    undecided = report.groups[0].sentence
    return _of_groups(report, lambda group: None if group.answer is Answer.UNDECIDED else group.answer, undecided)


def _path(report: NodesReport, what: str) -> Measured:
    """Return what the probes' processes had loaded; the report's path may come from the files if the probes failed."""

    def show(group: NodeGroup) -> str | None:
        mapped = (library.path for library in group.libraries if part_of(library.path) is _PARTS.get(what))
        if what in _PARTS:
            return ", ".join(mapped)
        runs = any(finding.id == "rccl.runs" and finding.severity is Severity.OK for finding in group.findings)
        return group.path.rccl_version if runs else None

    return _of_groups(report, show, "the probes did not get that far")


def _maps(report: NodesReport, _: str) -> Measured:
    """Return whether a job's process had the libraries that the files predict, by its /proc/self/maps."""
    words = {"program.other-files": "other libraries", "program.opens": AS_FILES, "program.starts": AS_FILES}

    def show(group: NodeGroup) -> str | None:
        found = {finding.id for finding in group.findings}
        return next((meaning for code, meaning in words.items() if code in found), None)

    return _of_groups(report, show, "the process was not seen")


def _alike(report: NodesReport, _: str) -> Measured:
    if not any(group.libraries for group in report.groups):
        return Measured(None, report.groups[0].sentence)
    return Measured("; ".join(dict.fromkeys(text for group in report.groups for text in group.differs)) or ALIKE)


def _listens(report: NodesReport, _: str) -> Measured:
    """Return whether the plugin got onto the fabric; one that failed earlier, or for lack of a NIC, shows nothing."""
    found = report.groups[0].findings
    if any(finding.id == "provider.cxi" and finding.severity is Severity.OK for finding in found):
        return Measured("yes")
    about = [finding for finding in found if finding.family in {"plugin", "provider"}]
    failed = next((finding for finding in about if finding.severity is Severity.PROBLEM), None)
    if failed is not None and failed.id in _ON_FABRIC:
        return Measured("no", failed.summary)
    unknown = failed or next((finding for finding in about if finding.severity is Severity.UNKNOWN), None)
    return Measured(None, unknown.summary if unknown is not None else "the plugin did not get that far")


# -- readings of collectives


def _of_run(
    read: Callable[[NodesReport, CollectiveOutcome, Claim], Measured], results: TrialResults, claim: Claim
) -> Measured:
    report = results.of(claim.step, NodesReport)
    if report is None or report.collective is None:
        return Measured(None, _NOTHING if report is None else report.levels.get("run", _NO_RESULT))
    why = _without_a_node(report, claim.step)
    return read(report, report.collective, claim) if why is None else Measured(None, why)


def _without_a_node(report: NodesReport | None, step: str) -> str | None:
    """Return a reason if some nodes took no part in a collective, which then says nothing about the step's nodes."""
    if report is None or report.collective is None:
        return None
    asked = sum(map(len, (*(group.nodes for group in report.groups), *(entry.nodes for entry in report.silent))))
    took_part = report.collective.nodes
    return f"{took_part} of {count(asked, 'node')} took part in {step}" if took_part < asked else None


def _network(_: NodesReport, ran: CollectiveOutcome, __: Claim) -> Measured:
    if ran.verdict not in TRANSPORTS:
        return Measured(None, f"its log says {ran.verdict}")
    if ran.confidence is not Confidence.PROVED:
        return Measured(ran.verdict, "its log does not prove it", partial=True)
    return Measured(ran.verdict, count(ran.ranks, "rank"))


def _broken(report: NodesReport) -> str | None:
    """Return why a collective's measurements are not valid; None if it finished."""
    found = (finding for group in report.groups for finding in group.findings)
    return next((finding.summary for finding in found if finding.id in _BROKEN), None)


def _best(report: NodesReport | None) -> float | None:
    """Return the bandwidth of a collective in GB/s; None if it gave none or failed."""
    if report is None or report.collective is None or _broken(report) is not None:
        return None
    return max((row.best_gb_s for row in report.collective.measurements if row.best_gb_s), default=None)


def _speed(report: NodesReport, ran: CollectiveOutcome, claim: Claim) -> Measured:
    best = _best(report)
    if best is None:
        return Measured(None, _broken(report) or _NO_RESULT)
    if claim.ranks not in {None, ran.ranks}:
        return Measured(None, f"{best:.4g} GB/s with {count(ran.ranks, 'rank')}: the least value is for {claim.ranks}")
    return Measured(f"{best:.4g} GB/s", number=best)


def _ran(report: NodesReport, ran: CollectiveOutcome, _: Claim) -> Measured:
    return Measured(RUNS, f"in {ran.program}") if _best(report) else Measured(None, _broken(report) or _NO_RESULT)


def _changed(results: TrialResults, claim: Claim) -> Measured:
    """Compare a collective with the one that had a job's usual variables, whose repeat shows how much runs differ."""
    of = claim.step.partition(".")[0]
    report, first, again = (results.of(step, NodesReport) for step in (claim.step, f"{of}.run", f"{of}.again"))
    if report is None:
        return Measured(None, _NOTHING)
    base, ran = first.collective if first is not None else None, report.collective
    if base is None or (before := _best(first)) is None:
        return Measured(None, "there is no run to compare with")
    if (why := _without_a_node(first, f"{of}.run") or _not_comparable(base, again, report)) is not None:
        return Measured(None, why)
    if ran is None or (now := _best(report)) is None:
        return Measured(
            "it fails", _broken(report) or (report.levels["run"] if ran is None else _NO_RESULT), same=False
        )
    if ran.verdict is not base.verdict:
        return Measured(f"{ran.verdict} instead of {base.verdict}", number=now, same=False)
    twice, ratio = _best(again), now / before
    noise = max(_TOLERANCE, abs(before - twice) / before * 2 if twice is not None else 0.0)
    what = NO_CHANGE if abs(ratio - 1) <= noise else "slower" if ratio < 1 else "faster"
    change = f"{what}: {now:.4g} GB/s, {ratio:.2f} of {before:.4g}"
    return Measured(change, f"two identical runs differ by up to {noise:.0%}", now, same=what == NO_CHANGE)


def _not_comparable(base: CollectiveOutcome, again: NodesReport | None, report: NodesReport) -> str | None:
    """Return why a run cannot be compared with the first one; `again`: the repeat of the first one."""
    if base.verdict not in FAST:
        return f"the reference run went over {base.verdict}"
    others = [one.collective for one in (again, report) if one is not None and one.collective is not None]
    if any(one.ranks != base.ranks for one in others):
        return f"not all runs had the {base.ranks} ranks of the reference run"
    if again and not _best(again) and again.levels.get("run", "").startswith(("done", _FAILED)):
        return "one of two identical runs failed"
    why = report.levels.get("run", "")
    return None if report.collective is not None or why.startswith(_FAILED) else why or "no collective was run"


_READERS: Mapping[Reads, Callable[[TrialResults, Claim], Measured]] = {
    "node": _of_nodes,
    "partition": partial(_of_slurm, lambda slurm: slurm.partitions, "no such partition"),
    "mpi": partial(_of_slurm, lambda slurm: slurm.mpi, f"not {THERE}"),
    "answer": partial(_of_report, _answer),
    "path": partial(_of_report, _path),
    "maps": partial(_of_report, _maps),
    "alike": partial(_of_report, _alike),
    "listens": partial(_of_report, _listens),
    "network": partial(_of_run, _network),
    "speed": partial(_of_run, _speed),
    "ran": partial(_of_run, _ran),
    "changed": _changed,
}


def notes(results: TrialResults) -> list[str]:
    """Return notes for the reader: network variables that were not set by the trial."""
    names = sorted({name for node in results.nodes for name in node.preset_variables})
    return [f"the job already had {', '.join(names)} set: the network results include their effect"] if names else []
