"""The parts of the C library in a process: all of one build, or nobody promises that they work with each other.

They share data and functions whose layout is private to a build, under one version name in all of them (GLIBC_PRIVATE):
that this is defined says nothing. libc.so.6, and ld.so from 2.33 on, say of which build they are; of the others it
shows where they lie, in the number that their files' names had up to 2.33, and in what they define.

Tried with the libraries of glibc 2.31, 2.36, 2.41 and 2.43, one of another release at a time: with another ld.so or
libc.so.6 each process ended; with another libm.so.6, libdl.so.2 or librt.so.1 some did, and some did not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumiimg.core.errors import BadInputError
from lumiimg.elf.files import RecordedElf
from lumiimg.elf.system import facts_at, glibc_build

if TYPE_CHECKING:
    from lumiimg.elf.facts import ElfFacts
    from lumiimg.elf.loader import Process
    from lumiimg.elf.objects import LoadedObject
    from lumiimg.elf.reader import FileSystem

_LIBC = "libc.so.6"
_PARTS = re.compile(
    r"ld-linux[a-z0-9-]*\.so\.[0-9]|lib(?:c|m)\.so\.6|lib(?:pthread|BrokenLocale)\.so\.[0-9]"
    r"|lib(?:dl|util|resolv|nss_(?:compat|db|dns|files|hesiod))\.so\.2|lib(?:anl|mvec|nsl|rt|thread_db)\.so\.1"
)
_PRIVATE = "GLIBC_PRIVATE"
_NUMBERED = re.compile(r"-2\.([0-9]{1,3})\.so$")
_RELEASE = re.compile(r" 2\.([0-9]{1,3})$")
_DEFINITION = re.compile(r"GLIBC_2\.([0-9]{1,3})")


def of_c_library(facts: ElfFacts) -> bool:
    """Whether a library is a part of the C library: none of those can be exchanged alone."""
    return (
        _PRIVATE in facts.version_definitions
        or any(need.name == _PRIVATE for need in facts.version_needs)
        or _PARTS.fullmatch(facts.soname or "") is not None
    )


@dataclass(frozen=True, slots=True)
class MixedBuilds:
    """Parts of two builds in one process."""

    part: str
    """Path of the one that is not of libc.so.6's build."""
    evidence: tuple[str, ...]
    """Of both, what shows it."""
    is_fatal: bool
    """Whether it is ld.so: the process ends at its start."""


def mixed_builds(fs: FileSystem, process: Process) -> MixedBuilds | None:
    """Return what of the C library in a process is of another build than its libc.so.6; None where nothing shows it."""
    libc = process.find(_LIBC)
    if libc is None:
        return None
    build = glibc_build(fs, process.settings.absolute(libc.path))
    said = f"{libc.path}: {build or 'a file of the host'}"
    loader = process.system.loader
    of_loader = glibc_build(fs, process.settings.absolute(loader))
    if build is not None and of_loader is not None and of_loader != build:
        return MixedBuilds(loader, (f"{loader}: {of_loader}", said), is_fatal=True)
    found = _RELEASE.search(build or "")
    minor = int(found[1]) if found else None
    for part in process.objects:
        if part is not libc and _PARTS.fullmatch(part.facts.soname or "") and (why := _differs(fs, part, libc, minor)):
            return MixedBuilds(part.path, (f"{part.path}: {why}", said), is_fatal=part.path == loader)
    return None


def _differs(fs: FileSystem, part: LoadedObject, libc: LoadedObject, minor: int | None) -> str | None:
    """Return what shows that a part is of another build than libc.so.6, of glibc 2.`minor`."""
    try:
        real, of_libc = fs.resolve(part.path), fs.resolve(libc.path)
        sides = {isinstance(fs.open(path), RecordedElf) for path in (part.path, libc.path)}
    except (OSError, BadInputError):
        return None
    if len(sides) > 1:
        return "the one is of the host, the other of the image"
    numbered = _NUMBERED.search(real)
    if numbered is not None and minor is not None and int(numbered[1]) != minor:
        return f"{real} is of glibc 2.{numbered[1]}"
    defined = [int(match[1]) for name in part.facts.version_definitions if (match := _DEFINITION.fullmatch(name))]
    if minor is not None and max(defined, default=0) > minor:
        return f"it defines GLIBC_2.{max(defined)}"
    # the loader has a folder of its own in some distributions, and variants for a CPU are below that of the others
    folder, own = of_libc.rpartition("/")[0], real.rpartition("/")[0]
    if (part.facts.soname or "").startswith("ld-") or f"{own}/".startswith(f"{folder}/"):
        return None
    beside = ((f"{folder}/{part.facts.soname}", part.facts), (f"{own}/{_LIBC}", libc.facts))
    for path, facts in beside:  # a copy of what lies beside the other is of the same build
        other = facts_at(fs, path)
        if other is not None and other.build_id is not None and other.build_id == facts.build_id:
            return None
    return f"it lies in {own}"
