"""Which troubles of the knowledge base hold for a process, and their order for the job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.joblog.report import FAST, Cause, Evidence, Verdict
from lumiimg.joblog.vocabulary import Effect, Ends, Occasion, Signature, Weight, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lumiimg.joblog.events import ProcessState, Sighting

EVIDENCE_OF_CAUSE = 3
"""Lines kept for one cause."""
CAUSE_LIMIT = 40
TIME_LIMIT = "time-limit"
_WORD = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*", re.ASCII)
_OF_IMAGE = frozenset(Effect) - {Effect.RUN_ERROR, Effect.NONE}
"""What a whole image would have on all nodes."""
_REAL = frozenset({Weight.ROOT, Weight.SYMPTOM})


class Trouble(NamedTuple):
    """A signature that holds for a process, and the line that showed it."""

    signature: Signature
    sighting: Sighting

    @property
    def summary(self) -> str:
        return _filled(self.signature.summary, self.sighting)


def job_events(processes: Iterable[ProcessState]) -> set[str]:
    """Return the ids of all that any process of the job showed."""
    return {event for process in processes for event in process.events}


def troubles(process: ProcessState, seen_in_job: set[str], of_job: Collection[str]) -> list[Trouble]:
    """Return the troubles that the process showed, but for those that it, or the job (`of_job`), takes back.

    A plugin that was found and could not be loaded was not missing: of two names tried, or in the words of the library.
    """
    signatures = vocabulary().signatures
    context = seen_in_job if process.shared else process.events.keys()
    shown = {e for e in context if e not in signatures or seen_in_job.issuperset(signatures[e].given)}
    against = shown.union(of_job)
    held = [s for e in shown if (s := signatures.get(e)) is not None and against.isdisjoint(s.unless)]
    if any(s.effect is Effect.LOAD_ERROR for s in held):
        held = [s for s in held if s.effect is not Effect.MISSING]
    held.sort(key=lambda signature: signature.order)
    return [Trouble(signature, sighting) for signature in held for sighting in process.saw(signature.id)]


def ranked(
    found: Sequence[Trouble],
    verdict: Verdict,
    *,
    proved: bool,
    single_node: bool,
    apart: bool,
    several_runs: bool,
    stalled: bool,
    first: str | None,
    clean_up: Collection[str],
    some_nodes: Cause | None,
    evidence: Callable[[Sighting], Evidence],
) -> tuple[Cause, ...]:
    """Return the causes of the job, most likely first: by weight, then in the order of the knowledge base.

    What ended the job comes first (`first`: its id), and what only followed on that (`clean_up`: ids) is left out.
    It explains no network, unless none was chosen. Before a time limit come the nodes for which it was too short.
    """
    real = any(t.signature.weight in _REAL and (t.signature.ends is Ends.NO or verdict is Verdict.NONE) for t in found)
    groups: dict[tuple[str, str], list[Trouble]] = {}
    for trouble in sorted(found, key=lambda t: t.sighting.first):
        signature = trouble.signature
        # an error of Python that nothing else is known of may have been caught
        is_aside = signature.ends is Ends.OTHER or (real and signature.weight is Weight.ECHO)
        is_aside |= first is not None and signature.ends in {Ends.FOLLOWS, Ends.EXIT, Ends.CLEARED}
        is_aside |= signature.id in clean_up
        if is_aside and signature.id != first:
            continue
        groups.setdefault((signature.id, trouble.summary), []).append(trouble)
    ordered = sorted(groups.values(), key=lambda g: (g[0].signature.id != first, *likelihood(g[0].signature)))
    causes = tuple(_cause(group, evidence, some_nodes) for group in ordered[:CAUSE_LIMIT])
    if some_nodes is not None and not several_runs:
        return (*causes[:1], some_nodes, *causes[1:]) if first not in {None, TIME_LIMIT} else (some_nodes, *causes)
    if several_runs:
        causes = advice(Occasion.SEVERAL_RUNS, verdict) + causes
    if apart:
        return advice(Occasion.APART, verdict) + causes
    if single_node and (reassurance := advice(Occasion.SINGLE_NODE, verdict)):
        return reassurance + causes
    if real:
        return causes
    if verdict in FAST:
        return causes if proved else causes + advice(Occasion.UNPROVED, verdict)
    open_ = advice(Occasion.STALLED if stalled else Occasion.UNEXPLAINED, verdict)
    # of sockets a note is no reason: it is about which of them
    return open_ + causes if verdict is Verdict.SOCKET and first is None else causes + open_


def likelihood(signature: Signature) -> tuple[int, int]:
    """Return what causes are sorted by, the most likely first."""
    return list(Weight).index(signature.weight), signature.order


def advice(occasion: Occasion, verdict: Verdict) -> tuple[Cause, ...]:
    """Return what is said about a verdict on an occasion, whatever single lines show."""
    return tuple(
        Cause(a.id, a.summary, (), a.remedy, a.source, ())
        for a in vocabulary().advice
        if a.when is occasion and verdict in a.verdicts
    )


def _cause(group: Sequence[Trouble], evidence: Callable[[Sighting], Evidence], some_nodes: Cause | None) -> Cause:
    """Return a cause; where the same image works on other nodes, it is these nodes that are to be looked at."""
    signature, sighting = group[0]
    because = tuple(_filled(reason, sighting) for reason in signature.because)
    remedy = tuple(step.filled(_values(sighting)) for step in signature.remedy if _may_be_typed(step, sighting))
    if some_nodes is not None and signature.effect in _OF_IMAGE:
        because, remedy = (), some_nodes.remedy[1:]
    return Cause(
        id=signature.id,
        summary=group[0].summary,
        because=because,
        remedy=remedy,
        source=signature.source,
        evidence=tuple(evidence(t.sighting) for t in group[:EVIDENCE_OF_CAUSE]),
    )


def _may_be_typed(step: str, sighting: Sighting) -> bool:
    """Whether all that a log puts into a remedy is a word of a shell that stands for itself, whoever wrote the log."""
    return all(_WORD.fullmatch(value) for name, value in sighting.values if f"{{{name}}}" in step)


def _filled(text: str, sighting: Sighting) -> str:
    """Put the groups of the match into a text."""
    for name, value in _values(sighting).items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _values(sighting: Sighting) -> dict[str, str]:
    return {name: _explained(name, value) or "(not named)" for name, value in sighting.values}


def _explained(name: str, value: str) -> str:
    """Return the value of a group; a return code with its name and what it comes from."""
    code = vocabulary().return_codes.get(-abs(int(value))) if name == "rc" and value else None
    return f"{value} ({code.name}: {code.meaning or code.text})" if code else value
