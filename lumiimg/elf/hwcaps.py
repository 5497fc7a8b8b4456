"""What the loader makes of the CPU: subdirectories that it tries first, `$PLATFORM`, which entries of a cache it takes.

glibc 2.33 and newer: `glibc-hwcaps/<level>/`, best level first (`sysdeps/x86_64/dl-hwcaps_subdirs.c`; levels: x86-64
psABI). Up to 2.36 (and only these before 2.33) also the legacy combinations of `tls`, the platform and the hwcap names
(`elf/dl-hwcaps.c:_dl_important_hwcaps`); entries of a cache for them are taken up to 2.39 (`elf/dl-cache.c`). Platform
`haswell` and hwcap `avx512_1` are there on CPUs of Intel only (`sysdeps/x86/cpu-features.c`, 2.26 to 2.43); elsewhere
the platform is what the kernel says in AT_PLATFORM.
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
_LAST_MINOR_WITH_LEGACY_ENTRIES = 39

# bits of `hwcap` in an entry of the cache: sysdeps/x86/dl-hwcap.h, _DL_FIRST_PLATFORM 48, _DL_HWCAP_TLS_MASK
_HWCAP_X86_64, _HWCAP_AVX512_1 = 1 << 1, 1 << 2
_HWCAP_HASWELL, _HWCAP_TLS = 1 << 50, 1 << 63


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


def subdirectories(
    levels: tuple[str, ...], machine: int, glibc_minor: int | None, *, intel: bool = False
) -> tuple[str, ...]:
    """Return what to put between a directory and a name, each with a slash at the end; the last one is empty."""
    if machine != _X86_64:
        return ("",)
    new = known_levels(levels, glibc_minor)
    legacy: tuple[str, ...] = ()
    if glibc_minor is not None and glibc_minor <= _LAST_MINOR_WITH_LEGACY_DIRECTORIES:
        own = platform(machine, levels, intel=intel) or ""
        legacy = _legacy(("tls", own, *(["avx512_1"] if _has_avx512_1(levels, intel=intel) else []), "x86_64"))
    return (*(f"glibc-hwcaps/{level}/" for level in new), *legacy, "")


def known_levels(levels: tuple[str, ...], glibc_minor: int | None) -> tuple[str, ...]:
    """Return the levels that this glibc knows: none before they came."""
    return levels if glibc_minor is None or glibc_minor >= _FIRST_MINOR_WITH_LEVELS else ()


def legacy_mask(levels: tuple[str, ...], machine: int, glibc_minor: int | None, *, intel: bool) -> int:
    """Return the bits that `hwcap` of a legacy entry in the cache may have; 0 where only plain entries are taken."""
    if machine != _X86_64 or glibc_minor is None or glibc_minor > _LAST_MINOR_WITH_LEGACY_ENTRIES:
        return 0
    mask = _HWCAP_X86_64 | _HWCAP_TLS
    if platform(machine, levels, intel=intel) == "haswell":
        mask |= _HWCAP_HASWELL
    return mask | (_HWCAP_AVX512_1 if _has_avx512_1(levels, intel=intel) else 0)


def _has_avx512_1(levels: tuple[str, ...], *, intel: bool) -> bool:
    return intel and "x86-64-v4" in levels


def _legacy(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return every combination, counting down from all parts to one, the first part being the highest digit.

    Where the platform is called like the hwcap (`tls/x86_64/x86_64/`), some come twice; the second changes nothing.
    """
    masks = sorted(itertools.product((True, False), repeat=len(parts)), reverse=True)
    names = ("".join(f"{part}/" for part, there in zip(parts, mask, strict=True) if there) for mask in masks)
    return tuple(dict.fromkeys(name for name in names if name))
