"""What one node answers, and the file that it puts it in: three lines of JSON, written by rename.

The first line says whose answer it is, the second is what nodes are compared by (the same for two nodes that are the
same, byte by byte), the third is the evidence. So a few thousand files are grouped before more than a few are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from lumiimg.fabric.path import FabricPath
from lumiimg.files import read_beginning, write_text
from lumiimg.findings import Finding  # noqa: TC001 - the codec reads the types of the fields
from lumiimg.host.codec import FormError, decode, encode
from lumiimg.host.snapshot import Nic  # noqa: TC001 - as above

T = TypeVar("T")
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
class Details:
    """The evidence."""

    findings: tuple[Finding, ...] = ()
    no_gpu: str | None = None
    """What HIP says where it finds none."""


@dataclass(frozen=True, slots=True)
class Head:
    """Whose answer it is."""

    schema: int
    run: str
    """Of the check, a random word: what an earlier one left is not an answer."""
    node: str
    milliseconds: int
    """That the node took, by its own clock."""


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as it lies in its file: the head is read, the rest is not."""

    head: Head
    fingerprint: bytes
    details: bytes


class AnswerError(Exception):
    """A file that is not an answer: a fact about the node, not the end of a command."""


def write_answer(folder: Path, head: Head, fingerprint: Fingerprint, details: Details) -> None:
    """Put a node's answer into the folder of a check: whole, or not at all. Raises FailedError."""
    lines = [json.dumps(encode(part), sort_keys=True) for part in (head, fingerprint, details)]
    write_text(folder / f"{file_stem(head.node)}.{os.getpid()}{_SUFFIX}", "\n".join(lines) + "\n")


def told_by(findings: Iterable[Finding]) -> tuple[str, ...]:
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


def read_raw(path: Path) -> RawAnswer:
    """Return an answer. Raises AnswerError, whatever the bytes."""
    try:
        data = read_beginning(path, MAX_BYTES + 1)
    except OSError as error:
        raise AnswerError(f"its answer cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise AnswerError(f"its answer has more than {MAX_BYTES} bytes")
    head, *rest = data.split(b"\n")
    if len(rest) != 3 or rest[-1]:
        raise AnswerError("its answer is cut off, or not the answer of a node")
    return RawAnswer(read_part(Head, head), rest[0], rest[1])


def read_part(kind: type[T], line: bytes) -> T:
    """Return what a line of an answer holds. Raises AnswerError."""
    try:
        return decode(kind, json.loads(line))
    except RecursionError as error:
        raise AnswerError("its answer is nested too deeply") from error
    except FormError as error:
        raise AnswerError(f"its answer is not valid: {error}"[:300]) from error
    except ValueError as error:
        raise AnswerError("its answer is not JSON") from error
