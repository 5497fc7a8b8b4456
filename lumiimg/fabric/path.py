"""The fabric path as a value: RCCL → net plugin → libfabric → cxi provider → libcxi → NIC, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumiimg.core.findings import Level, Remedy, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_REACHED = "not reached: the path ends before it"
"""What is said of a step behind a broken one."""


class Fabric(StrEnum):
    """Where the libraries of the fast network come from: libfabric with the cxi provider, and libcxi."""

    HOST = "host"
    """They are bound from the machine when the image runs."""
    BUNDLED = "bundled"
    """The image has its own, and needs no library of the machine."""
    NONE = "none"
    """From nowhere: no machine is named, it has none, or neither way loads."""


@dataclass(frozen=True, slots=True)
class FabricPath:
    """The files of the path and what they say, as far as it is known; None where it is not."""

    rccl: str | None = None
    """Path of the RCCL that a program gets, in the image."""
    rccl_version: str | None = None
    """As its own bytes say: `2.22.3`."""
    plugin_files: tuple[str, ...] = ()
    """Names that this RCCL gives to dlopen."""
    named_by: str | None = None
    """NCCL_NET_PLUGIN, where it is set."""
    accepts: tuple[int, ...] = ()
    """Versions of the net API that this RCCL takes, in its order."""
    plugin: str | None = None
    """Path of the net plugin that RCCL opens, in the image."""
    plugin_api: int | None = None
    """Version of the net API that both speak."""
    libfabric: str | None = None
    """Path of the libfabric that the plugin gets."""
    libcxi: str | None = None
    """Path of the libcxi in that process."""
    provider: str | None = None
    """Of libfabric: `cxi`."""

    @property
    def line(self) -> str:
        """The path in one line."""
        api = f" (API v{self.plugin_api})" if self.plugin_api else ""
        parts = [
            f"RCCL {self.rccl_version or '?'}" if self.rccl else "no RCCL",
            f"{self.plugin}{api}" if self.plugin else "no plugin",
        ]
        if self.plugin:
            parts += [self.libfabric or "libfabric: none in the image", f"provider {self.provider or 'not known yet'}"]
        return " -> ".join(parts)


class Part(StrEnum):
    """A step of the path, in its order."""

    RCCL = "RCCL"
    PLUGIN = "net plugin"
    LIBFABRIC = "libfabric"
    PROVIDER = "cxi provider"
    LIBCXI = "libcxi"
    NIC = "Slingshot NIC"


class Side(StrEnum):
    """Whose file it is."""

    IMAGE = "image"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one file of the path comes from."""

    side: Side
    host_path: str | None = None
    """Where the file lies on the host; None where it is the image's, or not known."""
    offers: str | None = None
    """The newest version of its own interface that the file defines: `FABRIC_1.7`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the path, and the evidence for or against it."""

    part: Part
    """Which step it is."""
    severity: Severity
    """What is known of it: `ok`, there is evidence for it; `problem`, the path ends in front of it; else `unknown`."""
    why: str
    """The evidence, or why there is none."""
    level: Level | None = None
    """Level of the evidence; None where there is none."""
    file: str | None = None
    """The path in the container; on the host where the file is known to come from there."""
    side: Side | None = None
    """Whose file it is; None where that is not known."""
    version: str | None = None
    """Of the file, as it says itself; None where it does not."""
    interface: str | None = None
    """`net API v8`, `FABRIC_1.7`."""
    remedy: tuple[Remedy, ...] = ()
    """What to do where it is broken."""
    name: str | None = None
    """What the step of another fabric is called; None where it has the name of its part."""

    @property
    def title(self) -> str:
        """What the step is called."""
        return self.name or self.part.value


def path_sentence(steps: Sequence[Step]) -> str:
    """Return what the steps of a path come to, for a person."""
    broken = [step for step in steps if step.severity is Severity.PROBLEM]
    unknown = [step.title for step in steps if step.severity is Severity.UNKNOWN]
    if len(unknown) == len(steps):
        return "None of its steps was seen."
    if broken:
        return f"The path is broken at {broken[0].title}, step {list(steps).index(broken[0]) + 1} of {len(steps)}."
    if unknown:
        return f"No step is known to be broken; not known: {', '.join(unknown)}."
    level = min((step.level for step in steps if step.level), key=list(Level).index, default=Level.STATIC)
    return f"Every step holds, each with evidence of at least level {level.value}."
