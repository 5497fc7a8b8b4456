"""What the process of RCCL and its plugin shows as a whole, and what keeps it from getting as far as its RCCL.

Mixed copies of a library, two HIP runtimes, functions taken from a library that stands before, files cut off or closed,
search paths that leak; a symbol that nothing defines; and what changes what the loader does, and is not modelled.

A search path into a folder that engines mount from the host by themselves (`mount home`, `mount tmp`, the current
folder; apptainer.conf) loads whatever lies there on the host: seen with a plugin that was built in /tmp and found a
libfabric there in preference to the image's.

A file that only its owner may read can be read here: by root, and out of a squashfs file by anybody. The loader of a
user gets "Permission denied", and an older RCCL then goes to TCP without a word.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.elf.c_library import mixed_builds
from lumiimg.elf.objects import second_copies
from lumiimg.elf.scopes import root_of
from lumiimg.elf.undefined import interposed, undefined_in
from lumiimg.errors import BadInputError
from lumiimg.fabric.names import LIBCXI, LIBFABRIC, part_of
from lumiimg.fabric.path import Part
from lumiimg.findings import Code, Remedy, Severity
from lumiimg.host.job_process import rccl_in
from lumiimg.host.scan_facts import known
from lumiimg.image.permissions import barred, set_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lumiimg.check.registry import Findings
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject
    from lumiimg.host.job_process import Begun, JobProcess
    from lumiimg.image import RootFileSystem

_MOUNTED = ("/tmp", "/var/tmp")  # noqa: S108 - where others may put files is the point
_PREFIXES = {LIBFABRIC: "fi_", LIBCXI: "cxil_"}
"""With what the names of their functions begin."""
_SHOWN = 8
_HIP = re.compile(r"libamdhip64(?:-[0-9a-f]{8})?\.so(?:\.[0-9]+)*")
"""auditwheel puts a part of the digest into the name of what it takes into a wheel."""
_LAZY = "jax"
"""Whose plugin is opened with RTLD_LAZY (XLA's pjrt_api.cc); Python opens all else with RTLD_NOW (ctypes, import)."""


def judge_process(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge the process as a whole; `root` is what it sees: a host's recorded files are for all."""
    _judge_hip(process, found)
    for stem, paths in second_copies(process.objects).items():
        if _HIP.fullmatch(paths[0].rpartition("/")[2]):
            continue
        what = f"{len(paths)} copies of {stem} are in one process: symbols without versions may be mixed"
        found.add(Code.FABRIC_MIXED, Severity.UNKNOWN, what, evidence=paths)
    _judge_c_library(root, process, found)
    _judge_interposed(root, process, found)
    cut = [loaded for loaded in process.objects if loaded.facts.missing_bytes]
    if cut:
        what = "a library of the fabric path is cut off: it loads, and reading the missing part is fatal (SIGBUS)"
        lines = tuple(f"{loaded.path}: {loaded.facts.missing_bytes} bytes are not in the file" for loaded in cut)
        found.add(Code.LIBRARY_CUT_OFF, Severity.PROBLEM, what, where=cut[0].path, evidence=lines)
    closed = dict(barred(root, (process.settings.absolute(loaded.path) for loaded in process.objects)))
    if closed:
        first, obstacles = next(iter(closed)), list(dict.fromkeys(closed.values()))[:_SHOWN]
        what = f"not everybody can read {first}: others cannot load it"
        lines = tuple(f"{path}: mode {root.stat(path).permissions:04o}" for path in obstacles)
        ways = tuple(Remedy(f"chmod -R go+rX {shlex.quote(path)}   (in the image's %post)") for path in obstacles)
        found.add(Code.LIBRARY_NOT_FOR_ALL, Severity.UNKNOWN, what, where=first, evidence=lines, remedy=ways)
    mounted = tuple(f"{folder}/" for folder in (*_MOUNTED, *known().places.own_folders))
    leaks = [
        f"{loaded.path}: {element}"
        for loaded in process.objects
        for element in (loaded.facts.runpath or loaded.facts.rpath or "").split(":")
        if f"{element}/".startswith(mounted)
    ]
    if leaks:
        what = "a library of the fabric path searches a folder that engines mount from the host, and loads from there"
        found.add(Code.FABRIC_SEARCH_PATH_LEAK, Severity.UNKNOWN, what, evidence=tuple(leaks[:_SHOWN]))


def _judge_interposed(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge whether functions of libfabric and libcxi are taken from those, or from a library that stands before."""
    for user, name in itertools.product(process.objects, _PREFIXES):
        provider, taken = process.find(name) if name in user.facts.needed else None, None
        if provider is not None:
            with contextlib.suppress(OSError, BadInputError):
                taken = interposed(root, process, user, provider, _PREFIXES[name])
            if taken is not None:
                first, function = taken
                what = f"{user.path} takes {function} from {first.path}, and not from {provider.path}"
                found.add(Code.FABRIC_INTERPOSED, Severity.UNKNOWN, what, where=first.path, chain=first.chain)
                return


def _judge_c_library(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge whether the parts of the C library are of one build: they share data whose layout is private."""
    if (mixed := mixed_builds(root, process)) is None:
        return
    severity, what = Severity.UNKNOWN, f"{mixed.part} is not of the build of the C library of its process"
    if mixed.is_fatal:
        severity = Severity.PROBLEM
        what = "the loader and the C library of the process are from two builds: it ends at its start"
    found.add(Code.LOADER_OTHER_BUILD, severity, what, where=mixed.part, evidence=mixed.evidence)


def _judge_hip(process: Process, found: Findings) -> None:
    """Judge the HIP runtimes of a process that has an RCCL: what gives GPU memory to RCCL, or gets it, counts."""
    runtimes = [one for one in process.objects if _is_hip_name(one.facts.soname or "") or _is_hip_name(one.path)]
    openers = (loaded.requested_by for loaded in process.objects if loaded.by_dlopen and loaded.requested_by)
    rccl = next((loaded for loaded in openers if part_of(loaded.path) is Part.RCCL), None) or rccl_in(process)
    if len(runtimes) < 2 or rccl is None:
        return
    users = {loaded: _used_by(process, loaded, runtimes) for loaded in process.objects if _needs(loaded, _is_hip_name)}
    own = users.get(rccl)
    what = f"{len(runtimes)} HIP runtimes are in one process"
    partner = next((each for each in users if users[each] != own and _shares_memory(each, rccl)), None)
    if own is not None and partner is not None:
        severity = Severity.PROBLEM
        what = f"{partner.path} uses {_names(users[partner])}, and RCCL uses {_names(own)}"
        what += ": neither knows the other's GPU memory"
    else:
        severity = Severity.UNKNOWN
        what += f"; RCCL and its plugin use {_names(own)}" if own else f"; which {rccl.path} uses does not show"
    lines = tuple(_lines(users, runtimes))[:_SHOWN]
    found.add(Code.FABRIC_TWO_HIP, severity, what, where=runtimes[-1].path, evidence=lines, chain=runtimes[-1].chain)


def _shares_memory(loaded: LoadedObject, rccl: LoadedObject) -> bool:
    """Whether a library is the plugin that an RCCL has opened, or calls that RCCL."""
    is_plugin = loaded.by_dlopen and loaded.requested_by is rccl
    return is_plugin or _needs(loaded, {rccl.name, rccl.facts.soname or rccl.name}.__contains__)


def _is_hip_name(name: str) -> bool:
    return _HIP.fullmatch(name.rpartition("/")[2]) is not None


def _needs(loaded: LoadedObject, wanted: Callable[[str], bool]) -> bool:
    return any(map(wanted, loaded.facts.needed))


def _used_by(process: Process, loaded: LoadedObject, runtimes: list[LoadedObject]) -> frozenset[LoadedObject]:
    """Return the runtimes that serve a library: for each version that it asks for the first that defines it."""
    seen = [each for each in process.scopes.of(loaded) if each in runtimes]
    asked = {need.name for need in loaded.facts.version_needs if _is_hip_name(need.file)}
    firsts = (next((each for each in seen if _defines(each, version)), None) for version in asked)
    return frozenset(filter(None, firsts)) or frozenset(seen[:1])


def _defines(runtime: LoadedObject, version: str) -> bool:
    return not runtime.facts.version_definitions or version in runtime.facts.version_definitions


def _names(runtimes: frozenset[LoadedObject]) -> str:
    return " and ".join(sorted(loaded.path for loaded in runtimes))


def _lines(users: dict[LoadedObject, frozenset[LoadedObject]], runtimes: list[LoadedObject]) -> Iterator[str]:
    yield from (f"{loaded.path} uses {_names(used)}" for loaded, used in users.items())
    yield from (f"{loaded.path} is loaded" for loaded in runtimes)


def judge_symbols(root: RootFileSystem, job: JobProcess, begun: Begun, found: Findings) -> Begun:
    """Judge the symbols of all that a process has up to its RCCL; of one that does not get there, take RCCL away.

    RCCL itself has to have all of its own: what it calls is called. Of a process of which no program is known, nothing
    but that is.
    """
    rccl = begun.rccl
    assert rccl is not None  # noqa: S101 - asked by the caller
    process = begun.process
    objects = process.objects if job.is_program else [rccl]
    opens_at_once = job.is_python and job.framework != _LAZY
    lazy = {loaded for loaded in objects if not (opens_at_once and root_of(loaded).by_dlopen)} - {rccl}
    if process.settings.bind_now:
        lazy.clear()
    symbols = undefined_in(root, process, objects, lazy)
    if symbols.unread is not None and job.is_program:
        what = f"it is not known whether all symbols of {job.title} are defined: {symbols.unread}"
        found.add(Code.PROGRAM_LOAD, Severity.UNKNOWN, what, reason="unread", where=job.program)
    if not symbols.found or not symbols.is_sure:
        return begun
    first, lines = symbols.found[0], symbols.lines[:_SHOWN]
    if first.loaded is rccl:
        what = f"{rccl.path} cannot be used: nothing that it sees defines {first.symbol.name}"
        found.add(Code.RCCL_LOAD, Severity.PROBLEM, what, reason="undefined", where=rccl.path, evidence=lines)
        return begun
    what, opened = f"{job.program} cannot start", root_of(first.loaded)
    if opened.by_dlopen:
        what = f"`import {job.imports}` of {job.program} fails" if job.imports else f"{opened.path} cannot be loaded"
    what += f": nothing that {first.loaded.path} sees defines {first.symbol.name}"
    where, chain = first.loaded.path, first.loaded.chain
    found.add(Code.PROGRAM_LOAD, Severity.PROBLEM, what, reason="undefined", where=where, evidence=lines, chain=chain)
    return replace(begun, rccl=None)


def check_unmodelled(root: RootFileSystem, doubts: Iterable[str], jobs: Iterable[JobProcess], found: Findings) -> None:
    """Judge what is set for the loader, and programs that run with another's rights: nothing is guessed of them."""
    programs = {job.program: word for job in jobs if job.is_program and (word := set_id(root, job.program))}
    lines = [
        f"{path} is {word}: where that counts, the loader ignores LD_LIBRARY_PATH" for path, word in programs.items()
    ]
    for line in (*doubts, *lines):
        found.add(Code.LOADER_NOT_MODELLED, Severity.UNKNOWN, line)
