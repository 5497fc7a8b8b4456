"""Two HIP runtimes in one process: whether RCCL, its plugin and the framework use the same one.

Each runtime knows the GPU memory, streams and devices that were made with it, and no others. Which one a library uses,
its symbols say: the first that it sees and that has the version of what it asks for (elf/scopes.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumiimg.fabric.names import part_of
from lumiimg.fabric.path import Part
from lumiimg.findings import Code, Severity
from lumiimg.host.job_process import rccl_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.check.registry import Findings
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject

HIP = re.compile(r"libamdhip64(?:-[0-9a-f]{8})?\.so(?:\.[0-9]+)*")
"""auditwheel puts a part of the digest into the name of what it takes into a wheel."""
_SHOWN = 8


def judge_hip(process: Process, found: Findings) -> None:
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
    return HIP.fullmatch(name.rpartition("/")[2]) is not None


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
