"""Try on this machine what builds need, and give the next step: build, or get what is missing."""

from __future__ import annotations

import getpass
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.build.build_host import CONTAINER, STRATEGIES, BuildHost, CapabilityTrial, program_of
from lumiimg.build.proot import built_elsewhere
from lumiimg.core.errors import ExitCode, MissingHereError
from lumiimg.core.files import free_name, temporary_folder
from lumiimg.core.findings import Advice
from lumiimg.engine.engine import Engine, available_engines
from lumiimg.engine.namespaces.processes import own_ranges
from lumiimg.engine.room import FreeSpace, room_at
from lumiimg.resolve.bootstrap import debootstrap_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.fetch.store import Sources

NO_WAY = "no way to build works here"
_REQUEST = "--base rocm-6.2.4 --add vllm"
_UNSET = Advice(next="unset LUMIIMG_ENGINE", where="to use the engines that are here")
# how a distribution installs packages, and its packages with mksquashfs, squashfuse_ll, debootstrap, newuidmap
# Source: packages.debian.org, packages.fedoraproject.org and software.opensuse.org, 2026-11-28
_PACKAGES = {
    "apt-get install --no-install-recommends": ("squashfs-tools", "squashfuse", "debootstrap", "uidmap"),
    "dnf install": ("squashfs-tools", "squashfuse", "debootstrap", "shadow-utils"),
    "zypper install": ("squashfs", "squashfuse", "debootstrap", "shadow"),
}


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """What this machine lets builds do, and which ways to build that leaves."""

    machine: BuildHost
    """The machine, with the engine that builds use."""
    trials: tuple[CapabilityTrial, ...]
    """Trials of what builds use, then of each other engine."""
    cache: Path
    room: tuple[FreeSpace, ...]
    """Free space for the cache, then for temporary files."""
    advice: Advice
    """A build if one can work; else how to get what is missing."""

    @property
    def strategies(self) -> Mapping[str, Sequence[str]]:
        """Obstacles to each way to build; empty: it works. The fastest way first."""
        return {way: self.machine.obstacles(way) for way in STRATEGIES}

    @property
    def exit_code(self) -> ExitCode:
        """Whether images can be built here."""
        return {True: ExitCode.GOOD, False: ExitCode.NO, None: ExitCode.UNDECIDED}[self.machine.builds]

    @property
    def sentence(self) -> str:
        """Whether builds work here, and in which ways."""
        if self.machine.builds is None:
            return "it is not known whether builds work here: no container was seen to start"
        usable = ", ".join(way for way, obstacles in self.strategies.items() if not obstacles)
        return f"builds work here with {usable}" if usable else NO_WAY


def examine(engines: Sequence[Engine], environment: Mapping[str, str], sources: Sources) -> DoctorResult:
    """Try everything that builds may need.

    `engines`: those that LUMIIMG_ENGINE allows; for others, only whether they start a container is reported.
    """
    machine, others, cache = BuildHost(engines, environment, sources), list[Engine](), sources.cache
    with suppress(MissingHereError):
        others = [*available_engines({name: value for name, value in environment.items() if name != "LUMIIMG_ENGINE"})]
    trials, is_other_better = [*machine.trials], False
    for engine in dict.fromkeys((*engines, *others)):
        if (by := machine.container_by(engine)) is not machine.container:
            is_other_better |= engine not in engines and bool(by.trial.works) and not machine.builds
            note = "; `check` tries it anyway, as jobs do" if engine == engines[0] else ""
            name, result = f"{CONTAINER} by {engine.name}", f"{by.trial.said}{note}"
            trials.append(CapabilityTrial(name, by.trial.works, result))
    rooms = room_at(cache), room_at(temporary_folder())
    advice = _UNSET if is_other_better else next_step(machine, environment)
    return DoctorResult(machine, tuple(trials), cache, rooms, advice)


def next_step(machine: BuildHost | None, environment: Mapping[str, str]) -> Advice:
    """Return one command to run next: a build if it can work, else one that gets what is missing.

    `machine` is None if no engine is available.
    """
    if machine is None and environment.get("LUMIIMG_ENGINE"):
        return _UNSET
    path = environment.get("PATH")
    builds, has_subids = machine is not None and machine.builds, machine is not None and machine.has_subids
    has_proot = machine is not None and machine.proot.program is not None
    # users of a cluster are not root, and its images come from registries
    is_cluster = "MODULEPATH" in environment
    is_root = machine is not None and machine.is_root
    if builds and (debootstrap_at(path) if is_root else has_proot and not is_cluster):
        return Advice(next=f"lumiimg build --recipe demo -o {free_name('demo.sif')}")
    if is_cluster and builds:
        if has_subids or has_proot:
            return Advice(next=f"lumiimg build {_REQUEST} -o {free_name('image.sif')}")
        return Advice(next=built_elsewhere(_REQUEST, environment), where="on another machine")
    command = "" if is_cluster else _installation(path) or ("" if has_subids else _ids(path))
    if not command:
        return Advice(next="lumiimg build --recipe demo --definitions defs", where="for another machine")
    if os.geteuid() == 0:
        return Advice(next=command)
    if program_of("sudo", path):
        return Advice(next=f"sudo {command}")
    return Advice(next=command, where="as root")


def _installation(path: str | None) -> str:
    """Return the command that installs what this user's builds lack here; empty if nothing is missing.

    Root needs no newuidmap, and without FUSE squashfuse_ll is useless.
    """
    lacks = (
        not program_of("mksquashfs", path),
        os.path.exists("/dev/fuse") and not program_of("squashfuse_ll", path),  # noqa: PTH110
        debootstrap_at(path) is None,
        os.geteuid() != 0 and not program_of("newuidmap", path),
    )
    for install, names in _PACKAGES.items():
        if program_of(install.partition(" ")[0], path):
            packages = [name for name, is_lacking in zip(names, lacks, strict=True) if is_lacking]
            return f"{install} {' '.join(packages)}" if packages else ""
    return ""


def _ids(path: str | None) -> str:
    """Return the command that gives this user subordinate ids; empty with ids, or no newuidmap. Source: subuid(5)."""
    if not program_of("newuidmap", path) or own_ranges("/etc/subuid"):
        return ""
    return f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {shlex.quote(getpass.getuser())}"
