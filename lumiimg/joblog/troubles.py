"""Troubles of the knowledge base that apply to a process, in words, and the rank or node that each one hit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.core.redact import HIDDEN, redact
from lumiimg.joblog.state import PROCESS_LIMIT
from lumiimg.joblog.vocabulary import Effect, ExitRole, Signature, Weight, vocabulary

if TYPE_CHECKING:
    from lumiimg.joblog.state import JobLog, Match, ProcessLog

RANKLESS_ROLES = frozenset({ExitRole.OUTSIDE, ExitRole.CANCELLED, ExitRole.CLEARED})
"""Slurm ended the job or the step, regardless of any rank."""


class Trouble(NamedTuple):
    """A signature that applies to a process, and the line that showed it."""

    process: ProcessLog
    signature: Signature
    match: Match

    @property
    def summary(self) -> str:
        return filled(self.signature.summary, self.match)

    @property
    def ends(self) -> ExitRole:
        return self.signature.ends

    @property
    def at(self) -> int:
        return self.match.first_at

    @property
    def places(self) -> tuple[int, int]:
        return self.match.first_at, self.match.last_at


def events_of(processes: Iterable[ProcessLog]) -> set[str]:
    """Return the ids of all events that any process of the job showed."""
    return {match.event for process in processes for match in process.matches}


def troubles(process: ProcessLog, seen_in_job: set[str], of_job: Collection[str]) -> list[Trouble]:
    """Return the troubles that the process showed, except those revoked by its other events or the job's (`of_job`).

    A plugin that was found but could not be loaded is not missing, even if another name was, or the library says so.
    """
    signatures = vocabulary().signatures
    context = seen_in_job if process.shared else process.events
    shown = {e for e in context if e not in signatures or seen_in_job.issuperset(signatures[e].given)}
    other = shown.union(of_job)
    held = [s for e in shown if (s := signatures.get(e)) is not None and other.isdisjoint(s.unless)]
    if any(s.effect is Effect.LOAD_ERROR for s in held):
        held = [s for s in held if s.effect is not Effect.MISSING]
    held.sort(key=lambda signature: signature.order)
    return [Trouble(process, signature, match) for signature in held for match in process.saw(signature.id)]


def filled(text: str, match: Match) -> str:
    """Return a text with its placeholders replaced by the groups of the match."""
    for name, value in values_of(match).items() if "{" in text else ():
        text = text.replace(f"{{{name}}}", value)
    return text


def values_of(match: Match) -> dict[str, str]:
    """Return the values of a match in a form fit to show: one may be the value of a `key=value`, and so a secret."""
    shown = redact(match.excerpt)
    cut_out = {value for _, value in match.values if value not in shown and value in match.excerpt}
    return {n: HIDDEN if v in cut_out else _explained(n, v) or "(not named)" for n, v in match.values}


def _explained(name: str, value: str) -> str:
    """Return the value of a group; a return code with its name and meaning."""
    code = vocabulary().return_codes.get(-abs(int(value))) if name == "rc" and value else None
    return f"{value} ({code.name}: {code.meaning or code.text})" if code else value


def is_of_other_job(match: Match, log: JobLog) -> bool:
    """Return whether it is sacct's row of another job, or of a job that was requeued and then completed."""
    number = match.value("job") or match.value("job_in_column")
    if not number:
        return False
    completed = (one.last_at for one in log.job.saw("completed") if one.value("job") == number)
    later = any(at > match.last_at and log.same_file(at, match.last_at) for at in completed)
    return later or number not in (job_numbers(log) or {number})


def job_numbers(log: JobLog) -> set[str]:
    """Return the Slurm job numbers of the log, from its variables."""
    names = {"SLURM_JOB_ID", "SLURM_JOBID"}
    values = (one.value("value") for one in log.job.saw("slurm") if one.value("name") in names)
    return {value for value in values if value.isascii() and value.isdecimal()}


def says_how(one: Trouble) -> bool:
    """Return whether a line says how a process ended, and not only that it did."""
    return one.ends is ExitRole.EXIT and one.signature.weight is not Weight.ECHO


def is_peer_loss(signature: Signature) -> bool:
    """Return whether a line says only that another rank had ended, or that a call failed."""
    if signature.ends is ExitRole.WAITED:
        return signature.weight is Weight.ECHO
    return signature.ends is ExitRole.FOLLOWS and signature.effect is Effect.NONE


def targets(troubles: Sequence[Trouble]) -> tuple[frozenset[object], ...]:
    """Return the ranks, nodes and processes that lines name; a set is empty if one of the lines names none."""
    found = []
    for one in troubles:
        rank, node = rank_and_node(one)
        found.append((_numbers(rank or ""), {node} - {None}, {one.process} if not one.process.shared else set()))
    return tuple(frozenset().union(*of) if all(of) else frozenset() for of in zip(*found, strict=True))


def _numbers(ranks: str) -> set[int]:
    """Return the ranks of `0-3,7`."""
    spans = (span.partition("-") for span in ranks.split(",") if span)
    return {rank for first, _, last in spans for rank in range(int(first), min(int(last or first), PROCESS_LIMIT) + 1)}


def rank_and_node(one: Trouble) -> tuple[str | None, str | None]:
    """Return the rank and the node that a death hit, if its line or its process names them."""
    said = dict(one.match.values)
    # Slurm names the node of the job script, or of what it clears away
    if one.ends in RANKLESS_ROLES:
        return None, said.get("node")
    text = one.match.text
    for pattern in vocabulary().places:
        found = pattern.search(text)
        for name, value in found.groupdict(default="").items() if found else ():
            said[name] = said.get(name) or value
    if not one.match.has_origin:  # any program may have printed it
        return said.get("rank"), said.get("node")
    ranks = {communicator.rank for communicator in one.process.communicators.values()}
    rank = said.get("rank") or (f"{ranks.pop()}" if len(ranks) == 1 else None)
    return rank, said.get("node") or one.process.node
