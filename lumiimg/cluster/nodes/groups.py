"""The answers of all nodes: who answered, who did not, and which are the same."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lumiimg.cluster.nodes.answers import (
    AnswerError,
    Details,
    Fingerprint,
    RawAnswer,
    is_answer,
    node_of_file,
    read_part,
    read_raw,
    told_by,
)

_FILE_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class FingerprintGroup:
    """Nodes that are the same in all that is compared."""

    nodes: tuple[str, ...]
    fingerprint: Fingerprint
    details: Details
    """Of the first of them."""
    slowest_ms: int


@dataclass(frozen=True, slots=True)
class SilentNodes:
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
    silent: tuple[SilentNodes, ...]
    out_of_time: bool = False
    """Whether nodes were waited for up to the end of the job, and no longer."""


def gather(
    folder: Path, run: str, nodes: Collection[str], started: Collection[str], *, out_of_time: bool = False
) -> NodeAnswers:
    """Return the answers of `nodes` in a folder to the check `run`; `started` are those that were seen to begin.
    Of a node that answered twice, the answers must be the same. Raises OSError if the folder cannot be read.
    """
    found, faults = _read_all(folder, run, set(nodes))
    by_print: dict[bytes, list[RawAnswer]] = {}
    for node, raws in found.items():
        if len({raw.fingerprint for raw in raws}) > 1:
            faults[node] = f"gave {len(raws)} different answers"
        else:
            by_print.setdefault(raws[0].fingerprint, []).append(raws[0])
    groups = []
    for raws in by_print.values():
        whole = list(_with_evidence(raws, faults))
        if whole:
            fingerprint, details = whole[0][1:]
            names = tuple(sorted(raw.head.node for raw, _, _ in whole))
            groups.append(
                FingerprintGroup(names, fingerprint, details, max(raw.head.milliseconds for raw, _, _ in whole))
            )
    groups.sort(key=lambda group: (-len(group.nodes), group.nodes))
    until = " before the time of the job was up" if out_of_time else ""
    for node in set(nodes) - found.keys() - faults.keys():
        faults[node] = f"{'started, but gave no answer' if node in started else 'never started'}{until}"
    return NodeAnswers(tuple(groups), tuple(_silent(faults)), out_of_time)


def _with_evidence(
    raws: Sequence[RawAnswer], faults: dict[str, str]
) -> Iterator[tuple[RawAnswer, Fingerprint, Details]]:
    """Yield the answers of one fingerprint, the first with evidence that says the same as the fingerprint.

    One that does not is a fault of its node alone; behind the first good one nothing is read any more.
    """
    shown: tuple[Fingerprint, Details] | None = None
    for raw in raws:
        if shown is None:
            try:
                fingerprint, details = read_part(Fingerprint, raw.fingerprint), read_part(Details, raw.details)
            except AnswerError as error:
                faults[raw.head.node] = str(error)
                continue
            if fingerprint.findings != told_by(details.findings):
                faults[raw.head.node] = "its answer contradicts itself"
                continue
            shown = fingerprint, details
        yield raw, *shown


def _read_all(folder: Path, run: str, nodes: Collection[str]) -> tuple[dict[str, list[RawAnswer]], dict[str, str]]:
    """Return (answers by node, what is wrong with others by node); a file of no node of the check is passed over."""
    found: dict[str, list[RawAnswer]] = {}
    faults: dict[str, str] = {}
    with os.scandir(folder) as entries:
        names = sorted(entry.name for _, entry in zip(range(_FILE_LIMIT), entries, strict=False))
    for name in filter(is_answer, names):
        try:
            raw = read_raw(folder / name)
        except AnswerError as error:
            if (node := node_of_file(name)) in nodes:
                faults[node] = str(error)
            continue
        if raw.head.run == run and raw.head.node in nodes:
            found.setdefault(raw.head.node, []).append(raw)
    return found, {node: why for node, why in faults.items() if node not in found}


def _silent(faults: Mapping[str, str]) -> Iterator[SilentNodes]:
    reasons: dict[str, list[str]] = {}
    for node, why in faults.items():
        reasons.setdefault(why, []).append(node)
    for why, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        yield SilentNodes(tuple(sorted(names)), why)
