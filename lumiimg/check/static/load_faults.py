"""Why a library is not loaded: users cannot read it, it is elsewhere, a loop of symlinks, or left to the host.

A process is modelled as that of a non-root user (`RootFileSystem.for_users`). A file that only its non-root owner may
read counts as present: for all others it is "Permission denied", and an older RCCL then silently uses TCP.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shlex
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from lumiimg.check.registry import SHOWN, remedies_for
from lumiimg.core.findings import Severity
from lumiimg.core.toml import package_toml
from lumiimg.elf import CACHE_PATH, PRELOAD_FILE
from lumiimg.fabric.rccl import CONF
from lumiimg.host.container_view import ENGINE_LIBRARIES
from lumiimg.host.root_queries import denied_files, loop_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.elf import LoaderConfig, LoadResult, Process
    from lumiimg.image import Obstacle, RootFileSystem
    from lumiimg.inventory.components import Inventory

_CONFIGURATION = (CACHE_PATH, PRELOAD_FILE, CONF)
"""Files without which a process continues, but behaves differently."""


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A load that fails, and what is known about what it lacks."""

    of_host: tuple[str, ...]
    """The names that it lacks, if a machine supplies all of them and nothing else is wrong."""
    is_in_image: bool
    """Whether the image has all that it lacks, in folders that the loader does not search."""
    loop: str | None
    """A sentence about a loop of symlinks."""
    details: FindingDetails
    """Details of a finding: with a cause, and with remedies that make the loader search the libraries' folders."""


def failed_load(contents: Inventory, process: Process, outcome: LoadResult, where: str) -> FailedLoad:
    """Return what is known about a load that fails; `where` is the file that is loaded."""
    elsewhere, loop = _elsewhere(contents, process, outcome), loop_of_links(contents, outcome)
    names = dict.fromkeys(missing.name for missing in outcome.missing)
    is_all = not outcome.missing_versions and _host_libraries().issuperset(name.partition(".so")[0] for name in names)
    cause = f"the image has it outside the loader's search path: {', '.join(elsewhere.values())}" if elsewhere else None
    details: FindingDetails = {
        "where": where,
        "evidence": outcome.errors,
        "chain": outcome.missing[0].chain if outcome.missing else (),
        "cause": loop or cause,
    }
    if folders := list(dict.fromkeys(map(posixpath.dirname, elsewhere.values()))):
        wanted = searched_first(":".join(folders), process.config)
        details["remedy"] = remedies_for("plugin.loads", "in-image", wanted=wanted, folders=shlex.join(folders))
    is_in_image = bool(names) and elsewhere.keys() >= names.keys()
    return FailedLoad(tuple(names) if is_all else (), is_in_image, loop, details)


@cache
def _host_libraries() -> frozenset[str]:
    return frozenset(package_toml(__package__, "host_libraries.toml")["names"])


def _elsewhere(contents: Inventory, process: Process, outcome: LoadResult) -> dict[str, str]:
    """Return the image's files for what a load lacks, by name; of several, the first that the loader would take."""
    paths = dict[str, str]()
    for path in contents.libraries_called({missing.name for missing in outcome.missing}):
        if process.would_take(path):
            paths.setdefault(posixpath.basename(path), path)
    return paths


def searched_first(folders: str, settings: LoaderConfig) -> str:
    """Return LD_LIBRARY_PATH with folders prepended: a value given to the engine replaces that of the image."""
    rest = [part for part in (settings.library_path or "").split(":") if part and part != ENGINE_LIBRARIES]
    return ":".join([folders, *rest])


def loop_of_links(contents: Inventory, outcome: LoadResult) -> str | None:
    """Return a sentence about a loop of symlinks, if one makes a load fail."""
    ends = f": {os.strerror(errno.ELOOP)}"
    names = {posixpath.basename(error.partition(":")[0]) for error in outcome.errors if error.endswith(ends)}
    loops = (loop_at(contents.image.root, path) for path in contents.libraries_called(names))
    return next(filter(None, loops), None)


# -- files that users cannot read --


def judge_closed(root: RootFileSystem, process: Process, reads: Iterable[str], found: Findings) -> None:
    """Judge whether everybody may read the files of a process, and those that its Python `reads`.

    The model of a process does not contain files that only root may read.
    """
    objects = [process.config.absolute(loaded.path) for loaded in process.objects]
    obstacles = {path: root.obstacle(path) for path in (*reads, *objects, *_CONFIGURATION)}
    closed = {path: each for path, each in obstacles.items() if each is not None and each.is_for_some}
    add_closed(closed, Severity.UNKNOWN, found)


def judge_denied(
    root: RootFileSystem, process: Process, names: Sequence[str], failing: str, errors: Sequence[str], found: Findings
) -> bool:
    """Judge whether a process lacks a library of one of some names because only root may read it.

    `failing` is a sentence about what fails because of it, `errors` are the loader's messages.
    """
    closed, cache = denied_files(root, process.files.denied, names), root.obstacle(CACHE_PATH)
    if names and not closed and cache is not None and not cache.is_for_some:
        closed[CACHE_PATH] = cache
    add_closed(closed, Severity.PROBLEM, found, failing, errors)
    return bool(closed)


def add_closed(
    closed: Mapping[str, Obstacle], severity: Severity, found: Findings, failing: str = "", errors: Sequence[str] = ()
) -> None:
    """Add the finding about files that users cannot read; `failing` is a sentence about what fails because of them."""
    if closed:
        obstacles = list(dict.fromkeys(closed.values()))
        modes = (f"{each.path}: mode {each.permissions:04o}" for each in obstacles[:SHOWN])
        found.add(
            "library.not-for-all",
            severity,
            reason="root" if severity is Severity.PROBLEM else None,
            names={"failing": failing},
            where=next(iter(closed)),
            evidence=(*errors[:SHOWN], *modes),
            remedy=remedies_for("library.not-for-all", "closed", paths=_chmod_paths([each.path for each in obstacles])),
        )


def _chmod_paths(paths: Sequence[str]) -> str:
    """Return the paths to make readable for all, quoted for a shell: of many files the folders; /etc has secrets."""
    if len(paths) > SHOWN:
        paths = [path if path.startswith("/etc/") else "/".join(path.split("/")[:2]) for path in paths]
    return " ".join(map(shlex.quote, dict.fromkeys(paths)))
