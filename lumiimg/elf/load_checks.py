"""What glibc refuses once it has found a file: in the loader's words, and from which version on.

`_dl_map_object_from_fd` in `elf/dl-load.c`; `dl_isa_level_check` in `sysdeps/x86/dl-prop.h`. The boundaries between
versions are those of the tags of glibc's repository.
"""

from __future__ import annotations

import errno
import os

from lumiimg.elf.facts import DF_1_NOOPEN, DF_1_PIE, ET_DYN, ElfFacts
from lumiimg.elf.hwcaps import isa_mask

_X86_MACHINES = (3, 62)
_FIRST_MINOR_CHECKING_ISA = 33
_FIRST_MINOR_REFUSING_STACK = 41
_FIRST_MINOR_WITH_PAGE_WORDS = 35
_FIRST_MINOR_REFUSING_PIE = 30
FIRST_MINOR_WITH_RELR = 36


def since(minor: int | None, first: int) -> bool:
    """Return whether a rule holds that came with glibc 2.`first`; one of unknown version is taken for a new one."""
    return minor is None or minor >= first


def map_problem(facts: ElfFacts, minor: int | None, *, is_program: bool = False) -> str | None:
    """Return why a file of the right kind cannot be mapped, None where it can."""
    if facts.loads_underaligned and not since(minor, _FIRST_MINOR_WITH_PAGE_WORDS):
        return "ELF load command alignment not page-aligned"
    if facts.loads_misplaced:
        how = "page-aligned" if since(minor, _FIRST_MINOR_WITH_PAGE_WORDS) else "properly aligned"
        return f"ELF load command address/offset not {how}"
    if not facts.has_loads:
        return "object file has no loadable segments"
    if not is_program and facts.type != ET_DYN:
        return "cannot dynamically load executable"
    if facts.missing_bytes and not facts.is_dynamic:
        # ld.so says nothing: it dies of SIGBUS where it reads the dynamic segment
        return f"cut off: {facts.missing_bytes} bytes are not in the file"
    if facts.type == ET_DYN and not facts.is_dynamic:
        return "object file has no dynamic section"
    if not is_program and facts.flags_1 & DF_1_PIE and since(minor, _FIRST_MINOR_REFUSING_PIE):
        return "cannot dynamically load position-independent executable"
    return None


def open_problem(facts: ElfFacts, minor: int | None, *, stack_is_executable: bool) -> str | None:
    """Return why a dlopen of this object, or of one that needs it, is refused though the file can be mapped."""
    if facts.flags_1 & DF_1_NOOPEN:
        return "shared object cannot be dlopen()ed"
    if facts.executable_stack and not stack_is_executable and since(minor, _FIRST_MINOR_REFUSING_STACK):
        return f"cannot enable executable stack as shared object requires: {os.strerror(errno.EINVAL)}"
    return None


def run_problem(facts: ElfFacts, minor: int | None) -> str | None:
    """Return why a process dies that runs this file, though it is loaded; `ld.so --list` does not run it.

    Tried with glibc 2.31 and 2.36.
    """
    if facts.has_relr and not since(minor, FIRST_MINOR_WITH_RELR):
        return f"its DT_RELR relocations are not known to glibc 2.{minor}, which leaves them out: the process crashes"
    return None


def isa_problem(facts: ElfFacts, minor: int | None, levels: tuple[str, ...]) -> str | None:
    """Return why a CPU of these levels is not enough."""
    if facts.isa_needed is None or facts.machine not in _X86_MACHINES or not since(minor, _FIRST_MINOR_CHECKING_ISA):
        return None
    return "CPU ISA level is lower than required" if facts.isa_needed & ~isa_mask(levels) else None
