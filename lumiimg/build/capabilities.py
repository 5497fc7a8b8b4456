"""What this machine lets a build do, as a value, and the refusals that follow; `capability_trials.py` finds it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lumiimg.definition.definition import DEBOOTSTRAP, Header
from lumiimg.engine import namespaces
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.process import which
from lumiimg.errors import MissingHereError
from lumiimg.findings import Severity

_OWN_AGENTS = ("docker", "oras", "localimage")
PROGRAMS = ("mksquashfs", "unsquashfs", "squashfuse_ll", "proot")
OWN_MOUNTS = "--mounts"
"""Of the program `root`: mounts, and programs that serve them, end with the command."""
PROOT_SLOWLY = {"PROOT_NO_SECCOMP": "1"}
"""Without its filter of system calls proot stops programs at every one. Source: proot(1), and kernels where the filter
lets all of them pass unseen (seen with 5.4.0 on Linux 6.18), so that a script would have this machine's files."""
CONTAINER = "a container"
BASES_BY_DEBOOTSTRAP = "bases by debootstrap"


@dataclass(frozen=True, slots=True)
class CapabilityTrial:
    """One thing that was tried."""

    name: str
    """What."""
    works: bool
    """Whether it works."""
    said: str
    """A version, or what stands against it."""
    is_sure: bool = True
    """Whether it was tried to the end: not where time or room ran out."""
    remedy: str = ""
    """What to do where it does not work and builds want it."""

    @property
    def severity(self) -> Severity:
        """How it bears on builds, which can do without some."""
        if self.works:
            return Severity.OK
        return Severity.PROBLEM if self.remedy else Severity.UNKNOWN


@dataclass(frozen=True, slots=True)
class BuildMachine:
    """What was found; a program is None where there is none."""

    engine: Engine
    """What was tried."""
    maps_ids: bool
    """Whether a build can be root, so that files keep their owners: as root, or in a user namespace with many ids."""
    mounts: bool
    """Whether an overlay can be mounted in it, and a container started there."""
    fuse: bool
    mksquashfs: Path | None
    unsquashfs: Path | None
    squashfuse_ll: Path | None
    """Not `squashfuse`, which shows each name of a file as a file of its own."""
    proot: Path | None
    """Only where it does what it is for."""
    trials: tuple[CapabilityTrial, ...]
    proot_is_slow: bool = False
    """Whether it takes `PROOT_SLOWLY`."""
    starts: bool = True
    """False where the engine was seen to start no container."""
    own_processes: bool = True
    """False where it was seen to start none that has a /proc of its own."""
    debootstraps: bool = True
    """False where debootstrap was seen to make no base."""
    bootstraps: bool = False
    """Whether debootstrap was seen to begin for lumiimg itself; else the engine has it make bases."""
    fakeroot: bool = True
    """False where the engine was seen to start containers only without `--fakeroot`; `engine` then does without it."""

    @property
    def mksquashfs_version(self) -> str:
        """As it says itself; nothing where there is none."""
        return next((trial.said for trial in self.trials if trial.name == "mksquashfs" and trial.works), "")

    def makes_base(self, agent: str) -> bool:
        """Whether lumiimg itself makes bases by such an agent here; else the engine does."""
        if self.engine.kind is EngineKind.NAMESPACES:
            return True
        return self.bootstraps if agent == DEBOOTSTRAP else self.maps_ids and agent in _OWN_AGENTS

    def as_root(self, argv: Sequence[str | Path], *, mount: bool = False) -> list[str | Path]:
        """Return `argv` to be run as root of a user namespace, where there is one; `mount`: with mounts of its own."""
        own = [OWN_MOUNTS] if mount and self.maps_ids else []
        has_to = own or (self.maps_ids and os.geteuid() != 0)
        return [*namespaces.PROGRAM, "root", *own, *argv] if has_to else list(argv)


def program_of(name: str, path: str | None) -> Path | None:
    found = which(name, path)
    return Path(found) if found else None


def was_seen(trials: Sequence[CapabilityTrial], name: str) -> bool:
    """Whether what was tried under a name works."""
    return any(trial.works for trial in trials if trial.name == name)


def require_container(machine: BuildMachine) -> None:
    """Raise MissingHereError where no script of a layer can be run."""
    if not machine.starts:
        raise _lacking(machine, CONTAINER, f"{machine.engine.name} starts no container here")


def require_bootstrap(machine: BuildMachine, base: str, header: Header) -> None:
    """Raise MissingHereError where a base with such a header cannot be built here."""
    if not machine.debootstraps and header.agent == DEBOOTSTRAP:
        raise _lacking(machine, BASES_BY_DEBOOTSTRAP, f"{base} cannot be built here")


def _lacking(machine: BuildMachine, name: str, what: str) -> MissingHereError:
    trial = next((trial for trial in machine.trials if trial.name == name), None)
    if trial is None:
        return MissingHereError(what, hint="see `lumiimg doctor`")
    return MissingHereError(f"{what}: {trial.said}", hint=trial.remedy or None)
