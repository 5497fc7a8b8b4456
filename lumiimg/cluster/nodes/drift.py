"""Compare two reports on nodes, such as before and after maintenance: which nodes answer differently now.

Where a report merges several kinds of nodes into one group, the first kind stands for the others (`build_report`).
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
    """How a node changed between two reports, the worst first."""

    WORSE = "worse"
    """It answers no now, but did not before."""
    NOT_COMPARABLE = "not-comparable"
    """It gives no answer or cannot tell now, or it answers no now and gave no answer before."""
    CHANGED = "changed"
    """The answer is the same, but for another reason or with other libraries loaded."""
    BETTER = "better"
    """No obstacle is found now; before, there was one or the answer was unknown."""
    NEW = "new"
    """No obstacle is found; the node is not in the first report."""
    NOT_ASKED = "not-asked"
    """The node is not in the second report."""

    @property
    def words(self) -> str:
        """The change in words for people."""
        return self.replace("-", " ")


@dataclass(frozen=True, slots=True)
class ChangedNodes:
    """Nodes with the same change."""

    nodes: tuple[str, ...]
    """Names of the nodes."""
    change: Change
    """How they changed."""
    before: str | None
    """The earlier answer for people; null if they were not checked then."""
    now: str | None
    """The current answer; null if they were not checked."""
    differs: tuple[str, ...]
    """The differences in a few words each."""


@dataclass(frozen=True, slots=True)
class NodesDrift:
    """Nodes that answer differently from an earlier report."""

    answer: Answer
    """The exit code matches it: `no` 1 (a node is worse), `undecided` 3, `no-obstacle` 0 (no node is worse)."""
    sentence: str
    """The answer for people."""
    images: tuple[str, ...]
    """The image as it was named; two if the reports are about different images."""
    changed: tuple[ChangedNodes, ...]
    """Changed nodes, the worst first."""
    same: int
    """Number of nodes with an unchanged answer."""


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """The state of nodes in one report."""

    answer: Answer
    sentence: str
    given: NodeAnswer | None
    """The answer; None: they gave none."""


def nodes_drift(before: NodesReport, now: NodesReport) -> NodesDrift:
    """Return the nodes that answer differently now."""
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
    """Return how a node changed; None: not at all."""
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
