"""Evidence of the third kind: a real collective on GPUs, and what its log and its table say.

On this node it is started here. One node sends nothing over the network: what RCCL selected is then seen, and whether
it carries traffic is not. Across nodes a launcher starts the same command (`collective.py`), and `judge` reads its
results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lumiimg.check.probe.container import (
    EVIDENCE_LINES,
    Container,
    ProbeRun,
    explained,
    read_run,
)
from lumiimg.check.probe.programs import ALL_REDUCE
from lumiimg.check.registry import Findings
from lumiimg.check.run.bandwidth import bandwidth_findings
from lumiimg.check.run.collective import (
    LOGS,
    RCCL_LOGS,
    TIMEOUT_S,
    Collective,
    CollectiveOutcome,
    CollectiveProgram,
    choose,
    missing_here,
    note_site_variables,
    prepare,
    with_variables,
)
from lumiimg.engine.process import Completed, run
from lumiimg.errors import ExitCode, MissingHereError
from lumiimg.findings import Code, Level, Severity
from lumiimg.nccl.job_files import read_logs
from lumiimg.nccl.report import FAST, Cause, LogReport, Verdict
from lumiimg.nccl.sources import log_files
from lumiimg.nccl.vocabulary import Effect, vocabulary
from lumiimg.wording import count

if TYPE_CHECKING:
    from lumiimg.catalog.sites import Site
    from lumiimg.check.context import ImageInContext
    from lumiimg.check.static.result import StaticResult

Launcher = Callable[[Collective, Sequence[str | Path], Mapping[str, str], BinaryIO], Completed]
"""Starts a collective once on each of its nodes: its command, the engine's environment, where its output goes."""
NO_GPU = """no GPU here (/dev/kfd), so RCCL was not seen at work: run the check in a job with GPUs (`--nodes 2`), or \
set NCCL_DEBUG=INFO in your job on two nodes and give its output to `lumiimg log`"""
OUTPUT = "output.log"
_GPU = Path("/dev/kfd")
LIMIT_S = TIMEOUT_S + 60.0
"""Of a run: a program that does not end by itself gets a minute beyond its own limit."""
_TIMED_OUT = 16
"""Exit code of the all-reduce of this project where a rank waited too long; srun may give that of another one."""
_RANK_LINE = re.compile(r"^#\s+Rank\s+\d+ ", re.MULTILINE)
"""Of a table's head, in which a benchmark lists its ranks."""
_NO_VNI = frozenset({"cxi-no-service", "cxi-no-default-vni", "cxi-slingshot-environment"})
"""Causes of the log reader: libfabric got no service and VNI on the NIC (RC -38)."""
_NEEDS_NO_NIC = frozenset({Effect.MISSING, Effect.LOAD_ERROR, Effect.NETWORK_ABSENT})
"""What goes wrong on any machine, with a NIC or without."""
_NOT_HERE = frozenset({"nothing-crosses"})
"""What the log reader says of a job on one node: here it is the question whether a job on two would be fast."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a collective came to."""

    collective: Collective
    report: LogReport
    findings: Findings

    @property
    def outcome(self) -> CollectiveOutcome:
        """The result for a report, without the log that shows it."""
        return CollectiveOutcome(
            program=self.collective.program,
            nodes=self.collective.nodes,
            ranks=self.collective.ranks,
            verdict=self.report.verdict,
            confidence=self.report.confidence,
            measurements=self.report.measurements,
        )


def refuse_without_gpu() -> None:
    """Raise MissingHereError where this node has no GPU by its devices: to ask HIP takes a container."""
    if not _GPU.exists():
        raise MissingHereError(NO_GPU)


def start_here(_: Collective, words: Sequence[str | Path], environment: Mapping[str, str], log: BinaryIO) -> Completed:
    """Start a collective on this node."""
    return run(words, env=environment, timeout_s=LIMIT_S, log=log)


def run_collective(
    container: Container,
    context: ImageInContext,
    static: StaticResult,
    folder: Path,
    launch: Launcher,
    *,
    gpus: int,
    nodes: int = 1,
    version: str | None,
    inconclusive: str | None,
    without: str | None = None,
) -> RunResult:
    """Run a collective on the GPUs of this node, or of others, with what a job on the site would set.

    `container` has the all-reduce of this project. `folder` is seen by all nodes. `version`: of the RCCL that is looked
    at. `inconclusive`: why a plugin that does not get onto the fabric there proves nothing. `without`: a variable that
    it has neither of the site nor of the image.
    """
    engine, site = container.engine, context.site
    prepare(folder)
    collective = choose(context.image, static, container.environment, container.programs, gpus=gpus, nodes=nodes)
    collective = replace(collective, without=without)
    wanted = missing_here(engine, context.contents.stack, site, container.environment, nodes=nodes)
    variables = tuple(variable for variable in wanted if variable.name != without)
    own = with_variables(engine, container.environment, variables)
    with (folder / LOGS / OUTPUT).open("wb") as log:
        ended = launch(collective, collective.command(engine, container.image, folder), own, log)
    result = judge(folder / LOGS, ended, collective, version, site=site, inconclusive=inconclusive)
    note_site_variables(result.findings, site, variables)
    return result


def count_gpus(container: Container, rccl: str) -> int:
    """Ask HIP in a container on this node. Raises MissingHereError if it finds none, or no container starts."""
    asked = container.run(ALL_REDUCE, [container.programs.command(ALL_REDUCE), "--devices", rccl])
    found = asked.first("gpus").get("count", "0")
    if found.isdigit() and int(found) > 0:
        return int(found)
    failed = asked.first("hipGetDeviceCount") or asked.first("dlopen")
    why = failed.get("error") or (asked.tail or ("it said nothing",))[-1]
    raise MissingHereError(
        f"HIP finds no GPU in the container: {why}",
        where=str(container.image),
        hint="ask Slurm for GPUs (--gpus-per-node), and let the container see /dev/kfd and /dev/dri",
    )


def judge(
    logs: Path,
    ended: Completed,
    collective: Collective,
    version: str | None,
    *,
    site: Site | None,
    inconclusive: str | None,
) -> RunResult:
    """Return what a collective came to, from the folder with the logs of all nodes and how its launcher ended.

    `version`: of the RCCL that is looked at. `inconclusive`: why a plugin that does not get onto the fabric here proves
    nothing.
    """
    report = read_logs(log_files([str(logs)]), lambda _: None).report()
    # rccl-tests have printed their name only since 2025
    measured = tuple(replace(m, test=m.test or "all_reduce_perf") for m in report.measurements)
    report = replace(report, measurements=measured)
    result = RunResult(collective, report, Findings(Level.RUN))
    program = read_run(collective.program.value, ended)
    if _ran_another(program, result, cut=ended.truncated):
        return result
    result.findings.found += bandwidth_findings(report, site)
    causes = tuple(cause for cause in report.causes if cause.id not in _NOT_HERE)
    began = {log.name.split(".")[1] for log in logs.glob(RCCL_LOGS)}  # by the host in the name
    silent = 0 if _RANK_LINE.search(ended.output) else max(0, collective.nodes - len(began))
    _judge_end(program, result, causes, silent=silent, inconclusive=inconclusive)
    if not (ended.exit_code != 0 and report.verdict is Verdict.NONE):  # it failed before it came to a network
        signatures = vocabulary().signatures
        needs_no_nic = any(c.id in signatures and signatures[c.id].effect in _NEEDS_NO_NIC for c in causes)
        _judge_network(result, causes, version, ended, inconclusive=None if needs_no_nic else inconclusive)
    return result


def _ran_another(program: ProbeRun, result: RunResult, *, cut: bool) -> bool:
    """Judge whether torch had the RCCL that is looked at; which Python it imports torch from, only its ranks tell.

    `cut`: whether the output is only the end of what was printed.
    """
    mapped = {event.get("path", ""): event.get("torch", "") for event in program.all("mapped")}
    wanted = result.collective.rccl
    other = next((path for path in sorted(mapped) if path != wanted), None)
    if other is None and (mapped or result.collective.program is not CollectiveProgram.TORCH or program.exit_code != 0):
        return False
    unseen = "an unknown RCCL (the start of its output is not kept)"
    ran = other or (unseen if cut else "an RCCL that is not a file of its own")
    what = f"the collective ran with {ran}, and the RCCL checked is {wanted}: the result is not about that one"
    lines = (f"imported: {mapped[other]}",) if other else ()
    result.findings.add(Code.RUN_OTHER_RCCL, Severity.UNKNOWN, what, evidence=lines)
    return True


def _judge_end(
    program: ProbeRun, result: RunResult, causes: tuple[Cause, ...], *, silent: int, inconclusive: str | None
) -> None:
    """Judge how the program ended, whatever the network was; `silent`: nodes of which no rank showed itself."""
    wrong = program.all("wrong")
    told = any(finding.id is Code.RUN_DATA_ERRORS for finding in result.findings.found)
    nodes = result.collective.nodes
    severity = Severity.UNKNOWN if inconclusive or nodes == 1 else Severity.PROBLEM
    if wrong and not told:
        what = f"{count(len(wrong), 'all-reduce')} gave wrong sums to a rank"
        lines = tuple(f"rank {w.get('rank')}, {w.get('bytes')} bytes: {w.get('elements')} wrong" for w in wrong)
        result.findings.add(Code.RUN_DATA_ERRORS, Severity.PROBLEM, what, evidence=lines[:EVIDENCE_LINES])
    elif program.is_hung or program.exit_code == _TIMED_OUT:
        during = program.first("timeout").get("during", "its run")
        what = f"the collective did not return from {during} within {TIMEOUT_S} s"
        if silent:  # it may be these nodes' own fault
            severity = Severity.UNKNOWN
            who = f"no rank of {silent} of {count(nodes, 'node')} appeared"
            what += f", and {who}: it is not known whether the step and its container started there"
        result.findings.add(Code.RUN_HANG, severity, what, **explained(causes, evidence=program.tail))
    elif program.exit_code != 0 and not told:
        what = f"the collective failed: {result.collective.program.value} {program.ending}"
        severity = severity if result.report.failed_running else Severity.UNKNOWN
        result.findings.add(Code.RUN_FAILED, severity, what, **explained(causes, evidence=program.tail))


def _judge_network(
    result: RunResult, causes: tuple[Cause, ...], version: str | None, ended: Completed, *, inconclusive: str | None
) -> None:
    """Judge which network carried the traffic, or would have on several nodes."""
    report, collective, found = result.report, result.collective, result.findings
    by = f"{collective.program.value}, {count(collective.ranks, 'rank')} on {count(collective.nodes, 'node')}"
    network = _name(report)
    proof = tuple(evidence.text for evidence in report.proof)
    if version and report.library and report.library.version != version:
        what = f"{by}: it ran with {report.library.name} {report.library.version}, and the RCCL checked is {version}"
        found.add(Code.RUN_NETWORK, Severity.UNKNOWN, what, evidence=proof)
        return
    together = max((communicator.ranks for communicator in report.communicators), default=collective.ranks)
    if collective.nodes > 1 and (report.nothing_crossed or together < collective.ranks):
        what = f"{by}: the ranks did not come together (the largest communicator has {together}), so nothing is shown"
        found.add(
            Code.RUN_NETWORK, Severity.UNKNOWN, what, reason="mpi" if collective.needs_mpi else None, evidence=proof
        )
    elif report.verdict in {Verdict.NONE, Verdict.INTRA_NODE_ONLY} and collective.nodes == 1:
        what = f"{by}: the log does not say which network RCCL selected"
        found.add(Code.RUN_NETWORK, Severity.UNKNOWN, what, reason="one-node", evidence=proof)
    elif report.verdict in FAST and collective.nodes == 1:
        what = f"{by}: RCCL selected {network}; nothing crosses it on one node, so no traffic is proved"
        found.add(Code.RUN_SELECTED, Severity.OK, what, evidence=proof)
    elif report.verdict in FAST and (missing := _missing(result, ended)):
        what = f"{by}: {network} was selected; it is not proved that it carried all traffic: {missing}"
        found.add(Code.RUN_NETWORK, Severity.UNKNOWN, what, evidence=proof)
    elif report.verdict in FAST and report.answer is ExitCode.GOOD:
        found.add(Code.RUN_NETWORK, Severity.OK, f"{by}: {network} carried the traffic", evidence=proof)
    elif report.answer is ExitCode.UNDECIDED:
        what = f"{by}: the log does not prove which network carried the traffic ({report.verdict.value})"
        found.add(Code.RUN_NETWORK, Severity.UNKNOWN, what, **explained(causes, evidence=proof))
    elif collective.nodes == 1 and any(cause.id in _NO_VNI for cause in causes):
        what = f"{by}: RCCL fell back to {network}: no VNI on the NIC in this step; that proves nothing about the image"
        told = explained(causes, evidence=proof)
        told["remedy"] = ()
        found.add(Code.RUN_NETWORK, Severity.UNKNOWN, what, reason="no-vni", **told)
    elif inconclusive:
        what = f"{by}: RCCL took {network}; that proves nothing here: {inconclusive}"
        found.add(Code.RUN_NETWORK, Severity.UNKNOWN, what, reason="one-node", evidence=proof)
    else:
        would = (
            "carried the traffic" if collective.nodes > 1 else "is what RCCL took, and would carry that of two nodes"
        )
        found.add(Code.RUN_NETWORK, Severity.PROBLEM, f"{by}: {network} {would}", **explained(causes, evidence=proof))


def _missing(result: RunResult, ended: Completed) -> str | None:
    """Return what a collective over several nodes lacks for a proof; None where it lacks nothing."""
    told = result.report.told.ranks
    if not ended.ok:
        return "it did not finish"
    if told < result.collective.ranks:
        return f"{told} of {count(result.collective.ranks, 'rank')} left a log"
    if not any(measured.wrong == 0 for measured in result.report.measurements):
        return "no table shows that the sums were right"
    return None


def _name(report: LogReport) -> str:
    """Return the network for a sentence."""
    names = {rank.network for rank in report.ranks if rank.network}
    network = names.pop() if len(names) == 1 else report.verdict.value
    return f"{network} on the provider {report.provider}" if report.provider and report.verdict in FAST else network
