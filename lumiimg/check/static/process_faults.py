"""Faults of the whole process of RCCL and its plugin, and what keeps it from reaching its RCCL.

Mixed copies of a library, two HIP runtimes, functions taken from a library that is searched earlier, truncated files,
leaking search paths, undefined symbols.

A search path into a folder that engines mount from the host by themselves (`mount home`, `mount tmp`, the current
folder; apptainer.conf) loads whatever is there on the host: seen with a plugin that was built in /tmp and found a
libfabric there in preference to the image's.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.core.findings import Severity
from lumiimg.elf import (
    duplicate_libraries,
    exported_at,
    find_interposer,
    find_undefined,
    glibc_mismatch,
    is_glibc_part,
)
from lumiimg.fabric.path import LIBCXI, LIBFABRIC
from lumiimg.fabric.process import is_hip, users_of_hip
from lumiimg.host.communicator import is_only_rccl
from lumiimg.host.node_facts import scan_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.check.registry import FindingDetails, Findings
    from lumiimg.elf import LoadedObject, Process
    from lumiimg.host.job_process import JobProcess, StartedProcess
    from lumiimg.image import RootFileSystem

_MOUNTED = ("/tmp", "/var/tmp")  # noqa: S108 - where others may put files is the point
_LIBC = "libc.so.6"
_DECIDING = frozenset({"getenv", "secure_getenv", "dlopen", "dlsym", "strcasecmp"})
"""Functions of the C library with which RCCL, its plugin and libfabric read their variables, and open libraries."""
_PREFIXES = {LIBFABRIC: "fi_", LIBCXI: "cxil_"}
"""Prefixes of the names of their functions."""


def judge_process(root: RootFileSystem, process: Process, begun: StartedProcess, found: Findings) -> None:
    """Judge a process as a whole; it may have binds in addition to what was begun.

    `root` is its file system, in which everyone may read the recorded files of a host.
    """
    rccl, caller = (process.find(each.path) if each else None for each in (begun.rccl, begun.caller))
    _judge_hip(process, rccl, found)
    for stem, paths in duplicate_libraries(process.objects).items():
        is_one = rccl is not None and rccl.path in paths and is_only_rccl(process, root, rccl, caller)
        if not is_hip(paths[0]) and not is_one:
            names = {"count": str(len(paths)), "library": stem}
            found.add("fabric.mixed", Severity.UNKNOWN, names=names, evidence=paths)
    _judge_c_library(process, found)
    _judge_interposed(root, process, found)
    for loaded in process.objects:
        if loaded.filter_note:
            found.add("loader.not-modelled", Severity.UNKNOWN, loaded.filter_note)
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
        found.add("fabric.search-path-leak", Severity.UNKNOWN, evidence=leaks)


def _judge_interposed(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge whether functions of the C library, libfabric and libcxi come from these, or from a library before them."""
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
                taken = find_interposer(process, user, provider, _PREFIXES[name])
            if taken is not None:
                first, function = taken
                names = {"user": user.path, "function": function, "provider": provider.path}
                found.add("fabric.interposed", Severity.UNKNOWN, names=names, where=first.path, chain=first.chain)
                return


def _judge_c_library(process: Process, found: Findings) -> None:
    """Judge whether the parts of the C library come from one build: they share data whose layout is private."""
    if (mixed := glibc_mismatch(process)) is not None:
        severity, reason = (Severity.PROBLEM, "fatal") if mixed.is_fatal else (Severity.UNKNOWN, None)
        found.add("loader.other-build", severity, reason=reason, where=mixed.part, evidence=mixed.evidence)


def _judge_hip(process: Process, rccl: LoadedObject | None, found: Findings) -> None:
    """Judge the HIP runtimes of a process with an RCCL: the libraries that share GPU memory with RCCL count."""
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
    found.add("fabric.two-hip", severity, reason=reason, names=names, where=where, evidence=lines, chain=chain)


def _shares_memory(loaded: LoadedObject, rccl: LoadedObject) -> bool:
    """Return whether a library is the plugin that an RCCL has opened, or calls that RCCL."""
    is_plugin = loaded.by_dlopen and loaded.requested_by is rccl
    return is_plugin or bool({rccl.name, rccl.facts.soname or rccl.name} & {*loaded.facts.needed})


def _names(runtimes: Iterable[LoadedObject]) -> str:
    return " and ".join(sorted(loaded.path for loaded in runtimes))


def judge_symbols(job: JobProcess, begun: StartedProcess, found: Findings) -> StartedProcess:
    """Judge the symbols of a process up to its RCCL; if it does not get that far, return it without its RCCL.

    RCCL itself needs all of its symbols, because its functions are called. If no program is known, only RCCL is judged.
    """
    rccl = begun.rccl
    assert rccl is not None  # noqa: S101 - asked by the caller
    process = begun.process
    objects = process.objects if job.is_program else [rccl]
    opens_at_once = job.is_python and not job.is_lazy
    lazy = {loaded for loaded in objects if not (opens_at_once and loaded.load_root.by_dlopen)} - {rccl}
    if process.config.bind_now:
        lazy.clear()
    symbols = find_undefined(process, objects, lazy)
    if symbols.unread is not None and job.is_program:
        names = {"job": job.title, "why": symbols.unread}
        found.add("program.load", Severity.UNKNOWN, reason="unread", names=names, where=job.program)
    if not symbols.found or not symbols.is_sure:
        return begun
    first, lines = symbols.found[0], symbols.lines
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
