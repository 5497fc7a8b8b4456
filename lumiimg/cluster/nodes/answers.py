"""The answers of nodes, a file of JSON each, written by rename: who answered, who did not, and which are the same."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from lumiimg.fabric.path import FabricPath
from lumiimg.files import read_beginning, write_text
from lumiimg.findings import Finding  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.host.codec import FormError, decode, from_json, to_json
from lumiimg.host.snapshot import Nic  # noqa: TC001 - as above

MAX_BYTES = 1 << 20
_SUFFIX = ".json"
_PREFIX = "node-"
"""So that no name of a node makes a hidden file."""
_NAME_LIMIT = 150
_FILE_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library in the process of a probe."""

    name: str
    """Of its file, without the folder."""
    path: str
    """In the container."""
    build: str
    """Its build-id (the note of GNU's ld) in hexadecimal, empty where it has none."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """By what nodes are the same or not: what the probes came to, what was loaded, and what the node is."""

    findings: tuple[str, ...] = ()
    """`id severity` of each finding, sorted."""
    fabric: FabricPath = field(default_factory=FabricPath)
    rccl: str | None = None
    """The version that RCCL itself says there."""
    libraries: tuple[Library, ...] = ()
    """Sorted by their paths."""
    engine: str | None = None
    kernel: str = ""
    gpu_driver: str | None = None
    nics: tuple[Nic, ...] = ()
    """Without what is the node's own, as PCI addresses."""
    gpus: int | None = None
    """How many HIP finds in the container; None where it was not asked."""
    trouble: str | None = None
    """Why nothing could be probed there."""

    def __hash__(self) -> int:
        """Of a part: thousands of nodes are put into few groups."""
        return hash((self.findings, self.trouble))


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What one node answers to a check."""

    run: str
    """Of the check, a random word: what an earlier one left is not an answer."""
    node: str
    milliseconds: int
    """That the node took, by its own clock."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    findings: tuple[Finding, ...] = ()
    """Those of the fingerprint, with the evidence."""
    no_gpu: str | None = None
    """What HIP says where it finds none."""


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


class AnswerError(Exception):
    """A file that is not an answer: a fact about the node, not the end of a command."""


def write_answer(folder: Path, answer: NodeAnswer) -> None:
    """Put a node's answer into the folder of a check: whole, or not at all. Raises FailedError."""
    write_text(folder / f"{file_stem(answer.node)}.{os.getpid()}{_SUFFIX}", to_json(answer))


def fingerprint_findings(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return what a fingerprint has of findings."""
    return tuple(sorted(f"{finding.id} {finding.severity}" for finding in findings))


def file_stem(node: str) -> str:
    """Return the name of a node as a part of a file name."""
    return f"{_PREFIX}{quote(node, safe='')[:_NAME_LIMIT]}"


def node_of_file(name: str) -> str:
    """Return the node that a file of `write_answer` is named for."""
    return unquote(name.rsplit(".", 2)[0].removeprefix(_PREFIX))


def is_answer(name: str) -> bool:
    """Whether a file of a check's folder holds an answer: not a started mark, nor one that is being written."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def read_answer(path: Path, fingerprints: dict[bytes, Fingerprint]) -> NodeAnswer:
    """Return an answer. Raises AnswerError, whatever the bytes.

    `fingerprints`: those that were read already, by their bytes; this one is added.
    """
    try:
        data = read_beginning(path, MAX_BYTES + 1)
    except OSError as error:
        raise AnswerError(f"its answer cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise AnswerError(f"its answer has more than {MAX_BYTES} bytes")
    try:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        said = bytes(parts.pop("fingerprint", b"{}"))
        fingerprint = fingerprints.setdefault(said, fingerprints.get(said) or from_json(Fingerprint, said))
        answer = decode(NodeAnswer, {key: msgspec.json.decode(part) for key, part in parts.items()})
    except (FormError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(f"its answer is not valid: {error}"[:300]) from error
    if fingerprint.findings != fingerprint_findings(answer.findings):
        raise AnswerError("its answer contradicts itself")
    return replace(answer, fingerprint=fingerprint)


def gather(
    folder: Path, run: str, nodes: Collection[str], started: Collection[str], *, out_of_time: bool = False
) -> NodeAnswers:
    """Return the answers of `nodes` in a folder to the check `run`; `started` are those that were seen to begin.

    Of a node that answered twice, the answers must be the same. Raises OSError if the folder cannot be read.
    """
    found, faults = _read_all(folder, run, set(nodes))
    same: dict[Fingerprint, list[NodeAnswer]] = {}
    for node, answers in found.items():
        if any(answer.fingerprint != answers[0].fingerprint for answer in answers):
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
    fingerprints: dict[bytes, Fingerprint] = {}
    with os.scandir(folder) as entries:
        names = sorted(entry.name for _, entry in zip(range(_FILE_LIMIT), entries, strict=False))
    for name in filter(is_answer, names):
        try:
            answer = read_answer(folder / name, fingerprints)
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
