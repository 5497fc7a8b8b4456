"""What the process of RCCL and its plugin tells as a whole: mixed copies, paths that leak, files that were cut off.

A search path into a folder that engines mount from the host by themselves (`mount home`, `mount tmp`, the current
folder; apptainer.conf) loads whatever lies there on the host: seen with a plugin that was built in /tmp and found a
libfabric there in preference to the image's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.elf.copies import second_copies
from lumiimg.findings import Severity
from lumiimg.host.known import known

if TYPE_CHECKING:
    from lumiimg.check.evidence import StaticResult
    from lumiimg.elf.loader import Process

_MOUNTED = ("/tmp", "/var/tmp")  # noqa: S108 - where others may put files is the point
_SHOWN = 8


def judge_process(process: Process, result: StaticResult) -> None:
    """Add what is wrong with the process as a whole."""
    copies = second_copies(process.objects)
    for stem, paths in copies.items():
        result.findings.add(
            "fabric.mixed",
            Severity.UNKNOWN,
            f"{len(paths)} copies of {stem} are in one process: symbols without versions may be mixed",
            evidence=paths,
            remedy=("keep one of them in the image, or rebuild what needs the other",),
            source="glibc elf/dl-lookup.c",
        )
    cut = [loaded for loaded in process.objects if loaded.facts.missing_bytes]
    if cut:
        result.findings.add(
            "library.cut-off",
            Severity.PROBLEM,
            "a library of the fabric path was cut off: it loads, and the process dies of SIGBUS where it is read",
            where=cut[0].path,
            evidence=tuple(f"{loaded.path}: {loaded.facts.missing_bytes} bytes are not in the file" for loaded in cut),
            remedy=("copy the file, or build the image, again",),
            source="mmap(2): a page behind the end of the file is SIGBUS",
        )
    mounted = tuple(f"{folder}/" for folder in (*_MOUNTED, *known().own_folders))
    leaks = [
        f"{loaded.path}: {element}"
        for loaded in process.objects
        for element in (loaded.facts.runpath or loaded.facts.rpath or "").split(":")
        if f"{element}/".startswith(mounted)
    ]
    if leaks:
        result.findings.add(
            "fabric.search-path-leak",
            Severity.UNKNOWN,
            "a library of the fabric path searches a folder that engines mount from the host: what is there is loaded",
            evidence=tuple(leaks[:_SHOWN]),
            remedy=("patchelf --remove-rpath FILE in the image's %post, or build it in a folder of its own",),
            source="ld.so(8), RUNPATH comes before the cache; apptainer.conf, mount home and mount tmp",
        )
