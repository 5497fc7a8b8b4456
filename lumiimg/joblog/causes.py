"""Which troubles of the knowledge base hold for a process, and what is said of them: causes, advice, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.core.text import hostlist, shell_quote
from lumiimg.joblog.report import FAST, Cause, Evidence, Verdict, VerdictGroup
from lumiimg.joblog.vocabulary import Effect, Signature, vocabulary

if TYPE_CHECKING:
    from lumiimg.joblog.state import Match, ProcessLog

EVIDENCE_OF_CAUSE = 3
"""Lines kept for one cause."""
_WORD = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*", re.ASCII)
_OF_IMAGE = frozenset(Effect) - {Effect.RUN_ERROR, Effect.NONE}
"""What a whole image would have on all nodes."""


class Trouble(NamedTuple):
    """A signature that holds for a process, and the line that showed it."""

    signature: Signature
    match: Match

    @property
    def summary(self) -> str:
        return _filled(self.signature.summary, self.match)


def events_of(processes: Iterable[ProcessLog]) -> set[str]:
    """Return the ids of all that any process of the job showed."""
    return {event for process in processes for event in process.events}


def troubles(process: ProcessLog, seen_in_job: set[str], of_job: Collection[str]) -> list[Trouble]:
    """Return the troubles that the process showed, but for those that it, or the job (`of_job`), takes back.

    A plugin that was found and could not be loaded was not missing: of two names tried, or in the words of the library.
    """
    signatures = vocabulary().signatures
    context = seen_in_job if process.shared else process.events.keys()
    shown = {e for e in context if e not in signatures or seen_in_job.issuperset(signatures[e].given)}
    other = shown.union(of_job)
    held = [s for e in shown if (s := signatures.get(e)) is not None and other.isdisjoint(s.unless)]
    if any(s.effect is Effect.LOAD_ERROR for s in held):
        held = [s for s in held if s.effect is not Effect.MISSING]
    held.sort(key=lambda signature: signature.order)
    return [Trouble(signature, match) for signature in held for match in process.saw(signature.id)]


def cause_of(group: Sequence[Trouble], evidence: Callable[[Match], Evidence], some_nodes: Cause | None) -> Cause:
    """Return what is said of a trouble; where the same image works on other nodes, these nodes are to be looked at."""
    signature, match = group[0]
    because = tuple(_filled(reason, match) for reason in signature.because)
    remedy = tuple(step.filled(_values(match)) for step in signature.remedy if _may_be_typed(step, match))
    if some_nodes is not None and signature.effect in _OF_IMAGE:
        because, remedy = (), some_nodes.remedy[1:]
    shown = tuple(evidence(t.match) for t in group[:EVIDENCE_OF_CAUSE])
    return Cause(signature.id, group[0].summary, because, remedy, signature.source, shown)


def _may_be_typed(step: str, match: Match) -> bool:
    """Whether all that a log puts into a remedy is a word of a shell that stands for itself, whoever wrote the log."""
    return all(_WORD.fullmatch(value) for name, value in match.values if f"{{{name}}}" in step)


def _filled(text: str, match: Match) -> str:
    """Put the groups of the match into a text."""
    for name, value in _values(match).items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _values(match: Match) -> dict[str, str]:
    return {name: _explained(name, value) or "(not named)" for name, value in match.values}


def _explained(name: str, value: str) -> str:
    """Return the value of a group; a return code with its name and what it comes from."""
    code = vocabulary().return_codes.get(-abs(int(value))) if name == "rc" and value else None
    return f"{value} ({code.name}: {code.meaning or code.text})" if code else value


def advice(verdict: Verdict, *ids: str) -> tuple[Cause, ...]:
    """Return what of these advices is said about a verdict, whatever single lines show."""
    found = (vocabulary().advice[id_] for id_ in ids)
    return tuple(Cause(a.id, a.summary, (), a.remedy, a.source, ()) for a in found if verdict in a.verdicts)


def some_nodes(verdict: Verdict, groups: Sequence[VerdictGroup], *, out_of_time: bool) -> Cause | None:
    """Return what is said first of a job that used the fast network on most of its nodes, and not on others.

    Of one that was `out_of_time`, it is said of any number of them.
    """
    fast = sum(group.count for group in groups if group.verdict in FAST)
    slow = [node for group in groups if group.verdict not in FAST for node in group.nodes]
    most_are_fast = verdict is Verdict.MIXED and fast >= len(slow)
    general = vocabulary().advice["some-nodes" if most_are_fast else "nodes-on-tcp"]
    if not slow or verdict not in general.verdicts or not (most_are_fast or out_of_time):
        return None
    names = hostlist(slow)
    counts = {"slow": f"{len(slow)}", "all": f"{fast + len(slow)}", "fast": f"{fast}"}
    # names in brackets are a pattern for a shell, and those of a log are anybody's
    words = {"without": shell_quote(f"--exclude={names}"), "only": shell_quote(f"--nodelist={names} --gpus-per-node=8")}
    summary, *because = (text.format_map({**counts, "nodes": names}) for text in (general.summary, *general.because))
    remedy = tuple(step.filled(counts | words) for step in general.remedy)
    return Cause(general.id, summary, tuple(because), remedy, general.source, ())
