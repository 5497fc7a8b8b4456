"""Two reports of an image on nodes, as before and after maintenance: which nodes answer otherwise now.

Of the kinds that a report shows as one, the first stands for the others (`build_report`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING

from lumiimg.cluster.nodes.report import differences
from lumiimg.core.findings import Answer
from lumiimg.core.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumiimg.cluster.nodes.node import NodeAnswer
    from lumiimg.cluster.nodes.report import NodesReport


class Change(StrEnum):
    """What becomes of a node between two reports; the worst first."""

    WORSE = "worse"
    """It answers no now, and did not before."""
    NOT_COMPARABLE = "not-comparable"
    """It gives no answer or cannot tell now, or answers no and gave no answer before."""
    CHANGED = "changed"
    """The answer is the same, for another reason or with something else loaded."""
    BETTER = "better"
    """No obstacle is found now; there was one before, or it was not known."""
    NEW = "new"
    """No obstacle is found; it is not in the first report."""
    NOT_ASKED = "not-asked"
    """It is not in the second report."""

    @property
    def words(self) -> str:
        """For a person."""
        return self.replace("-", " ")


@dataclass(frozen=True, slots=True)
class ChangedNodes:
    """Nodes of which the same is to be said."""

    nodes: tuple[str, ...]
    """Names."""
    change: Change
    """What became of them."""
    before: str | None
    """The answer then, for a person; null where they were not asked."""
    now: str | None
    """The answer now."""
    differs: tuple[str, ...]
    """What is other than before, in a few words."""


@dataclass(frozen=True, slots=True)
class NodesDrift:
    """Which nodes answer otherwise than in an earlier report."""

    answer: Answer
    """The exit code says the same: `no` 1 (a node is worse), `undecided` 3, `no-obstacle` 0 (no node is worse)."""
    sentence: str
    """The answer for a person."""
    images: tuple[str, ...]
    """As it was named; two where the reports are of different images."""
    changed: tuple[ChangedNodes, ...]
    """The worst first."""
    same: int
    """Number of nodes that answer as before."""


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """What a report says of nodes."""

    answer: Answer
    sentence: str
    given: NodeAnswer | None
    """None: they gave no answer."""


def nodes_drift(before: NodesReport, now: NodesReport) -> NodesDrift:
    """Return which nodes answer otherwise now."""
    then, today = dict(_states(before)), dict(_states(now))
    kinds = defaultdict[tuple[_State | None, _State | None], list[str]](list)
    for node in sorted({*then, *today}):
        kinds[then.get(node), today.get(node)].append(node)
    same = 0
    alike = defaultdict[tuple[Change, str | None, str | None, tuple[str, ...]], list[str]](list)
    for (old, new), nodes in kinds.items():
        differs = differences(new.given, old.given) if old and new and old.given and new.given else ()
        if change := _change(old, new, differs):
            alike[change, old.sentence if old else None, new.sentence if new else None, differs] += nodes
        else:
            same += len(nodes)
    ranks = list(Change)
    of_rank = sorted(alike.items(), key=lambda item: (ranks.index(item[0][0]), -len(item[1])))
    changed = tuple(ChangedNodes(tuple(sorted(nodes)), *key) for key, nodes in of_rank)
    answer, sentence = _decide(changed, same, is_apart=not then.keys() & today.keys())
    return NodesDrift(answer, sentence, tuple(dict.fromkeys((before.image, now.image))), changed, same)


def _states(report: NodesReport) -> Iterator[tuple[str, _State]]:
    for group in report.groups:
        yield from zip(group.nodes, repeat(_State(group.answer, group.sentence, group.as_answer)))
    for silent in report.silent:
        yield from zip(silent.nodes, repeat(_State(Answer.UNDECIDED, silent.why, None)))


def _change(old: _State | None, new: _State | None, differs: tuple[str, ...]) -> Change | None:
    """Return what became of a node; None: nothing."""
    if new is None:
        return Change.NOT_ASKED
    if old is not None and old.answer is new.answer and old.given and new.given and not differs:
        return None
    if new.answer is Answer.UNDECIDED:
        return Change.NOT_COMPARABLE
    if old is not None and old.answer is new.answer:
        return Change.CHANGED
    if new.answer is Answer.NO:
        return Change.WORSE if old and old.given else Change.NOT_COMPARABLE
    return Change.BETTER if old else Change.NEW


def _decide(changed: Sequence[ChangedNodes], same: int, *, is_apart: bool) -> tuple[Answer, str]:
    numbers = {change: sum(len(each.nodes) for each in changed if each.change is change) for change in Change}
    of_all = count(sum(numbers.values()) + same, "node")
    worse, unknown = numbers[Change.WORSE], numbers[Change.NOT_COMPARABLE]
    if worse:
        answer, first = Answer.NO, f"{worse} of {of_all} {'is' if worse == 1 else 'are'} worse"
    elif unknown:
        answer, first = Answer.UNDECIDED, f"CANNOT TELL for {unknown} of {of_all}"
    elif is_apart:
        return Answer.UNDECIDED, "CANNOT TELL: no node is in both reports"
    else:
        answer, first = Answer.NO_OBSTACLE, f"no node is worse, of {of_all}"
    is_said = {Change.WORSE: True, Change.NOT_COMPARABLE: answer is Answer.UNDECIDED}
    rest = [f"{numbers[change]} {change.words}" for change in Change if numbers[change] and not is_said.get(change)]
    return answer, "; ".join((first, *rest, *([f"{same} as before"] if same else [])))
