"""One thing that a node offers otherwise than before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Subject(StrEnum):
    """What a change is about, in the order in which it bears on images."""

    GLIBC = "glibc"
    FABRIC = "fabric"
    """libfabric, its providers, libcxi and net plugins."""
    LIBRARIES = "libraries"
    """What these need."""
    OTHER = "other libraries"
    """Of what is recorded beside the fabric: xpmem, PMI, PALS, what `--include` named."""
    NICS = "NICs"
    GPU = "GPU"
    ENGINE = "engine"
    SYSTEM = "system"


class ChangeKind(StrEnum):
    """What became of it."""

    GONE = "gone"
    NEW = "new"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One change; `before` and `now` are None where there is nothing."""

    subject: Subject
    """What it is about."""
    kind: ChangeKind
    """What became of it."""
    what: str
    """A name: `libjson-c.so.3`, `driver`, `kernel`."""
    before: str | None
    """Null where there was nothing."""
    now: str | None
    """Null where there is nothing."""
    details: tuple[str, ...] = ()
    """More of it, a line each."""
    may_break: bool = False
    """Whether an image, or a list of binds, that was good before may not be any more."""
