"""What the loader makes of the CPU: subdirectories that it tries first, `$PLATFORM`, which entries of a cache it takes.

glibc 2.33 and newer: `glibc-hwcaps/<level>/`, best level first (`sysdeps/x86_64/dl-hwcaps_subdirs.c`; levels: x86-64
psABI). Up to 2.36 also the legacy subdirectories (`elf/dl-hwcaps.c:_dl_important_hwcaps`), whose entries of a cache are
taken up to 2.39 (`elf/dl-cache.c`): no distribution of today fills them, so they are looked for, and not into.
Platform `haswell` is there on CPUs of Intel only (`sysdeps/x86/cpu-features.c`, 2.26 to 2.43); elsewhere the platform
is what the kernel says in AT_PLATFORM.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

_LEVELS = (
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)
ZEN3 = ("x86-64-v3", "x86-64-v2")
"""What LUMI's EPYC 7A53 and 7763 have."""

_ISA_BITS = {"x86-64-v2": 2, "x86-64-v3": 4, "x86-64-v4": 8}
_X86_64 = 62
_PLATFORM_OF_MACHINE = {62: "x86_64", 183: "aarch64", 22: "z900", 3: "i686"}
_FIRST_MINOR_WITH_LEVELS = 33
_LAST_MINOR_WITH_LEGACY_DIRECTORIES = 36
LAST_MINOR_WITH_LEGACY_ENTRIES = 39
_LEGACY = ("tls/", "haswell/", "avx512_1/", "x86_64/")
"""Each combination of these is searched; the first part of each is here."""


def levels_of_cpu(flags: Collection[str]) -> tuple[str, ...]:
    """Return the glibc-hwcaps names, best first, of an x86-64 CPU with these flags of /proc/cpuinfo."""
    have = set(flags)
    met = itertools.takewhile(lambda level: level[1] <= have, _LEVELS)
    return tuple(name for name, _ in met)[::-1]


def isa_mask(levels: tuple[str, ...]) -> int:
    """Return the GNU_PROPERTY_X86_ISA_1 bits that a CPU of these levels has."""
    return 1 | sum(_ISA_BITS.get(level, 0) for level in levels)


def platform(machine: int, levels: tuple[str, ...], *, intel: bool) -> str | None:
    """Return `$PLATFORM`; None for a machine of which it is not known."""
    if machine == _X86_64 and intel and "x86-64-v3" in levels:
        return "haswell"
    return _PLATFORM_OF_MACHINE.get(machine)


def subdirectories(levels: tuple[str, ...], machine: int, glibc_minor: int | None) -> tuple[str, ...]:
    """Return what to put between a directory and a name, each with a slash at the end; the last one is empty."""
    if machine != _X86_64:
        return ("",)
    return (*(f"glibc-hwcaps/{level}/" for level in known_levels(levels, glibc_minor)), "")


def legacy_subdirectories(machine: int, glibc_minor: int | None) -> tuple[str, ...]:
    """Return the subdirectories that such a glibc may look into first, and lumiimg does not."""
    has_them = machine == _X86_64 and glibc_minor is not None and glibc_minor <= _LAST_MINOR_WITH_LEGACY_DIRECTORIES
    return _LEGACY if has_them else ()


def known_levels(levels: tuple[str, ...], glibc_minor: int | None) -> tuple[str, ...]:
    """Return the levels that this glibc knows: none before they came."""
    return levels if glibc_minor is None or glibc_minor >= _FIRST_MINOR_WITH_LEVELS else ()
