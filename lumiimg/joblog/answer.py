"""From what a job was seen to print to the answer: what ended it and which network it used, why, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lumiimg.joblog.causes import EVIDENCE_OF_CAUSE, Trouble, advice, cause_of, events_of, some_nodes, troubles
from lumiimg.joblog.death import End, death_of, job_numbers, of_another_job
from lumiimg.joblog.flight import progress, stalled
from lumiimg.joblog.network import JobContext, NetworkVerdict, judge_job, judge_process
from lumiimg.joblog.report import FAST, Cause, Confidence, Coverage, LogReport, Verdict, VerdictGroup
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
    stall_of,
    transport,
    variables_that_differ,
)
from lumiimg.joblog.vocabulary import Effect, ExitRole, Weight

if TYPE_CHECKING:
    from lumiimg.joblog.state import JobLog, ProcessLog

_CAUSES = 40
"""That are reported."""
_TIME_LIMIT = "time-limit"
_REAL = frozenset({Weight.ROOT, Weight.SYMPTOM})
_UNEXPLAINED = ("provider-not-named", "plugin-not-mentioned", "nothing-decided")
"""What is said where no trouble was found that could be the cause of the verdict."""
_ONLY_FOLLOW = frozenset({ExitRole.FOLLOWS, ExitRole.EXIT, ExitRole.CLEARED})


def answer(whole: JobLog) -> LogReport:
    """Return the answer about a log; of several runs about the last one."""
    log, runs = last_run(whole)
    begin = log.first_line if runs > 1 else 1
    measured = log.bandwidth.measurements(log.place) if log.bandwidth else ()
    troubled = _troubled(log)
    processes = [process for process, _ in troubled]
    context = JobContext.of(processes, log)
    judged = [JudgedProcess(process, of, judge_process(process, of, context)) for process, of in troubled]
    network = judge_job([(one.process, one.network) for one in judged])
    end = death_of(troubled, log)
    of_job = troubles(log.job, events_of([*processes, log.job]), ())
    seen, ranks = coverage(judged, log.job), rank_results(judged)
    stall, dumped = stalled(log.dumps) or stall_of(log.job, ranks, seen), progress(log.dumps)
    facts = _Facts(
        log=log,
        network=network,
        end=end,
        troubles=[*(trouble for _, of in troubled for trouble in of), *of_job],
        single_node=is_single_node(processes),
        coverage=seen,
        groups=node_groups(judged),
        is_stalled=bool(log.dumps) and stall is not None,
        is_waiting=stall is None and any(one.waits_in for one in dumped),
    )
    number = {"job_id": _job_number(log)}
    causes = (*_doubts(facts), *_explanations(facts))
    return LogReport(
        verdict=network.verdict,
        confidence=network.confidence,
        proof=tuple(map(log.evidence, network.proof)),
        ranks=ranks,
        nodes=facts.groups,
        coverage=seen,
        runs=runs,
        first_line=begin,
        excerpt=bool(network.proof) and not any(match.has_origin for match in network.proof),
        single_node=facts.single_node,
        failed_running=any(t.signature.effect is Effect.RUN_ERROR for t in facts.troubles),
        connected=any(process.saw("channel", "local-channel", "connected") for process in processes),
        ended=end.death,
        end_unclear=end.unclear or bool(end.calls),
        stall=stall,
        progress=dumped,
        variables_that_differ=variables_that_differ(log.values_by_process, processes),
        communicators=communicators(judged),
        library=component(processes, "library") or component(processes, "oneccl-library", "oneCCL"),
        plugin=component(processes, "plugin"),
        provider=network.provider or (context.provider.value("provider") if context.provider else None),
        transport=transport(processes, log.job),
        environment=environment(log.job),
        measurements=tuple(one for one in measured if one.line >= begin),
        causes=tuple(replace(one, remedy=tuple(step.filled(number) for step in one.remedy)) for one in causes),
    )


def _troubled(log: JobLog) -> list[tuple[ProcessLog, list[Trouble]]]:
    """Return the processes of a job, and the troubles of each."""
    processes = log.attributed()
    seen = events_of([*processes, log.job])
    found = ((process, troubles(process, seen, log.job.events)) for process in processes)
    return [(process, [one for one in of if not of_another_job(one.match, log)]) for process, of in found]


def _job_number(log: JobLog) -> str:
    """Return the job's number, for commands that are typed where its variables are not set."""
    numbers = job_numbers(log) or {one.value("number") for one in log.job.saw("job-number")}
    return numbers.pop() if len(numbers) == 1 else "$SLURM_JOB_ID"


# -- the order of an answer: doubts of a network that is proved, then causes, the likeliest first


@dataclass(frozen=True, slots=True)
class _Facts:
    """What decides which causes are named, and in which order."""

    log: JobLog
    network: NetworkVerdict
    end: End
    troubles: Sequence[Trouble]
    single_node: bool
    coverage: Coverage
    groups: tuple[VerdictGroup, ...]
    is_stalled: bool
    """Dumps of the flight recorder show with which ranks a stall began."""
    is_waiting: bool
    """They show a collective that all ranks began, and that did not end."""


def _doubts(facts: _Facts) -> tuple[Cause, ...]:
    """Return what stands first where a network is proved, and not that the job went well."""
    verdict, end = facts.network.verdict, facts.end
    is_named = verdict is not Verdict.NONE
    calls = tuple(map(facts.log.evidence, end.calls[:EVIDENCE_OF_CAUSE]))
    shown = {
        "call-not-ended": bool(calls),
        "end-unclear": end.unclear and not (calls and is_named),
        "rank-behind": facts.is_stalled and is_named,
        "collective-not-ended": facts.is_waiting,
    }
    of = Verdict.INTRA_NODE_ONLY if facts.single_node else verdict
    said = advice(of, *(id_ for id_, holds in shown.items() if holds))
    return tuple(replace(one, evidence=calls) if one.id == "call-not-ended" else one for one in said)


def _explanations(facts: _Facts) -> tuple[Cause, ...]:
    """Return the causes of the job: by weight, then in the order of the knowledge base.

    What ended the job comes first, and what only followed on that is left out. It explains no network, unless none was
    chosen. Before a time limit come the nodes for which it was too short.
    """
    verdict, first = facts.network.verdict, facts.end.signature
    out_of_time = first == _TIME_LIMIT and not facts.single_node
    nodes = some_nodes(verdict, facts.groups, out_of_time=out_of_time)
    real = any(
        t.signature.weight in _REAL and (t.signature.ends is ExitRole.NO or verdict is Verdict.NONE)
        for t in facts.troubles
    )
    causes = _shown_by_lines(facts, nodes, real=real)
    if nodes is not None:
        return (*causes[:1], nodes, *causes[1:]) if first not in {None, _TIME_LIMIT} else (nodes, *causes)
    if facts.single_node and max(facts.coverage.nodes, facts.coverage.of_nodes or 0) > 1:
        return advice(verdict, "nodes-apart") + causes
    if facts.single_node and (reassurance := advice(verdict, "nothing-crosses")):
        return reassurance + causes
    if real:
        return causes
    if verdict in FAST:
        is_proved = facts.network.confidence is Confidence.PROVED
        return causes if is_proved else causes + advice(verdict, "traffic-not-shown")
    is_stalled = facts.is_stalled and verdict is Verdict.NONE
    open_ = advice(verdict, *(["rank-behind"] if is_stalled else _UNEXPLAINED))
    # of sockets a note is no reason: it is about which of them
    return open_ + causes if verdict is Verdict.SOCKET and first is None else causes + open_


def _shown_by_lines(facts: _Facts, nodes: Cause | None, *, real: bool) -> tuple[Cause, ...]:
    """Return the causes that lines of the log show, what ended the job first."""
    first, clean_up = facts.end.signature, facts.end.clean_up
    groups: dict[tuple[str, str], list[Trouble]] = {}
    for trouble in sorted(facts.troubles, key=lambda t: t.match.first_at):
        signature = trouble.signature
        # an error of Python that nothing else is known of may have been caught
        is_aside = signature.ends is ExitRole.OTHER or (real and signature.weight is Weight.ECHO)
        is_aside |= first is not None and signature.ends in _ONLY_FOLLOW
        if signature.id == first or not (is_aside or signature.id in clean_up):
            groups.setdefault((signature.id, trouble.summary), []).append(trouble)
    ordered = sorted(groups.values(), key=lambda group: (group[0].signature.id != first, group[0].signature.likelihood))
    return tuple(cause_of(group, facts.log.evidence, nodes) for group in ordered[:_CAUSES])
