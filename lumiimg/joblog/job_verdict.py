"""From what each process used to the verdict of the job: rules in order; the first that has an answer gives it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.joblog.report import FAST, TRANSPORTS, Confidence, Verdict, weakest
from lumiimg.joblog.verdict import FAILURES, NOTHING, Judgement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumiimg.joblog.events import ProcessState

OFI = FAST | {Verdict.OFI_OTHER}


def judge_job(processes: Sequence[ProcessState], judgements: Sequence[Judgement], dead: Sequence[bool]) -> Judgement:
    """Return the verdict of the job; `dead`: which processes could not open the endpoint that they had selected.

    A line without a prefix may be of any program of the job script. Where processes themselves said what they use, it
    counts only if it says that this died.
    """
    judged = list(zip(processes, judgements, dead, strict=True))
    own = any(_is_transport(judgement) and not process.shared for process, judgement, _ in judged)
    ranks = _Ranks(
        [judgement for process, judgement, died in judged if died or not (own and process.shared)],
        one_died=any(dead),
        crossing=any(c.crosses for process in processes for c in process.communicators.values()),
    )
    return next((judgement for rule in _JOB_RULES if (judgement := rule(ranks)) is not None), NOTHING)


class _Ranks:
    """What the processes of a job came to, as the rules of the job look at it."""

    def __init__(self, judgements: list[Judgement], *, one_died: bool, crossing: bool) -> None:
        self.judgements = judgements
        self.transports = [f for f in judgements if _is_transport(f)]
        self.failed = [f for f in judgements if f.verdict in FAILURES.values()]
        self.kinds = {f.verdict for f in self.transports}
        """The networks that were seen in use."""
        self.one_died = one_died
        """A process could not open the endpoint that it had selected."""
        self.crossing = crossing
        """A communicator has ranks on several nodes."""

    def of(self, verdict: Verdict) -> list[Judgement]:
        return [f for f in self.judgements if f.verdict is verdict]


def _one_is_mixed(ranks: _Ranks) -> Judgement | None:
    return _mixed(mixed) if (mixed := ranks.of(Verdict.MIXED)) else None


def _endpoint_not_opened(ranks: _Ranks) -> Judgement | None:
    not_opened = ranks.of(Verdict.PLUGIN_INIT_ERROR)
    return _strongest(not_opened) if ranks.one_died and ranks.kinds <= OFI and not_opened else None


def _ranks_differ(ranks: _Ranks) -> Judgement | None:
    unknown = [f for f in ranks.of(Verdict.NONE) if f.network]
    # a rank whose plugin is missing goes on with verbs
    ended_on_verbs = Verdict.IB in ranks.kinds and any(f.ended for f in ranks.failed)
    failed_on_libfabric = ranks.failed and ranks.kinds & OFI
    if len(ranks.kinds) > 1 or (ranks.kinds and unknown) or ended_on_verbs or failed_on_libfabric:
        return _mixed([*ranks.transports, *ranks.failed, *unknown])
    return None


def _one_network(ranks: _Ranks) -> Judgement | None:
    if not ranks.transports:
        return None
    best = _strongest(ranks.transports)
    # what one rank proves does not settle another's error
    doubts = [Confidence.LIKELY for f in ranks.transports if f.doubted]
    return replace(best, confidence=weakest((best.confidence, *doubts)))


def _failure_nearest_to_success(ranks: _Ranks) -> Judgement | None:
    return next((_strongest(found) for verdict in FAILURES.values() if (found := ranks.of(verdict))), None)


def _plugin_began(ranks: _Ranks) -> Judgement | None:
    begun = [f for f in ranks.judgements if f.soft]
    return _strongest(begun) if begun else None


def _stayed_on_the_node(ranks: _Ranks) -> Judgement | None:
    local = ranks.of(Verdict.INTRA_NODE_ONLY)
    return _strongest(local) if local and not ranks.crossing else None


_JOB_RULES = (
    _one_is_mixed,
    _endpoint_not_opened,
    _ranks_differ,
    _one_network,
    _failure_nearest_to_success,
    _plugin_began,
    _stayed_on_the_node,
)


def _is_transport(judgement: Judgement) -> bool:
    return judgement.verdict in TRANSPORTS and not judgement.soft


def _strongest(findings: Sequence[Judgement]) -> Judgement:
    """Return the finding that is best proved, a channel's line before others, the first of equals."""
    order = list(Confidence)
    return min(findings, key=lambda f: (order.index(f.confidence), all(s.event != "channel" for s in f.proof)))


def _mixed(findings: Sequence[Judgement]) -> Judgement:
    """One line of proof for each verdict, those that are not the fast network first; as sure as the least sure."""
    verdicts = sorted(dict.fromkeys(f.verdict for f in findings), key=FAST.__contains__)
    best = [_strongest([f for f in findings if f.verdict is verdict]) for verdict in verdicts]
    confidence = weakest(f.confidence for f in best)
    return Judgement(Verdict.MIXED, confidence, tuple(f.proof[0] for f in best))
