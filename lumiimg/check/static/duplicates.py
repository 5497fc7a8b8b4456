"""What the process of RCCL and its plugin tells as a whole: mixed copies, paths that leak, files cut off or closed.

A search path into a folder that engines mount from the host by themselves (`mount home`, `mount tmp`, the current
folder; apptainer.conf) loads whatever lies there on the host: seen with a plugin that was built in /tmp and found a
libfabric there in preference to the image's.

A file that only its owner may read can be read here: by root, and out of a squashfs file by anybody. The loader of a
user gets "Permission denied", and an older RCCL then goes to TCP without a word.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lumiimg.elf.objects import second_copies
from lumiimg.findings import Code, Severity
from lumiimg.host.scan_facts import known
from lumiimg.image.permissions import barred

if TYPE_CHECKING:
    from lumiimg.elf.loader import Process
    from lumiimg.findings import Findings
    from lumiimg.image import RootFileSystem

_MOUNTED = ("/tmp", "/var/tmp")  # noqa: S108 - where others may put files is the point
_SHOWN = 8


def judge_process(root: RootFileSystem, process: Process, found: Findings) -> None:
    """Judge the process as a whole; `root` is what it sees: a host's recorded files are for all."""
    copies = second_copies(process.objects)
    for stem, paths in copies.items():
        found.add(
            Code.FABRIC_MIXED,
            Severity.UNKNOWN,
            f"{len(paths)} copies of {stem} are in one process: symbols without versions may be mixed",
            evidence=paths,
            remedy=("keep one of them in the image, or rebuild what needs the other",),
            source="glibc elf/dl-lookup.c",
        )
    cut = [loaded for loaded in process.objects if loaded.facts.missing_bytes]
    if cut:
        found.add(
            Code.LIBRARY_CUT_OFF,
            Severity.PROBLEM,
            "a library of the fabric path was cut off: it loads, and the process dies of SIGBUS where it is read",
            where=cut[0].path,
            evidence=tuple(f"{loaded.path}: {loaded.facts.missing_bytes} bytes are not in the file" for loaded in cut),
            remedy=("copy the file, or build the image, again",),
            source="mmap(2): a page behind the end of the file is SIGBUS",
        )
    closed = dict(barred(root, (process.settings.absolute(loaded.path) for loaded in process.objects)))
    if closed:
        first, obstacles = next(iter(closed)), list(dict.fromkeys(closed.values()))[:_SHOWN]
        found.add(
            Code.LIBRARY_NOT_FOR_ALL,
            Severity.UNKNOWN,
            f"not everybody may read {first}: for those who may not, it cannot be loaded",
            where=first,
            evidence=tuple(f"{path}: mode {root.stat(path).permissions:04o}" for path in obstacles),
            cause="modes count in a container, too; who owns the files there, or says --fakeroot, can read them",
            remedy=tuple(f"chmod -R go+rX {shlex.quote(path)}   (in the image's %post)" for path in obstacles),
            source="open(2) EACCES; glibc elf/dl-load.c; measured with Apptainer, squashfs and folder",
        )
    mounted = tuple(f"{folder}/" for folder in (*_MOUNTED, *known().places.own_folders))
    leaks = [
        f"{loaded.path}: {element}"
        for loaded in process.objects
        for element in (loaded.facts.runpath or loaded.facts.rpath or "").split(":")
        if f"{element}/".startswith(mounted)
    ]
    if leaks:
        found.add(
            Code.FABRIC_SEARCH_PATH_LEAK,
            Severity.UNKNOWN,
            "a library of the fabric path searches a folder that engines mount from the host: what is there is loaded",
            evidence=tuple(leaks[:_SHOWN]),
            remedy=("patchelf --remove-rpath FILE in the image's %post, or build it in a folder of its own",),
            source="ld.so(8), RUNPATH comes before the cache; apptainer.conf, mount home and mount tmp",
        )
