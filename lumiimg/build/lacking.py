"""What to do next on a machine, by what was tried on it: build, or get what is missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.build.capabilities import BASES_BY_DEBOOTSTRAP, BuildMachine, program_of, was_seen
from lumiimg.build.choice import builds_here
from lumiimg.findings import Advice
from lumiimg.resolve.bootstrap import BOOTSTRAPPERS, bootstrapper_at

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST_BUILD = "lumiimg build --recipe demo -o demo.sif"


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


def next_step(machine: BuildMachine, environment: Mapping[str, str]) -> Advice:
    """Return one command to go on with: a build where it can work, else what gets what is missing."""
    if builds_here(machine) and was_seen(machine.trials, BASES_BY_DEBOOTSTRAP):
        return Advice(next=_FIRST_BUILD)
    return _installation(machine, environment) or _remedy(machine) or Advice()


def _installation(machine: BuildMachine, environment: Mapping[str, str]) -> Advice | None:
    """Return how to install the packages that are missing; None where none is, or nobody here may."""
    path = environment.get("PATH")
    if "MODULEPATH" in environment:
        return None  # a cluster, whose users are not root
    manager = next((one for one in _MANAGERS if program_of(one.install.partition(" ")[0], path)), None)
    packages = _missing(machine, manager, path) if manager else []
    if manager is None or not packages:
        return None
    command = f"{manager.install} {' '.join(packages)}"
    if os.geteuid() == 0:
        return Advice(next=command)
    if program_of("sudo", path):
        return Advice(next=f"sudo {command}")
    return Advice(next=command, where="as root")


def _missing(machine: BuildMachine, manager: _Manager, path: str | None) -> list[str]:
    """Return the packages that builds by this user need here: root has all ids, and without FUSE nothing is mounted."""
    wanted: dict[str, object] = {
        manager.squashfs_tools: machine.mksquashfs and machine.unsquashfs,
        manager.squashfuse: not os.path.exists("/dev/fuse") or machine.squashfuse_ll,  # noqa: PTH110 - a device
        manager.debootstrap: any(bootstrapper_at(name, path) for name in BOOTSTRAPPERS),
        manager.newuidmap: os.geteuid() == 0 or program_of("newuidmap", path),
    }
    return [package for package, is_here in wanted.items() if not is_here]


def _remedy(machine: BuildMachine) -> Advice | None:
    """Return what to do about the first thing that does not work and should."""
    found = next((trial.remedy for trial in machine.trials if trial.remedy and not trial.works), None)
    return Advice(next=found) if found else None
