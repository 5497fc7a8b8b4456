"""Where the probe programs come from: the image, a compiler in the image, or a compiler of this machine."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.catalog.folders import shipped_layers
from lumiimg.elf.facts import read_elf
from lumiimg.elf.loader import Process
from lumiimg.elf.reader import BytesReader
from lumiimg.engine.engine import Engine, exec_words
from lumiimg.engine.process import run, which
from lumiimg.errors import MissingHereError
from lumiimg.files import read_beginning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lumiimg.check.context import ImageInContext
    from lumiimg.image import Image

PROGRAMS = ("handshake", "rcclprobe")
ALL_REDUCE, GPU_PROBE = "allreduce", "gpuprobe"
SIMULATION = "rcclsim"
"""A stand-in for HIP is in it: only for those who ask for a simulation."""
IN_IMAGE = "/opt/lumiimg/netprobe/bin"
MOUNTED = "/opt/lumiimg-probe"
"""Where a folder of this machine is mounted, if the programs are not in the image."""
_COMPILERS = ("cc", "gcc", "clang")
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/venv/bin")
_SHARED_SOURCE = "probe.h"
_COMPILE_TIMEOUT_S = 120.0
_GLIBC_FROM = "libc.so.6"
_MOST_BYTES = 64 << 20
"""Of a program of ours, compiled here."""


@dataclass(frozen=True, slots=True)
class ProbePrograms:
    """Probe programs that can be run in the container."""

    folder: str
    """In the container."""
    binds: tuple[tuple[str, str], ...]
    """Path of this machine, place in the container."""
    origin: str
    """Where they are from, for people."""

    def command(self, program: str) -> str:
        """Return the path of a program in the container."""
        return f"{self.folder}/{program}"


def find_or_compile(
    engine: Engine, context: ImageInContext, environment: Mapping[str, str], scratch: Path, programs: Sequence[str]
) -> ProbePrograms:
    """Return the programs, all of the same origin: an image whose netprobe layer is older has not all of them.

    What is compiled goes to `scratch`. `environment` is the engine's. Raises MissingHereError if there are none that
    can be relied on.

    Carried in from this machine they are sound only if the image's C library has every version that they need, which is
    read from both files; a probe that cannot start would look like a plugin that cannot.
    """
    root = context.image.root
    if all(root.is_file(f"{IN_IMAGE}/{program}") for program in programs):
        return ProbePrograms(IN_IMAGE, (), "from the image's netprobe layer")
    sources = shipped_layers() / "netprobe"
    for name in (_SHARED_SOURCE, *(f"{program}.c" for program in programs)):
        shutil.copyfile(sources / name, scratch / name)
    for compiler in filter(root.is_file, (f"{folder}/{name}" for folder in _FOLDERS for name in _COMPILERS)):
        argv = ["/bin/sh", "-c", _compile_script(compiler, MOUNTED, programs)]
        words = exec_words(engine, context.path, argv, writable=((scratch, MOUNTED),))
        if run(words, env=environment, timeout_s=_COMPILE_TIMEOUT_S).ok:
            return ProbePrograms(MOUNTED, ((str(scratch), MOUNTED),), "compiled by the image's own compiler")
    _compile_here(context.image, environment, scratch, programs)
    origin = "compiled on this machine; the image's C library has all that they need"
    return ProbePrograms(MOUNTED, ((str(scratch), MOUNTED),), origin)


def _compile_here(image: Image, environment: Mapping[str, str], scratch: Path, programs: Sequence[str]) -> None:
    compiler = next((found for name in _COMPILERS if (found := which(name, environment.get("PATH")))), None)
    if compiler is None:
        raise MissingHereError(
            "no probe programs: the image has neither the netprobe layer nor a C compiler, nor has this machine one",
            hint="add the layer (`lumiimg build … --add netprobe`), or install gcc here",
        )
    argv = ["/bin/sh", "-c", _compile_script(compiler, ".", programs)]
    done = run(argv, env=environment, cwd=scratch, timeout_s=_COMPILE_TIMEOUT_S)
    if not done.ok:
        raise MissingHereError(f"the compiler of this machine failed on the probes: {done.last_line}")
    missing = _missing_versions(image, [scratch / program for program in programs])
    if missing:
        raise MissingHereError(
            f"the probes that this machine compiles need {missing[-1]}, which the image's C library does not have",
            hint="add the netprobe layer to the image: `lumiimg build … --add netprobe`",
        )


def _compile_script(compiler: str, folder: str, programs: Sequence[str]) -> str:
    # All names are our own, without blanks; -ldl for glibc before 2.34; -rdynamic as the stand-in in rcclsim needs it.
    return " && ".join(
        f"'{compiler}' -std=c11 -O1 -rdynamic -o {folder}/{program} {folder}/{program}.c -ldl" for program in programs
    )


def _missing_versions(image: Image, programs: list[Path]) -> list[str]:
    """Return the versions of the C library that the programs need and the image does not define."""
    needed: set[str] = set()
    defined: set[str] = set()
    for program in programs:
        facts = read_elf(BytesReader(read_beginning(program, _MOST_BYTES)))
        needed.update(need.name for need in facts.version_needs if need.file == _GLIBC_FROM)
        if facts.interpreter and not defined:
            process = Process(image.root)
            process.start(facts.interpreter)
            libc = process.dlopen(_GLIBC_FROM).root if process.objects else None
            defined.update(libc.facts.version_definitions if libc else ())
    return sorted(needed - defined)
