"""What the process of RCCL and its plugin shows as a whole: mixed copies, paths that leak, files cut off or closed.

A search path into a folder that engines mount from the host by themselves (`mount home`, `mount tmp`, the current
folder; apptainer.conf) loads whatever lies there on the host: seen with a plugin that was built in /tmp and found a
libfabric there in preference to the image's.

A file that only its owner may read can be read here: by root, and out of a squashfs file by anybody. The loader of a
user gets "Permission denied", and an older RCCL then goes to TCP without a word.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import TYPE_CHECKING

from lumiimg.check.static.hip import HIP, judge_hip
from lumiimg.elf.c_library import mixed_builds
from lumiimg.elf.objects import second_copies
from lumiimg.elf.undefined import interposed
from lumiimg.errors import BadInputError
from lumiimg.fabric.names import LIBCXI, LIBFABRIC
from lumiimg.findings import Code, Remedy, Severity
from lumiimg.host.scan_facts import known
from lumiimg.image.permissions import barred

if TYPE_CHECKING:
    from lumiimg.check.registry import Findings
    from lumiimg.elf.loader import Process
    from lumiimg.image import RootFileSystem

_MOUNTED = ("/tmp", "/var/tmp")  # noqa: S108 - where others may put files is the point
_PREFIXES = {LIBFABRIC: "fi_", LIBCXI: "cxil_"}
"""With what the names of their functions begin."""
_SHOWN = 8


def judge_process(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge the process as a whole; `root` is what it sees: a host's recorded files are for all."""
    judge_hip(process, found)
    for stem, paths in second_copies(process.objects).items():
        if HIP.fullmatch(paths[0].rpartition("/")[2]):
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
        found.add(
            Code.LIBRARY_NOT_FOR_ALL,
            Severity.UNKNOWN,
            f"not everybody can read {first}: others cannot load it",
            where=first,
            evidence=tuple(f"{path}: mode {root.stat(path).permissions:04o}" for path in obstacles),
            remedy=tuple(Remedy(f"chmod -R go+rX {shlex.quote(path)}   (in the image's %post)") for path in obstacles),
        )
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
    for user in process.objects:
        for name in _PREFIXES.keys() & {*user.facts.needed}:
            provider, taken = process.find(name), None
            if provider is not None:
                with contextlib.suppress(OSError, BadInputError):
                    taken = interposed(root, process, user, provider, _PREFIXES[name])
            if provider is not None and taken is not None:
                first, function = taken
                what = f"{user.path} takes {function} from {first.path}, and not from {provider.path}"
                found.add(Code.FABRIC_INTERPOSED, Severity.UNKNOWN, what, where=first.path, chain=first.chain)
                return


def _judge_c_library(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge whether the parts of the C library are of one build: they share data whose layout is private."""
    mixed = mixed_builds(root, process)
    if mixed is None:
        return
    if mixed.is_fatal:
        severity, what = Severity.PROBLEM, "the loader and the C library of the process are from two builds: it ends"
        what += " at its start"
    else:
        severity, what = Severity.UNKNOWN, f"{mixed.part} is not of the build of the C library of its process"
    found.add(Code.LOADER_OTHER_BUILD, severity, what, where=mixed.part, evidence=mixed.evidence)
