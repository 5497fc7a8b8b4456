"""What builds need, tried on this machine, and what follows: build, or get what is missing."""

from __future__ import annotations

import getpass
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.build.build_host import (
    BASES_BY_DEBOOTSTRAP,
    CONTAINER,
    BuildHost,
    CapabilityTrial,
    look,
    program_of,
)
from lumiimg.build.choice import builds_here, faults_of, first_that_works
from lumiimg.build.disk_space import FreeSpace, room_at
from lumiimg.engine.engine import Engine, clean_environment, engines_here
from lumiimg.engine.namespaces.ids import own_ranges
from lumiimg.errors import ExitCode, MissingHereError
from lumiimg.files import temporary_folder
from lumiimg.findings import Advice
from lumiimg.resolve.bootstrap import debootstrap_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


NO_WAY = "no way to build works here"


class _Manager(NamedTuple):
    """How a distribution installs packages, and what it calls them."""

    install: str
    squashfs_tools: str
    squashfuse: str
    debootstrap: str
    newuidmap: str


# Source: packages.debian.org, packages.fedoraproject.org and software.opensuse.org, 2026-11-28
_MANAGERS = (
    _Manager("apt-get install --no-install-recommends", "squashfs-tools", "squashfuse", "debootstrap", "uidmap"),
    _Manager("dnf install", "squashfs-tools", "squashfuse", "debootstrap", "shadow-utils"),
    _Manager("zypper install", "squashfs", "squashfuse", "debootstrap", "shadow"),
)


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """What the engine can do here, and which ways to build that leaves."""

    machine: BuildHost
    """With the engine that builds take."""
    trials: tuple[CapabilityTrial, ...]
    """In the order in which they were made."""
    cache: Path
    room: tuple[FreeSpace, ...]
    """Of the cache, then of temporary files."""
    advice: Advice
    """A build, where it can work; else what gets what is missing."""

    @property
    def strategies(self) -> Mapping[str, Sequence[str]]:
        """What stands against each way to build; empty: it works. The quickest first."""
        return faults_of(self.machine)

    @property
    def exit_code(self) -> ExitCode:
        """Whether images can be built here."""
        return {True: ExitCode.GOOD, False: ExitCode.NO, None: ExitCode.UNDECIDED}[builds_here(self.machine)]

    @property
    def sentence(self) -> str:
        """The answer, and in which ways."""
        builds = builds_here(self.machine)
        if builds is None:
            return "whether builds work here is not known, as no container was seen to start"
        if not builds:
            return NO_WAY
        usable = ", ".join(way for way, against in self.strategies.items() if not against)
        lacking = ", no ".join(trial.name for trial in self.trials if trial.remedy)
        return f"builds here by {usable}{f', but no {lacking}' if lacking else ''}"


def examine(engines: Sequence[Engine], environment: Mapping[str, str], cache: Path) -> DoctorResult:
    """Try all engines that are here again.

    `engines` are those that LUMIIMG_ENGINE allows; of another, only whether it starts a container is said.
    """
    machine, trials = _try(engines, environment)
    rooms = room_at(cache), room_at(temporary_folder())
    return DoctorResult(machine, tuple(trials), cache, rooms, next_step(machine, environment))


def _try(engines: Sequence[Engine], environment: Mapping[str, str]) -> tuple[BuildHost, list[CapabilityTrial]]:
    """Return this machine with the engine that builds take, and all trials."""
    clean, others = clean_environment(environment), list[Engine]()
    with suppress(MissingHereError):
        others = [*engines_here({name: value for name, value in environment.items() if name != "LUMIIMG_ENGINE"})]
    machines = {engine: look(engine, clean) for engine in dict.fromkeys((*engines, *others))}
    machine = first_that_works(machines[engine] for engine in engines)
    trials = [*machine.trials]
    for engine, other in machines.items():
        if other is not machine:
            trial = next(trial for trial in other.trials if trial.name == CONTAINER)
            note = "; `check` asks it anyway, as jobs do" if engine == engines[0] else ""
            trials.append(CapabilityTrial(f"{CONTAINER} by {engine.name}", trial.works, f"{trial.said}{note}"))
    return machine, trials


def next_step(machine: BuildHost | None, environment: Mapping[str, str]) -> Advice:
    """Return one command to go on with: a build where it can work, else what gets what is missing.

    `machine` is None where nothing starts a container.
    """
    builds = machine is not None and builds_here(machine)
    if machine is not None and builds and machine.has(BASES_BY_DEBOOTSTRAP):
        return Advice(next="lumiimg build --recipe demo -o demo.sif")
    path = environment.get("PATH")
    # users of a cluster are not root, and its images come from registries
    is_cluster = "MODULEPATH" in environment
    if is_cluster and builds:
        return Advice(next="lumiimg build --base rocm-6.2.4 --add vllm -o image.sif")
    command = "" if is_cluster else _installation(path) or _ids(machine, path)
    if not command:
        return Advice(next="lumiimg build --recipe demo --definitions defs", where="for another machine")
    if os.geteuid() == 0:
        return Advice(next=command)
    if program_of("sudo", path):
        return Advice(next=f"sudo {command}")
    return Advice(next=command, where="as root")


def _installation(path: str | None) -> str:
    """Return the command that installs the packages that are missing; nothing where none is."""
    manager = next((one for one in _MANAGERS if program_of(one.install.partition(" ")[0], path)), None)
    packages = _missing(manager, path) if manager else []
    return f"{manager.install} {' '.join(packages)}" if manager and packages else ""


def _missing(manager: _Manager, path: str | None) -> list[str]:
    """Return the packages that builds by this user need here: root has all ids, and without FUSE nothing is mounted."""
    wanted: dict[str, object] = {
        manager.squashfs_tools: program_of("mksquashfs", path) and program_of("unsquashfs", path),
        manager.squashfuse: not os.path.exists("/dev/fuse") or program_of("squashfuse_ll", path),  # noqa: PTH110
        manager.debootstrap: debootstrap_at(path) is not None,
        manager.newuidmap: os.geteuid() == 0 or program_of("newuidmap", path),
    }
    return [package for package, is_here in wanted.items() if not is_here]


def _ids(machine: BuildHost | None, path: str | None) -> str:
    """Return the command that gives this user ids of its own; nothing where it has some. Source: subuid(5)."""
    maps_ids = machine is not None and machine.maps_ids
    if maps_ids or not program_of("newuidmap", path) or own_ranges("/etc/subuid"):
        return ""
    return f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {shlex.quote(getpass.getuser())}"
