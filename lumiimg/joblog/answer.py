"""Turn what a job printed into the answer: what ended it, which network it used, and why, in order of importance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.core.redact import HIDDEN
from lumiimg.core.text import hostlist, shell_quote
from lumiimg.joblog.death import End, end_of_job
from lumiimg.joblog.flight import progress, stalled
from lumiimg.joblog.machine import advice_here
from lumiimg.joblog.network import JobContext, judge_job, judge_process
from lumiimg.joblog.report import Cause, LogReport
from lumiimg.joblog.state import last_run
from lumiimg.joblog.summary import (
    JudgedProcess,
    communicators,
    component,
    coverage,
    environment,
    is_single_node,
    node_groups,
    rank_results,
    transport,
)
from lumiimg.joblog.troubles import Trouble, events_of, filled, is_of_other_job, job_numbers, troubles, values_of
from lumiimg.joblog.verdict import FAST, Confidence, Verdict
from lumiimg.joblog.vocabulary import Effect, ExitRole, Weight, vocabulary
from lumiimg.joblog.watchdog import ending_of, stall_of

if TYPE_CHECKING:
    from lumiimg.joblog.state import JobLog, Match, ProcessLog

_CAUSES = 40
"""Maximum number of causes in a report."""
EVIDENCE_OF_CAUSE = 3
"""Maximum number of evidence lines per cause."""
_WORD = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*", re.ASCII)
_IMAGE_WIDE = frozenset(Effect) - {Effect.RUN_ERROR, Effect.NONE}
"""Effects that a fault of the image would have on every node."""
_TIME_LIMIT = "time-limit"
_REAL = frozenset({Weight.ROOT, Weight.SYMPTOM})
_UNEXPLAINED = ("provider-not-named", "plugin-not-mentioned", "nothing-decided")
"""Advice given when no trouble was found that could be the cause of the verdict."""
_ONLY_FOLLOW = frozenset({ExitRole.FOLLOWS, ExitRole.EXIT, ExitRole.CLEARED})


def answer(whole: JobLog) -> LogReport:
    """Return the answer about a log; if it contains several runs, about the last one."""
    log, runs = last_run(whole)
    begin = min(log.place(match.first_at)[1] for match in log.matches) if runs > 1 else 1
    processes = log.attributed()
    seen_in_job = events_of([*processes, log.job])
    context = JobContext.of(processes, log)
    judged, of_job = [], log.job.events
    for process in processes:
        of = [one for one in troubles(process, seen_in_job, of_job) if not is_of_other_job(one.match, log)]
        judged.append(JudgedProcess(process, of, judge_process(process, of, context)))
    network = judge_job([(one.process, one.network) for one in judged])
    held = [trouble for one in judged for trouble in one.troubles]
    end = end_of_job(processes, held, log, [one.process.name for one in judged if one.network.ended])
    held += troubles(log.job, seen_in_job, ())
    fast = {one.process.name for one in judged if one.network.verdict in FAST}
    # quote the rank that died first, then ranks that are not on a fast network
    held.sort(key=lambda one: (one is not end.first, one.process.name in fast, one.at))
    seen, ranks = coverage(judged, log.job), rank_results(judged)
    stall = stalled(log.dumps) or stall_of(log.job, ranks, seen)
    measured = log.bandwidth.measurements(log.place) if log.bandwidth else ()
    report = LogReport(
        verdict=network.verdict,
        confidence=network.confidence,
        proof=tuple(map(log.evidence, network.proof)),
        ranks=ranks,
        nodes=node_groups(judged),
        coverage=seen,
        runs=runs,
        first_line=begin,
        excerpt=bool(network.proof) and not any(match.has_origin for match in network.proof),
        single_node=is_single_node(processes),
        failed_running=any(t.signature.effect is Effect.RUN_ERROR for t in held),
        connected=any(map(_is_connected, processes)),
        ended=ending_of(end.ending, stall),
        stall=stall,
        progress=progress(log.dumps),
        communicators=communicators(judged),
        library=component(processes, "library") or component(processes, "oneccl-library", "oneCCL"),
        plugin=component(processes, "plugin"),
        provider=network.provider or (context.provider.value("provider") if context.provider else None),
        transport=transport(processes, log.job),
        environment=environment(log.job),
        measurements=tuple(one for one in measured if one.line >= begin),
        causes=(),
    )
    causes = (*_doubts(report, end, log), *_explanations(report, end, held, log))
    causes = advice_here(causes, processes, log)
    known = {}
    if (number := _job_number(log)) is not None:
        known["job_id"] = number
    if (node := report.ended.node) is not None and _WORD.fullmatch(node):
        known["bad_node"] = node
    dumps = vocabulary().advice["collective-not-ended"].remedy if _is_stalled(report) else ()
    steps = ((*(dumps if one.id == _stall_cause_id(report) else ()), *one.remedy) for one in causes)
    filled_in = (
        replace(one, remedy=tuple(step.filled(known) for step in of)) for one, of in zip(causes, steps, strict=True)
    )
    return replace(report, causes=tuple(filled_in))


def _job_number(log: JobLog) -> str | None:
    """Return the job number, for commands typed where the job's variables are not set; None if it is not known."""
    numbers = job_numbers(log) or {one.value("number") for one in log.job.saw("job-number")}
    return numbers.pop() if len(numbers) == 1 else None


def _is_connected(process: ProcessLog) -> bool:
    """Return whether a process shows connections over a network; `Connected` does not name its communicator."""
    seen = process.communicators.values()
    apart = not seen or any(one.crosses is not False for one in seen)
    return bool(process.saw("channel")) or (apart and bool(process.saw("connected")))


# -- the order of an answer: what is known about its end without a signature, then causes, most likely first


def _doubts(report: LogReport, end: End, log: JobLog) -> tuple[Cause, ...]:
    """Return the causes that come first if no signature shows how the job ended, or where it stalled."""
    is_named = report.verdict is not Verdict.NONE
    shown = {
        _stall_cause_id(report): _is_stalled(report) and is_named,
        "collective-not-ended": report.stall is None and any(one.waits_in for one in report.progress),
    }
    of = Verdict.INTRA_NODE_ONLY if report.single_node else report.verdict
    said = _advice(of, *(id_ for id_, holds in shown.items() if holds))
    general = vocabulary().advice.get(report.ended.cause or "")
    if general is None:
        return said
    shown_by = end.lines or log.job.saw("collective-waited")
    lines = tuple(map(log.evidence, shown_by[:EVIDENCE_OF_CAUSE]))
    return (
        Cause(general.id, report.ended.summary, general.because, general.remedy, general.source, lines),
        *(one for one in said if one.id != general.id),
    )


def _is_stalled(report: LogReport) -> bool:
    """Return whether flight recorder dumps show which ranks a stall began with."""
    return bool(report.progress) and report.stall is not None


def _stall_cause_id(report: LogReport) -> str:
    return "ranks-differ" if report.stall is not None and report.stall.differs else "rank-behind"


def _explanations(report: LogReport, end: End, held: Sequence[Trouble], log: JobLog) -> tuple[Cause, ...]:
    """Return the causes of the job: by weight, then in the order of the knowledge base.

    What ended the job comes first, and what merely followed from it is left out. It does not explain the network unless
    none was chosen. If a job that used several nodes ran out of time, nodes without the fast network precede the limit.
    """
    verdict, first = report.verdict, report.ended.cause if report.ended.leads else None
    shown = events_of(log.processes.values())
    in_init = "init-begun" in shown and "init-complete" not in shown and not report.connected
    out_of_time = first == _TIME_LIMIT and not report.single_node and not in_init
    nodes = _some_nodes(report, out_of_time=out_of_time)
    real = any(
        t.signature.weight in _REAL and (t.signature.ends is ExitRole.NO or verdict is Verdict.NONE) for t in held
    )
    on_some = nodes if any(group.verdict in FAST for group in report.nodes) else None
    causes = _shown_by_lines(held, end, log, on_some, real=real)
    if nodes is not None and on_some is None:  # no node is fast, so the remedy for the network applies to all
        signatures = vocabulary().signatures
        cures = [one for one in causes if signatures[one.id].effect in _IMAGE_WIDE] or _advice(verdict, *_UNEXPLAINED)
        nodes = replace(nodes, remedy=(*(step for one in cures[:1] for step in one.remedy), *nodes.remedy))
    if first is not None and nodes is None:
        return causes
    if nodes is not None:
        return (*causes[:1], nodes, *causes[1:]) if first not in {None, _TIME_LIMIT} else (nodes, *causes)
    if report.single_node and max(report.coverage.nodes, report.coverage.of_nodes or 0) > 1:
        return _advice(verdict, "nodes-apart") + causes
    if report.single_node and (reassurance := _advice(verdict, "nothing-crosses")):
        return reassurance + causes
    if real and causes:
        return causes
    if verdict in FAST:
        is_proved = report.confidence is Confidence.PROVED
        return causes if is_proved else causes + _advice(verdict, "traffic-not-shown")
    is_stalled = _is_stalled(report) and verdict is Verdict.NONE
    open_ = _advice(verdict, *([_stall_cause_id(report)] if is_stalled else _UNEXPLAINED))
    # a note does not explain why sockets were used, only which ones
    return open_ + causes if verdict is Verdict.SOCKET and first is None else causes + open_


def _shown_by_lines(
    held: Sequence[Trouble], end: End, log: JobLog, nodes: Cause | None, *, real: bool
) -> tuple[Cause, ...]:
    """Return the causes that lines of the log show, starting with what ended the job."""
    first = end.ending.cause if end.ending.leads else None
    groups: dict[tuple[str, str], list[Trouble]] = {}
    for trouble in held:
        signature = trouble.signature
        # a Python error about which nothing else is known may have been caught
        is_aside = signature.ends is ExitRole.OTHER or (real and signature.weight is Weight.ECHO)
        is_aside |= first is not None and signature.ends in _ONLY_FOLLOW
        if signature.id == first or not (is_aside or signature.id in end.clean_up):
            groups.setdefault((signature.id, trouble.summary), []).append(trouble)
    ordered = sorted(groups.values(), key=lambda group: (group[0].signature.id != first, group[0].signature.likelihood))
    return tuple(_cause(group, log, nodes) for group in ordered[:_CAUSES])


# -- one cause


def _cause(group: Sequence[Trouble], log: JobLog, nodes: Cause | None) -> Cause:
    """Return a trouble as a cause; if the same image works on other nodes, the remedy is to look at these nodes."""
    _, signature, match = group[0]
    because = tuple(filled(reason, match) for reason in signature.because)
    remedy = tuple(step.filled(values_of(match)) for step in signature.remedy if _may_be_typed(step, match))
    if nodes is not None and signature.effect in _IMAGE_WIDE:
        because, remedy = (), nodes.remedy[1:]
    shown = tuple(log.evidence(t.match) for t in group[:EVIDENCE_OF_CAUSE])
    return Cause(signature.id, group[0].summary, because, remedy, signature.source, shown)


def _may_be_typed(step: str, match: Match) -> bool:
    """Return whether each value that a log puts into a remedy is a literal shell word: anybody may write a log."""
    said = {name: value for name, value in match.values if f"{{{name}}}" in step}
    return all(map(_WORD.fullmatch, said.values())) and HIDDEN not in map(values_of(match).get, said)


def _advice(verdict: Verdict, *ids: str) -> tuple[Cause, ...]:
    """Return those of these advice entries that apply to a verdict, whatever single lines show."""
    found = (vocabulary().advice[id_] for id_ in ids)
    return tuple(Cause(a.id, a.summary, (), a.remedy, a.source, ()) for a in found if verdict in a.verdicts)


def _some_nodes(report: LogReport, *, out_of_time: bool) -> Cause | None:
    """Return the first cause of a job that used the fast network on most of its nodes but not on all.

    For a job that ran `out_of_time`, any number of nodes without the fast network is enough.
    """
    fast = sum(group.count for group in report.nodes if group.verdict in FAST)
    slow = [node for group in report.nodes if group.verdict not in FAST for node in group.nodes]
    most_are_fast = report.verdict is Verdict.MIXED and fast >= len(slow)
    general = vocabulary().advice["some-nodes" if most_are_fast else "nodes-on-tcp"]
    if not slow or report.verdict not in general.verdicts or not (most_are_fast or out_of_time):
        return None
    names = hostlist(slow)
    counts = {"slow": f"{len(slow)}", "all": f"{fast + len(slow)}", "fast": f"{fast}"}
    # to a shell, names in brackets are a pattern and `#SBATCH` is a comment; names from a log may be anything
    words = {"nodes": names, "only": shell_quote(f"--nodelist={names} --gpus-per-node=8")}
    summary, *because = (text.format_map(counts | words) for text in (general.summary, *general.because))
    remedy = tuple(step.filled(counts | words) for step in general.remedy)
    return Cause(general.id, summary, tuple(because), remedy, general.source, ())
