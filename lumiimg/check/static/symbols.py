"""Whether a process gets as far as its RCCL: a symbol that nothing defines ends a start, or an import.

And what changes what the loader does, and is not modelled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumiimg.elf.scopes import root_of
from lumiimg.elf.undefined import undefined_in
from lumiimg.findings import Code, Severity
from lumiimg.image.permissions import set_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumiimg.check.registry import Findings
    from lumiimg.host.job_process import Begun, JobProcess
    from lumiimg.image import RootFileSystem

_LAZY = "jax"
"""Whose plugin is opened with RTLD_LAZY (XLA's pjrt_api.cc); Python opens all else with RTLD_NOW (ctypes, import)."""
_SHOWN = 8


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
    first = symbols.found[0]
    if first.loaded is rccl:
        what = f"{rccl.path} cannot be used: nothing that it sees defines {first.symbol.name}"
        lines = symbols.lines[:_SHOWN]
        found.add(Code.RCCL_LOAD, Severity.PROBLEM, what, reason="undefined", where=rccl.path, evidence=lines)
        return begun
    what, opened = f"{job.program} cannot start", root_of(first.loaded)
    if opened.by_dlopen:
        what = f"`import {job.imports}` of {job.program} fails" if job.imports else f"{opened.path} cannot be loaded"
    found.add(
        Code.PROGRAM_LOAD,
        Severity.PROBLEM,
        f"{what}: nothing that {first.loaded.path} sees defines {first.symbol.name}",
        reason="undefined",
        where=first.loaded.path,
        evidence=symbols.lines[:_SHOWN],
        chain=first.loaded.chain,
    )
    return replace(begun, rccl=None)


def judge_not_modelled(
    root: RootFileSystem, doubts: Iterable[str], jobs: Iterable[JobProcess], found: Findings
) -> None:
    """Judge what is set for the loader, and programs that run with another's rights: nothing is guessed of them."""
    programs = {job.program: word for job in jobs if job.is_program and (word := set_id(root, job.program))}
    lines = [
        f"{path} is {word}: where that counts, the loader ignores LD_LIBRARY_PATH" for path, word in programs.items()
    ]
    for line in (*doubts, *lines):
        found.add(Code.LOADER_NOT_MODELLED, Severity.UNKNOWN, line)
