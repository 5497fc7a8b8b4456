"""The answers of all nodes: who answered, who did not, and which are the same."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lumiimg.cluster.nodes.answers import AnswerError, Fingerprint, NodeAnswer, is_answer, node_of_file, read_answer
from lumiimg.findings import Finding  # noqa: TC001 - schemas are made from the types of the fields

_FILE_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class FingerprintGroup:
    """Nodes that are the same in all that is compared."""

    nodes: tuple[str, ...]
    fingerprint: Fingerprint
    findings: tuple[Finding, ...]
    """With the evidence of the first of them."""
    no_gpu: str | None
    """What HIP says on the first of them."""
    slowest_ms: int


@dataclass(frozen=True, slots=True)
class UnresponsiveNodes:
    """Nodes without an answer that could be used."""

    nodes: tuple[str, ...]
    """Names."""
    why: str
    """What is known of that."""


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    """What a check's folder holds."""

    groups: tuple[FingerprintGroup, ...]
    """The largest first."""
    silent: tuple[UnresponsiveNodes, ...]
    out_of_time: bool = False
    """Whether nodes were waited for up to the end of the job, and no longer."""


def gather(
    folder: Path, run: str, nodes: Collection[str], started: Collection[str], *, out_of_time: bool = False
) -> NodeAnswers:
    """Return the answers of `nodes` in a folder to the check `run`; `started` are those that were seen to begin.
    Of a node that answered twice, the answers must be the same. Raises OSError if the folder cannot be read.
    """
    found, faults = _read_all(folder, run, set(nodes))
    same: dict[Fingerprint, list[NodeAnswer]] = {}
    for node, answers in found.items():
        if len({answer.fingerprint for answer in answers}) > 1:
            faults[node] = f"gave {len(answers)} different answers"
        else:
            same.setdefault(answers[0].fingerprint, []).append(answers[0])
    groups = [_group(fingerprint, answers) for fingerprint, answers in same.items()]
    groups.sort(key=lambda group: (-len(group.nodes), group.nodes))
    until = " before the time of the job was up" if out_of_time else ""
    for node in set(nodes) - found.keys() - faults.keys():
        faults[node] = f"{'started, but gave no answer' if node in started else 'never started'}{until}"
    return NodeAnswers(tuple(groups), tuple(_silent(faults)), out_of_time)


def _group(fingerprint: Fingerprint, answers: list[NodeAnswer]) -> FingerprintGroup:
    names = tuple(sorted(answer.node for answer in answers))
    slowest = max(answer.milliseconds for answer in answers)
    return FingerprintGroup(names, fingerprint, answers[0].findings, answers[0].no_gpu, slowest)


def _read_all(folder: Path, run: str, nodes: Collection[str]) -> tuple[dict[str, list[NodeAnswer]], dict[str, str]]:
    """Return (answers by node, what is wrong with others by node); a file of no node of the check is passed over."""
    found: dict[str, list[NodeAnswer]] = {}
    faults: dict[str, str] = {}
    with os.scandir(folder) as entries:
        names = sorted(entry.name for _, entry in zip(range(_FILE_LIMIT), entries, strict=False))
    for name in filter(is_answer, names):
        try:
            answer = read_answer(folder / name)
        except AnswerError as error:
            if (node := node_of_file(name)) in nodes:
                faults[node] = str(error)
            continue
        if answer.run == run and answer.node in nodes:
            found.setdefault(answer.node, []).append(answer)
    return found, {node: why for node, why in faults.items() if node not in found}


def _silent(faults: Mapping[str, str]) -> Iterator[UnresponsiveNodes]:
    reasons: dict[str, list[str]] = {}
    for node, why in faults.items():
        reasons.setdefault(why, []).append(node)
    for why, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        yield UnresponsiveNodes(tuple(sorted(names)), why)
