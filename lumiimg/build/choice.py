"""Which engine builds on this machine, and by which way: the first that was seen to work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from lumiimg.build.build_host import CONTAINER, BuildHost, look
from lumiimg.engine.engine import clean_environment, engines_here
from lumiimg.errors import MissingHereError

Way = Literal["overlay", "sandbox"]
WAYS: tuple[Way, ...] = get_args(Way)


def host_for_builds(environment: Mapping[str, str], agent: str | None = None) -> BuildHost:
    """Return this machine with the engine that builds take; `agent` is that of their base, as for `look`.

    Raises MissingHereError where there is no engine at all.
    """
    clean = clean_environment(environment)
    return first_that_works(look(engine, clean, agent) for engine in engines_here(environment))


def first_that_works(hosts: Iterable[BuildHost]) -> BuildHost:
    """Return the first whose engine was seen to start a container; the first of all where none was.

    Unlike a check, whose evidence is what the engine of jobs does, a build may take any: the image is the same.
    """
    passed_over = []
    for host in hosts:
        if host.has(CONTAINER):
            return host
        passed_over.append(host)
    return passed_over[0]


def builds_here(machine: BuildHost) -> bool | None:
    """Return whether images can be built; None where that is not known."""
    if not any(not faults for faults in faults_of(machine).values()):
        return False
    return True if machine.has(CONTAINER) else None


def faults_of(machine: BuildHost) -> dict[str, tuple[str, ...]]:
    """Return what stands against each way to build, the quickest first."""
    no_container = () if machine.starts else ("no container starts here",)
    return {way: (*no_container, *against(machine, way)) for way in WAYS}


def choose_way(machine: BuildHost, asked: Way | None) -> tuple[Way, str]:
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


def against(machine: BuildHost, way: str) -> list[str]:
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
