"""What to do next on a machine, by what was tried on it: build, or get what is missing."""

from __future__ import annotations

import getpass
import os
import shlex
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.build.capabilities import BASES_BY_DEBOOTSTRAP, BuildMachine, program_of, was_seen
from lumiimg.build.choice import builds_here
from lumiimg.engine.namespaces.ids import own_ranges
from lumiimg.findings import Advice
from lumiimg.resolve.bootstrap import debootstrap_at

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def next_step(machine: BuildMachine | None, environment: Mapping[str, str]) -> Advice:
    """Return one command to go on with: a build where it can work, else what gets what is missing.

    `machine` is None where nothing starts a container.
    """
    builds = machine is not None and builds_here(machine)
    if machine is not None and builds and was_seen(machine.trials, BASES_BY_DEBOOTSTRAP):
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


def _ids(machine: BuildMachine | None, path: str | None) -> str:
    """Return the command that gives this user ids of its own; nothing where it has some. Source: subuid(5)."""
    maps_ids = machine is not None and machine.maps_ids
    if maps_ids or not program_of("newuidmap", path) or own_ranges("/etc/subuid"):
        return ""
    return f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {shlex.quote(getpass.getuser())}"
