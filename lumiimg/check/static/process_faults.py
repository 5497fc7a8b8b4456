"""What the process of RCCL and its plugin shows as a whole, and what keeps it from getting as far as its RCCL.

Mixed copies of a library, two HIP runtimes, functions taken from a library that stands before, files cut off or closed,
search paths that leak; a symbol that nothing defines; and what changes what the loader does, and is not modelled.

A search path into a folder that engines mount from the host by themselves (`mount home`, `mount tmp`, the current
folder; apptainer.conf) loads whatever lies there on the host: seen with a plugin that was built in /tmp and found a
libfabric there in preference to the image's.

A process is modelled as that of a user who is not root (`RootFileSystem.for_users`). What an owner who is not root may
read is there: whoever is not that owner gets "Permission denied", and an older RCCL then goes to TCP without a word.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.check.registry import remedies_for
from lumiimg.core.errors import BadInputError
from lumiimg.core.findings import Severity
from lumiimg.elf import (
    CACHE_PATH,
    PRELOAD_FILE,
    duplicate_libraries,
    exported_at,
    glibc_mismatch,
    interposed,
    is_glibc_part,
    undefined_in,
)
from lumiimg.fabric.path import LIBCXI, LIBFABRIC
from lumiimg.fabric.process import is_hip, users_of_hip
from lumiimg.fabric.rccl import CONF
from lumiimg.host.communicator import is_alone
from lumiimg.host.node_facts import scan_facts
from lumiimg.host.root_queries import denied_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.elf import LoadedObject, Process
    from lumiimg.host.job_process import Begun, JobProcess
    from lumiimg.image import Obstacle, RootFileSystem

_MOUNTED = ("/tmp", "/var/tmp")  # noqa: S108 - where others may put files is the point
_LIBC = "libc.so.6"
_DECIDING = frozenset({"getenv", "secure_getenv", "dlopen", "dlsym", "strcasecmp"})
"""Functions of the C library by which RCCL, its plugin and libfabric read their variables, and open libraries."""
_PREFIXES = {LIBFABRIC: "fi_", LIBCXI: "cxil_"}
"""With what the names of their functions begin."""
_SHOWN = 8
_CONFIGURATION = (CACHE_PATH, PRELOAD_FILE, CONF)
"""Files without which a process goes on, and does something else."""


def judge_process(root: RootFileSystem, process: Process, begun: Begun, found: Findings) -> None:
    """Judge as a whole what was begun, in a process that may have binds more.

    `root` is what it sees: a host's recorded files are for all.
    """
    rccl, caller = (process.find(each.path) if each else None for each in (begun.rccl, begun.caller))
    _judge_hip(process, rccl, found)
    for stem, paths in duplicate_libraries(process.objects).items():
        is_one = rccl is not None and rccl.path in paths and is_alone(process, root, rccl, caller)
        if not is_hip(paths[0]) and not is_one:
            names = {"count": str(len(paths)), "library": stem}
            found.add("fabric.mixed", Severity.UNKNOWN, names=names, evidence=paths)
    _judge_c_library(process, found)
    _judge_interposed(root, process, found)
    cut = [loaded for loaded in process.objects if loaded.facts.missing_bytes]
    if cut:
        lines = tuple(f"{loaded.path}: {loaded.facts.missing_bytes} bytes are not in the file" for loaded in cut)
        found.add("library.cut-off", Severity.PROBLEM, where=cut[0].path, evidence=lines)
    mounted = tuple(f"{folder}/" for folder in (*_MOUNTED, *scan_facts().own_folders))
    leaks = [
        f"{loaded.path}: {element}"
        for loaded in process.objects
        for element in (loaded.facts.runpath or loaded.facts.rpath or "").split(":")
        if f"{element}/".startswith(mounted)
    ]
    if leaks:
        found.add("fabric.search-path-leak", Severity.UNKNOWN, evidence=tuple(leaks[:_SHOWN]))


def judge_closed(root: RootFileSystem, process: Process, reads: Iterable[str], found: Findings) -> None:
    """Judge whether everybody may read the files of a process, and those that its Python `reads`.

    What only root may read, the model of a process does without.
    """
    objects = [process.config.absolute(loaded.path) for loaded in process.objects]
    obstacles = {path: root.obstacle(path) for path in (*reads, *objects, *_CONFIGURATION)}
    closed = {path: each for path, each in obstacles.items() if each is not None and each.is_for_some}
    add_closed(closed, Severity.UNKNOWN, found)


def judge_denied(
    root: RootFileSystem, process: Process, names: Sequence[str], failing: str, errors: Sequence[str], found: Findings
) -> bool:
    """Judge whether a process lacks what it asks for by some names because only root may read it.

    `failing` is what fails by that, in a sentence, with the loader's `errors`.
    """
    closed, cache = denied_files(root, process.files.denied, names), root.obstacle(CACHE_PATH)
    if names and not closed and cache is not None and not cache.is_for_some:
        closed[CACHE_PATH] = cache
    add_closed(closed, Severity.PROBLEM, found, failing, errors)
    return bool(closed)


def add_closed(
    closed: Mapping[str, Obstacle], severity: Severity, found: Findings, failing: str = "", errors: Sequence[str] = ()
) -> None:
    """Add the finding about files that are closed; `failing` is what fails by that, in a sentence."""
    if closed:
        obstacles = list(dict.fromkeys(closed.values()))
        modes = (f"{each.path}: mode {each.permissions:04o}" for each in obstacles[:_SHOWN])
        found.add(
            "library.not-for-all",
            severity,
            reason="root" if severity is Severity.PROBLEM else None,
            names={"failing": failing},
            where=next(iter(closed)),
            evidence=(*errors[:_SHOWN], *modes),
            remedy=remedies_for("library.not-for-all", "closed", paths=_opened([each.path for each in obstacles])),
        )


def _opened(paths: Sequence[str]) -> str:
    """Return what to open for all, for a shell: of many files their folders; but /etc has what is secret."""
    if len(paths) > _SHOWN:
        paths = [path if path.startswith("/etc/") else "/".join(path.split("/")[:2]) for path in paths]
    return " ".join(map(shlex.quote, dict.fromkeys(paths)))


def _judge_interposed(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge whether functions of the C library, libfabric and libcxi are taken from those, or from what is before."""
    libc, program = process.find(_LIBC), process.objects[0]
    for each in itertools.takewhile(lambda each: each is not libc, process.scopes.of(program) if libc else ()):
        taken_here = _DECIDING & exported_at(root, process.config.absolute(each.path))
        if taken_here and not is_glibc_part(each.facts):
            names = {"user": program.path, "function": min(taken_here), "provider": _LIBC}
            found.add("fabric.interposed", Severity.UNKNOWN, names=names, where=each.path, chain=each.chain)
            return
    for user, name in itertools.product(process.objects, _PREFIXES):
        provider, taken = process.find(name) if name in user.facts.needed else None, None
        if provider is not None:
            with contextlib.suppress(OSError, BadInputError):
                taken = interposed(process, user, provider, _PREFIXES[name])
            if taken is not None:
                first, function = taken
                names = {"user": user.path, "function": function, "provider": provider.path}
                found.add("fabric.interposed", Severity.UNKNOWN, names=names, where=first.path, chain=first.chain)
                return


def _judge_c_library(process: Process, found: Findings) -> None:
    """Judge whether the parts of the C library are of one build: they share data whose layout is private."""
    if (mixed := glibc_mismatch(process)) is not None:
        severity, reason = (Severity.PROBLEM, "fatal") if mixed.is_fatal else (Severity.UNKNOWN, None)
        found.add("loader.other-build", severity, reason=reason, where=mixed.part, evidence=mixed.evidence)


def _judge_hip(process: Process, rccl: LoadedObject | None, found: Findings) -> None:
    """Judge the HIP runtimes of a process that has an RCCL: what gives GPU memory to RCCL, or gets it, counts."""
    runtimes = [loaded for loaded in process.objects if is_hip(loaded.facts.soname or "") or is_hip(loaded.path)]
    if len(runtimes) < 2 or rccl is None:
        return
    users = users_of_hip(process, runtimes)
    own = users.get(rccl)
    partner = next((each for each in users if users[each] != own and _shares_memory(each, rccl)), None)
    severity, reason = Severity.UNKNOWN, "same" if own else "unseen"
    names = {"count": str(len(runtimes)), "rccl": rccl.path, "own": _names(own or ())}
    if own is not None and partner is not None:
        severity, reason = Severity.PROBLEM, "memory"
        names |= {"partner": partner.path, "other": _names(users[partner])}
    lines = [*(f"{each.path} uses {_names(used)}" for each, used in users.items())]
    lines += [f"{each.path} is loaded" for each in runtimes]
    where, chain = runtimes[-1].path, runtimes[-1].chain
    evidence = tuple(lines[:_SHOWN])
    found.add("fabric.two-hip", severity, reason=reason, names=names, where=where, evidence=evidence, chain=chain)


def _shares_memory(loaded: LoadedObject, rccl: LoadedObject) -> bool:
    """Whether a library is the plugin that an RCCL has opened, or calls that RCCL."""
    is_plugin = loaded.by_dlopen and loaded.requested_by is rccl
    return is_plugin or bool({rccl.name, rccl.facts.soname or rccl.name} & {*loaded.facts.needed})


def _names(runtimes: Iterable[LoadedObject]) -> str:
    return " and ".join(sorted(loaded.path for loaded in runtimes))


def judge_symbols(job: JobProcess, begun: Begun, found: Findings) -> Begun:
    """Judge the symbols of all that a process has up to its RCCL; of one that does not get there, take RCCL away.

    RCCL itself has to have all of its own: what it calls is called. Of a process of which no program is known, nothing
    but that is.
    """
    rccl = begun.rccl
    assert rccl is not None  # noqa: S101 - asked by the caller
    process = begun.process
    objects = process.objects if job.is_program else [rccl]
    opens_at_once = job.is_python and not job.is_lazy
    lazy = {loaded for loaded in objects if not (opens_at_once and loaded.load_root.by_dlopen)} - {rccl}
    if process.config.bind_now:
        lazy.clear()
    symbols = undefined_in(process, objects, lazy)
    if symbols.unread is not None and job.is_program:
        names = {"job": job.title, "why": symbols.unread}
        found.add("program.load", Severity.UNKNOWN, reason="unread", names=names, where=job.program)
    if not symbols.found or not symbols.is_sure:
        return begun
    first, lines = symbols.found[0], symbols.lines[:_SHOWN]
    where, names = first.loaded.path, {"symbol": first.symbol.name}
    if first.loaded is rccl:
        found.add("rccl.load", Severity.PROBLEM, reason="undefined", names=names, where=where, evidence=lines)
        return begun
    failing, opened = f"{job.program} cannot start", first.loaded.load_root
    if opened.by_dlopen:
        failing = job.failing if job.imports else f"{opened.path} cannot be loaded"
    details: FindingDetails = {"where": where, "evidence": lines, "chain": first.loaded.chain}
    names["failing"] = failing
    found.add("program.load", Severity.PROBLEM, reason="undefined", names=names, **details)
    return replace(begun, rccl=None)
