"""What glibc rejects after it has found a file: the loader's messages, and the versions in which they apply.

`_dl_map_object_from_fd` in `elf/dl-load.c`; `dl_isa_level_check` in `sysdeps/x86/dl-prop.h`. The version boundaries are
those of the tags in glibc's repository.

Versions (`elf/dl-version.c`): every need of every object is compared, by name, with the definitions of the library
loaded for it, before any of its code runs. A defined version name proves nothing about its symbols. The library is the
one requested by the name in the need, or the one with that soname if some object requested it; a soname that no object
requested finds nothing (`find_needed`, `_dl_name_match_p`), and ld.so fails an assertion.

A library opened with dlopen may find no space in the static TLS block. The block has exactly the size of what is loaded
at the start plus a surplus: 1664 bytes from 2.26 to 2.43, with default tunables. A library that accesses its
thread-local data by a fixed offset (DF_STATIC_TLS) needs its block in that surplus; others get theirs from malloc.
glibc: `_dl_determine_tlsoffset` in `elf/dl-tls.c`, `_dl_try_allocate_static_tls` in `elf/dl-reloc.c`, for machines with
the thread pointer after the blocks (x86). Since 2.41 the block includes the rseq area. Not modelled: a library without
its own TLS that uses the data of another, and the blocks of TLS descriptors (2.32 and newer).
"""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import TYPE_CHECKING

from lumiimg.elf.facts import DF_1_NOOPEN, DF_1_PIE, DF_STATIC_TLS, ElfFacts
from lumiimg.elf.glibc import X86_64, since
from lumiimg.elf.objects import LoadedObject, LoadResult, MissingVersion
from lumiimg.elf.segments import ET_DYN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_FIRST_MINOR_REFUSING_PIE = 30
_FIRST_MINOR_CHECKING_ISA = 33
_FIRST_MINOR_WITH_PAGE_WORDS = 35
FIRST_MINOR_WITH_RELR = 36
_FIRST_MINOR_REFUSING_STACK = 41
_FIRST_MINOR_WITH_RSEQ_BLOCK = 41
_LIBC_PREFIX, _RELR_VERSION = "libc.so.", "GLIBC_ABI_DT_RELR"
_SURPLUS_BYTES = 1664
_TCB_ALIGN = 64
_RSEQ_BYTES = 32


def map_problem(facts: ElfFacts, minor: int | None, *, is_program: bool = False) -> str | None:
    """Return why a file of the right kind cannot be mapped; None if it can."""
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
        # ld.so prints nothing: it dies of SIGBUS when it reads the dynamic segment
        return f"cut off: {facts.missing_bytes} bytes are not in the file"
    if facts.type == ET_DYN and not facts.is_dynamic:
        return "object file has no dynamic section"
    if not is_program and facts.flags_1 & DF_1_PIE and since(minor, _FIRST_MINOR_REFUSING_PIE):
        return "cannot dynamically load position-independent executable"
    return None


def open_problem(facts: ElfFacts, minor: int | None, *, stack_is_executable: bool) -> str | None:
    """Return why a dlopen of this object, or of one that needs it, fails although the file can be mapped."""
    if facts.flags_1 & DF_1_NOOPEN:
        return "shared object cannot be dlopen()ed"
    if facts.executable_stack and not stack_is_executable and since(minor, _FIRST_MINOR_REFUSING_STACK):
        return f"cannot enable executable stack as shared object requires: {os.strerror(errno.EINVAL)}"
    return None


def run_problem(facts: ElfFacts, minor: int | None) -> str | None:
    """Return why a process that runs this file dies although it is loaded; `ld.so --list` does not run it.

    Tried with glibc 2.31 and 2.36.
    """
    if facts.has_relr and not since(minor, FIRST_MINOR_WITH_RELR):
        return f"glibc 2.{minor} does not support its DT_RELR relocations and skips them: the process crashes"
    return None


def isa_problem(facts: ElfFacts, minor: int | None, isa: int) -> str | None:
    """Return why a CPU with these GNU_PROPERTY_X86_ISA_1 bits is not sufficient; None if it is."""
    if facts.isa_needed is None or facts.machine != X86_64 or not since(minor, _FIRST_MINOR_CHECKING_ISA):
        return None
    return "CPU ISA level is lower than required" if facts.isa_needed & ~isa else None


def check_versions(
    objects: Iterable[LoadedObject],
    provider_of: Callable[[str], LoadedObject | None],
    glibc_minor: int | None,
    result: LoadResult,
) -> None:
    """Add the loader's errors and warnings about the versions of some objects to the result."""
    definitions_of = cache(lambda provider: frozenset(provider.facts.version_definitions))
    for loaded in objects:
        for need in loaded.facts.version_needs:
            provider = provider_of(need.file)
            if provider is None:
                if need.file not in result.missing_names:
                    # the name was removed from DT_NEEDED after linking, as `patchelf --remove-needed` does
                    what = f"has version needs for {need.file} without DT_NEEDED: ld.so fails an assertion"
                    result.errors.append(f"{loaded.path}: {what}")
                continue
            defined, by = definitions_of(provider), f"(required by {loaded.path})"
            if need.name in defined:
                continue
            if not defined:
                words = f"no version information available {by}"
            elif need.weak:
                words = f"weak version `{need.name}' not found {by}"
            else:
                missing = MissingVersion(provider.path, need.name, loaded.path)
                result.missing_versions.append(missing)
                result.errors.append(str(missing))
                continue
            result.warnings.append(f"{provider.path}: {words}")
        if _lacks_relr(loaded.facts, glibc_minor):
            result.errors.append(f"{loaded.path}: DT_RELR without {_RELR_VERSION} dependency")


def _lacks_relr(facts: ElfFacts, glibc_minor: int | None) -> bool:
    """Return whether a file has DT_RELR but was not linked to require a C library that supports it."""
    if not facts.has_relr or not since(glibc_minor, FIRST_MINOR_WITH_RELR):
        return False
    needs_libc = any(name.startswith(_LIBC_PREFIX) for name in facts.needed)
    return bool(facts.version_needs) and needs_libc and all(need.name != _RELR_VERSION for need in facts.version_needs)


class StaticTls:
    """The static TLS block of one process."""

    def __init__(self, machine: int, at_start: Iterable[ElfFacts], glibc_minor: int | None) -> None:
        self._is_known = machine == X86_64
        self._align = _TCB_ALIGN
        self._used = 0
        free_top = free_bottom = 0
        for facts in at_start:
            if not facts.tls_size_bytes:
                continue
            align = facts.tls_align or 1
            first_byte = -facts.tls_skew_bytes & (align - 1)
            self._align = max(self._align, align)
            # a small block may fit into the gap left by the alignment of an earlier one
            if free_bottom - free_top >= facts.tls_size_bytes:
                offset = _up(free_top + facts.tls_size_bytes - first_byte, align) + first_byte
                if offset <= free_bottom:
                    free_top = offset
                    continue
            offset = _up(self._used + facts.tls_size_bytes - first_byte, align) + first_byte
            if offset > self._used + facts.tls_size_bytes + (free_bottom - free_top):
                free_top, free_bottom = self._used, offset - facts.tls_size_bytes
            self._used = offset
        if since(glibc_minor, _FIRST_MINOR_WITH_RSEQ_BLOCK):
            self._used = _up(self._used, _RSEQ_BYTES) + _RSEQ_BYTES
        self._size = _up(self._used + _SURPLUS_BYTES, self._align)

    @property
    def free_bytes(self) -> int:
        """Space left for libraries opened with dlopen."""
        return self._size - self._used

    def allocate(self, facts: ElfFacts) -> bool:
        """Allocate the block of a library opened with dlopen; return False if there is not enough space."""
        if not self._is_known or not facts.flags & DF_STATIC_TLS or not facts.tls_size_bytes:
            return True
        align = facts.tls_align or 1
        block = facts.tls_size_bytes + facts.tls_skew_bytes
        if align > self._align or self.free_bytes < block:
            return False
        free = self.free_bytes
        self._used += free - (free - block) // align * align - facts.tls_skew_bytes
        return True


def _up(value: int, align: int) -> int:
    return -(-value // align) * align
