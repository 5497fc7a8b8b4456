"""What one node answers, and the file that it puts it in: JSON, written by rename."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from lumiimg.fabric.path import FabricPath
from lumiimg.files import read_beginning, write_text
from lumiimg.findings import Finding  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.host.codec import FormError, decode, encode
from lumiimg.host.snapshot import Nic  # noqa: TC001 - as above

MAX_BYTES = 1 << 20
_SUFFIX = ".json"
_PREFIX = "node-"
"""So that no name of a node makes a hidden file."""
_NAME_LIMIT = 150


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


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What one node answers to a check."""

    schema: int
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


class AnswerError(Exception):
    """A file that is not an answer: a fact about the node, not the end of a command."""


def write_answer(folder: Path, answer: NodeAnswer) -> None:
    """Put a node's answer into the folder of a check: whole, or not at all. Raises FailedError."""
    write_text(folder / f"{file_stem(answer.node)}.{os.getpid()}{_SUFFIX}", json.dumps(encode(answer)))


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


def read_answer(path: Path) -> NodeAnswer:
    """Return an answer. Raises AnswerError, whatever the bytes."""
    try:
        data = read_beginning(path, MAX_BYTES + 1)
    except OSError as error:
        raise AnswerError(f"its answer cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise AnswerError(f"its answer has more than {MAX_BYTES} bytes")
    try:
        answer = decode(NodeAnswer, json.loads(data))
    except RecursionError as error:
        raise AnswerError("its answer is nested too deeply") from error
    except FormError as error:
        raise AnswerError(f"its answer is not valid: {error}"[:300]) from error
    except ValueError as error:
        raise AnswerError("its answer is cut off, or not JSON") from error
    if answer.fingerprint.findings != fingerprint_findings(answer.findings):
        raise AnswerError("its answer contradicts itself")
    return answer
