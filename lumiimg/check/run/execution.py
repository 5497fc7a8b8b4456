"""Evidence of the third kind: a real collective on GPUs, and what its log and its table say.

On this node it is started here. One node sends nothing over the network: this shows what RCCL selected, but not
whether it carries traffic. Across nodes a launcher starts the same command (`collective.py`), and `judge` reads its
results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lumiimg.check.probe.container import ALL_REDUCE, EVIDENCE_LINES, Container, ProbeRun, cause_details, read_run
from lumiimg.check.registry import FindingDetails, Findings
from lumiimg.check.run.collective import (
    LOGS,
    MOUNTED,
    RCCL_LOGS,
    TIMEOUT_S,
    Collective,
    CollectiveOutcome,
    CollectiveProgram,
    choose,
    missing_here,
    prepare,
)
from lumiimg.check.run.log_answer import bandwidth_findings
from lumiimg.core.errors import MissingHereError
from lumiimg.core.findings import Level, Severity
from lumiimg.core.text import count
from lumiimg.engine.process import Completed, run
from lumiimg.joblog import (
    FAST,
    TRANSPORTS,
    Cause,
    Effect,
    ExitRole,
    How,
    LogReport,
    Verdict,
    read_log,
    vocabulary,
)
from lumiimg.resolve.stack import stack_of

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.process import StaticResult

Launcher = Callable[[Sequence[str | Path], Mapping[str, str], BinaryIO], Completed]
"""Starts a collective once on each of its nodes; takes its command, the engine's environment, and the output file."""
NO_GPU = """no GPU here (/dev/kfd), so RCCL was not tested on GPUs: run the check in a job with GPUs (`--nodes 2`), or \
set NCCL_DEBUG=INFO in your job on two nodes and give its output to `lumiimg log`"""
OUTPUT = "output.log"
_GPU = Path("/dev/kfd")
LIMIT_S = TIMEOUT_S + 60.0
"""Time limit of a run: a program that does not end on its own gets a minute beyond its own limit."""
_TIMED_OUT = 16
"""Exit code of this project's all-reduce if a rank waited too long; srun may return that of another rank."""
_PEER_GONE = "6"
"""RCCL's error on a rank whose peer died, or whose network failed (nccl.h, ncclRemoteError)."""
_SAY_NOT_WHY = frozenset({ExitRole.WAITED, ExitRole.EXIT})
"""Roles of endings that do not say why: a rank waited for another one, or ended."""
_RANK_LINE = re.compile(r"^#\s+Rank\s+\d+ ", re.MULTILINE)
"""Line in the header of a table, in which a benchmark lists its ranks."""
_NO_VNI = frozenset({"cxi-no-service", "cxi-no-default-vni", "cxi-slingshot-environment"})
"""Causes of the log reader: libfabric got no service and VNI on the NIC (RC -38)."""
_NEEDS_NO_NIC = frozenset({Effect.MISSING, Effect.LOAD_ERROR, Effect.NETWORK_ABSENT})
"""Effects that do not depend on a NIC."""
_NOT_HERE = frozenset({"nothing-crosses"})
"""Causes that the log reader finds for one node: here the question is whether a job on two would be fast."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a collective."""

    outcome: CollectiveOutcome
    findings: Findings


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where a collective runs, and what the probes have seen there."""

    launch: Launcher
    nodes: int
    gpus: int
    """GPUs per node."""
    version: str | None
    """Version of the RCCL that is checked."""
    inconclusive: str | None
    """Why a plugin that does not reach the fabric there proves nothing; None if it does."""


def has_gpu() -> bool:
    """Return whether this node has a GPU, by its devices: asking HIP needs a container."""
    return _GPU.exists()


def start_here(words: Sequence[str | Path], environment: Mapping[str, str], log: BinaryIO) -> Completed:
    """Start a collective on this node."""
    return run(words, env=environment, timeout_s=LIMIT_S, log=log)


def run_collective(
    container: Container,
    context: ImageInContext,
    static: StaticResult,
    folder: Path,
    ranks: Ranks,
    without: str | None = None,
) -> RunResult:
    """Run a collective on the GPUs of this node, or of others, with what a job on the site would set.

    `container` has this project's all-reduce. `folder` is visible on all nodes. `without`: a variable that it gets
    neither from the site nor from the image.
    """
    engine, site = container.engine, context.site
    prepare(folder)
    collective = choose(context.image, static, container.programs, gpus=ranks.gpus, nodes=ranks.nodes)
    collective = replace(collective, without=without, version=ranks.version, inconclusive=ranks.inconclusive)
    wanted = missing_here(engine, stack_of(context.contents), site, container.environment, nodes=ranks.nodes)
    variables = [(variable.name, variable.value) for variable in wanted if variable.name != without]
    own = {**container.environment, **engine.setting(variables)}
    words = container.words(collective.argv, writable=((folder, MOUNTED),))
    with (folder / LOGS / OUTPUT).open("wb") as log:
        ended = ranks.launch(words, own, log)
    result = judge(folder / LOGS, ended, collective, site)
    if site is not None and variables:
        what = f"it ran with the variables that a job on {site.name} sets: {', '.join(map('='.join, variables))}"
        result.findings.add("run.environment", Severity.INFO, what, source=site.source)
    return result


def count_gpus(container: Container, rccl: str) -> int:
    """Return how many GPUs HIP finds in a container here. Raises MissingHereError if none, or no container starts."""
    asked = container.run(ALL_REDUCE, [container.programs.command(ALL_REDUCE), "--devices", rccl])
    if gpus := asked.number("gpus", "count"):
        return gpus
    failed = asked.first("hipGetDeviceCount") or asked.first("dlopen")
    why = failed.get("error") or (asked.tail or ("it printed nothing",))[-1]
    raise MissingHereError(
        f"HIP finds no GPU in the container: {why}",
        where=str(container.image),
        hint="request GPUs from Slurm (--gpus-per-node), and give the container /dev/kfd and /dev/dri",
    )


def judge(logs: Path, ended: Completed, collective: Collective, site: Site | None) -> RunResult:
    """Return the result of a collective, from the folder with the logs of all nodes and how its launcher ended."""
    report = read_log([str(logs)], warn=lambda _: None)
    found, program = Findings(Level.RUN), read_run(collective.program.value, ended)
    ranks, measured = collective.ranks, report.measurements
    outcome = CollectiveOutcome(
        collective.program, collective.nodes, ranks, report.verdict, report.confidence, measured
    )
    causes = tuple(cause for cause in report.causes if cause.id not in _NOT_HERE)
    run = _Run(collective, ended, program, report, causes, found)
    if not run.had_another_rccl():
        found.found += bandwidth_findings(report, site)
        began = {log.name.split(".")[1] for log in logs.glob(RCCL_LOGS)}  # by the host in the name
        silent = 0 if _RANK_LINE.search(ended.output) else max(0, collective.nodes - len(began))
        run.judge_end(silent)
        if not (run.has_failed and report.verdict is Verdict.NONE):  # it failed before it selected a network
            signatures = vocabulary().signatures
            needs_no_nic = any(c.id in signatures and signatures[c.id].effect in _NEEDS_NO_NIC for c in causes)
            run.judge_network(None if needs_no_nic else collective.inconclusive)
    return RunResult(outcome, found)


@dataclass(frozen=True, slots=True)
class _Run:
    """A collective that has ended, and the findings about it."""

    collective: Collective
    ended: Completed
    program: ProbeRun
    report: LogReport
    causes: tuple[Cause, ...]
    found: Findings

    @property
    def has_failed(self) -> bool:
        """Whether it failed, even if the launcher does not say so."""
        return not self.ended.ok or self.report.ended.is_failure

    def had_another_rccl(self) -> bool:
        """Judge whether torch had another RCCL than the one that is checked; only its ranks say what they imported."""
        mapped = {event.get("path", ""): event.get("torch", "") for event in self.program.all("mapped")}
        wanted, is_torch = self.collective.rccl, self.collective.program is CollectiveProgram.TORCH
        other = next((path for path in sorted(mapped) if path != wanted), None)
        if other is None and (mapped or not is_torch or self.program.exit_code != 0):
            return False
        unseen = "an unknown RCCL (the start of its output was dropped)"
        ran = other or (unseen if self.ended.truncated else "an RCCL that is not a file of its own")
        lines = (f"imported: {mapped[other]}",) if other else ()
        self.found.add("run.other-rccl", Severity.UNKNOWN, names={"ran": ran, "wanted": wanted}, evidence=lines)
        return True

    def judge_end(self, silent: int) -> None:
        """Judge how the program ended, whatever the network was; `silent`: number of nodes without a sign of a rank."""
        found, program, nodes = self.found, self.program, self.collective.nodes
        wrong = program.all("wrong")
        causes = tuple(cause for cause in self.causes if cause.id == self.report.ended.cause)
        details = cause_details(causes, evidence=program.tail)
        is_known = any(finding.id == "run.data-errors" for finding in found.found)
        severity = Severity.UNKNOWN if self.collective.inconclusive or nodes == 1 else Severity.PROBLEM
        if wrong and not is_known:
            what = f"a rank got wrong sums from {count(len(wrong), 'all-reduce')}"
            lines = tuple(f"rank {w.get('rank')}, {w.get('bytes')} bytes: {w.get('elements')} wrong" for w in wrong)
            found.add("run.data-errors", Severity.PROBLEM, what, evidence=lines[:EVIDENCE_LINES])
        elif error := self._first_error():
            if error == self.report.ended.sentence:
                details["cause"] = None  # the summary says it
            found.add("run.failed", self._of_network(severity), f"the collective failed: {error}", **details)
        elif program.is_hung or program.exit_code == _TIMED_OUT:
            during = program.first("timeout").get("during", "its run")
            what = f"the collective did not return from {during} within {TIMEOUT_S} s"
            if silent:  # it may be these nodes' own fault
                severity = Severity.UNKNOWN
                who = f"no rank appeared on {silent} of {count(nodes, 'node')}"
                what += f", and {who}: whether the step and its container started there is not known"
            found.add("run.hang", severity, what, **details)
        elif self.has_failed and not is_known:
            how = self.report.ended.sentence if self.report.ended.is_failure else f"{program.name} {program.ending}"
            what = f"the collective failed: {how}"
            found.add("run.failed", self._of_network(severity), what, **details)

    def _of_network(self, severity: Severity) -> Severity:
        """Return the severity of a failure: it says nothing about the image unless the network was at work."""
        return severity if self.report.failed_running else Severity.UNKNOWN

    def _first_error(self) -> str | None:
        """Return what failed first on any rank, by its log, else by its program; a lost peer is only a consequence."""
        ended = self.report.ended
        known = vocabulary().signatures.get(ended.cause or "")
        if ended.how is How.DIED and not (known and known.ends in _SAY_NOT_WHY):
            return ended.sentence
        errors = [event for event in self.program.events if _is_error(event)]
        first = min(errors, key=lambda event: event.get("rc") == _PEER_GONE, default=None)
        if first is None:
            return None
        if first["topic"] == "signal":
            return f"a rank died of signal {first.get('number')} during {first.get('during')}"
        who = f" of rank {first['rank']}" if "rank" in first else ""
        return f"{first['topic']}{who}: {first.get('error')}"

    def judge_network(self, inconclusive: str | None) -> None:
        """Judge which network carried the traffic, or would have on several nodes."""
        report, collective, found = self.report, self.collective, self.found
        verdict, is_one = report.verdict, collective.nodes == 1
        by = f"{self.program.name}, {count(collective.ranks, 'rank')} on {count(collective.nodes, 'node')}"
        network, took = _name(report), _network_choice(report, is_one=is_one)
        proof = tuple(evidence.text for evidence in report.proof)
        causes = tuple(c for c in self.causes if c.id != report.ended.cause or not report.ended.leads)
        together = max((communicator.ranks for communicator in report.communicators), default=collective.ranks)
        other = report.library if report.library and report.library.version != collective.version else None
        severity, reason, details = Severity.UNKNOWN, None, FindingDetails(evidence=proof)
        if collective.version and other:
            what = f"it ran with {other.name} {other.version}, not with the RCCL that is checked ({collective.version})"
        elif not is_one and (report.nothing_crossed or together < collective.ranks):
            what = f"not all ranks joined one group (the largest communicator has {together}), so this proves nothing"
        elif is_one and verdict in {Verdict.NONE, Verdict.INTRA_NODE_ONLY}:
            reason, what = "one-node", "the log does not say which network RCCL selected"
        elif is_one and verdict in FAST and self.has_failed:
            what = f"RCCL selected {network}, which is not proved to work: the collective did not finish"
        elif is_one and verdict in FAST:
            what = f"{by}: RCCL selected {network}; nothing crosses it on one node, so no traffic is proved"
            found.add("run.selected", Severity.OK, what, evidence=proof)
            return
        elif verdict in FAST and (missing := self._missing()):
            what = f"{network} was selected; it is not proved that it carried all traffic: {missing}"
        elif verdict in FAST and report.network_severity is Severity.OK:
            found.add("run.network", Severity.OK, f"{by}: {network} carried the traffic", evidence=proof)
            return
        elif report.network_severity is Severity.UNKNOWN:
            what = f"the log does not prove which network carried the traffic ({verdict.value})"
            details = cause_details(causes, evidence=proof)
        elif is_one and any(cause.id in _NO_VNI for cause in causes):
            why = "no VNI on the NIC in this step; that proves nothing about the image"
            reason, what = "no-vni", f"{took}: {why}"
            details = {**cause_details(causes, evidence=proof), "remedy": ()}
        elif inconclusive:
            reason, what = "one-node", f"{took}; that proves nothing here: {inconclusive}"
        else:
            carried = not is_one and report.connected and verdict in TRANSPORTS
            what = f"{network} carried the traffic" if carried else took
            what += "; two nodes would do the same" if is_one else ""
            severity, details = Severity.PROBLEM, cause_details(causes, evidence=proof)
        found.add("run.network", severity, f"{by}: {what}", reason=reason, **details)

    def _missing(self) -> str | None:
        """Return what a collective over several nodes lacks for a proof; None if it lacks nothing."""
        ranks, logged = self.collective.ranks, self.report.coverage.ranks
        if self.has_failed:
            return "it did not finish"
        if logged < ranks:
            return f"{logged} of {count(ranks, 'rank')} left a log"
        if not any(measured.wrong == 0 for measured in self.report.measurements):
            return "no table shows that the sums were right"
        return None


def _is_error(event: Mapping[str, str]) -> bool:
    """Return whether a rank reports that a call failed, or that it died."""
    return event["topic"] == "signal" or event.get("rc", "0") != "0" or event.get("ok") == "0"


def _network_choice(report: LogReport, *, is_one: bool) -> str:
    """Return RCCL's choice, for a sentence: a network that was selected has not carried anything yet."""
    if report.verdict in TRANSPORTS:
        return f"RCCL selected {_name(report)}{'' if is_one or report.connected else ', and connected nothing over it'}"
    return "the ranks took different networks" if report.verdict is Verdict.MIXED else "RCCL selected no network"


def _name(report: LogReport) -> str:
    """Return the name of the network, for a sentence."""
    names = {rank.network for rank in report.ranks if rank.network}
    network = names.pop() if len(names) == 1 else report.verdict.value
    return f"{network} on the provider {report.provider}" if report.provider and report.verdict in FAST else network
