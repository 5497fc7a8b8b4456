"""Which engine builds on this machine, and by which way: the first that was seen to work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from lumiimg.build.capabilities import CONTAINER, BuildMachine, was_seen
from lumiimg.build.capability_cache import look_or_recall, recall
from lumiimg.engine.engine import clean_environment, engines_here, programs_here
from lumiimg.errors import MissingHereError

Way = Literal["overlay", "sandbox"]
WAYS: tuple[Way, ...] = get_args(Way)


def machine_for_builds(environment: Mapping[str, str], cache: Path) -> BuildMachine:
    """Return this machine with the engine that builds take. Raises MissingHereError where there is none at all."""
    clean = clean_environment(environment)
    return first_that_works(look_or_recall(engine, clean, cache) for engine in engines_here(environment))


def first_that_works(machines: Iterable[BuildMachine]) -> BuildMachine:
    """Return the first whose engine was seen to start a container; the first of all where none was.

    Unlike a check, whose evidence is what the engine of jobs does, a build may take any: the image is the same.
    """
    passed_over = []
    for machine in machines:
        if was_seen(machine.trials, CONTAINER):
            return machine
        passed_over.append(machine)
    return passed_over[0]


def recall_machine(environment: Mapping[str, str], cache: Path) -> BuildMachine | None:
    """Return what `machine_for_builds` would, by what is kept alone; None where something would have to be tried."""
    clean, machines = clean_environment(environment), []
    for program in programs_here(environment):
        machine = recall(program, clean, cache)
        if machine is None or was_seen(machine.trials, CONTAINER):
            return machine
        machines.append(machine)
    return machines[0] if machines else None


def builds_here(machine: BuildMachine) -> bool | None:
    """Return whether images can be built; None where that is not known."""
    if not any(not faults for faults in faults_of(machine).values()):
        return False
    return True if was_seen(machine.trials, CONTAINER) else None


def faults_of(machine: BuildMachine) -> dict[str, tuple[str, ...]]:
    """Return what stands against each way to build, the quickest first."""
    no_container = () if machine.starts else ("no container starts here",)
    return {way: (*no_container, *against(machine, way)) for way in WAYS}


def choose_way(machine: BuildMachine, asked: Way | None) -> tuple[Way, str]:
    """Return how layers are built here, and why.

    Raises MissingHereError for a way that is asked for and not to be had.
    """
    faults = {way: against(machine, way) for way in WAYS}
    if asked is not None and faults[asked]:
        raise MissingHereError(f"--strategy {asked}: {', '.join(faults[asked])}", hint="see `lumiimg doctor`")
    if asked is not None:
        return asked, "you asked for it"
    chosen = next((way for way in WAYS if not faults[way]), None)
    if chosen is None:
        raise MissingHereError(
            "unsquashfs is not on PATH",
            hint="install squashfs-tools, or load the site's module of it (on LUMI: module load LUMI systools)",
        )
    quicker = WAYS[: WAYS.index(chosen)]
    passed = "; ".join(f"{way}: {', '.join(faults[way])}" for way in quicker)
    return chosen, passed or "the quickest"


def against(machine: BuildMachine, way: str) -> list[str]:
    """Return what stands against a way to build on this machine."""
    of_overlays: dict[str, object] = {
        "no user namespace with the user's ids": machine.maps_ids,
        "no container on an overlay in a user namespace": machine.mounts,
        "no FUSE": machine.fuse,
        "no squashfuse_ll": machine.squashfuse_ll,
    }
    # without mksquashfs lumiimg packs by itself
    wanted = of_overlays if way == "overlay" else {"no unsquashfs": machine.unsquashfs}
    return [fault for fault, has in wanted.items() if not has]
