"""Which subdirectories of a library directory the loader tries first, for the CPU that it runs on.

glibc 2.33 and newer: `glibc-hwcaps/<level>/`, best level first (`sysdeps/x86_64/dl-hwcaps_subdirs.c`; levels: x86-64
psABI). Up to 2.36 (and only these before 2.33) also the legacy combinations of `tls`, the platform and `x86_64`
(`elf/dl-hwcaps.c:_dl_important_hwcaps`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def levels_of_cpu(flags: Collection[str]) -> tuple[str, ...]:
    """Return the glibc-hwcaps names, best first, of an x86-64 CPU with these flags of /proc/cpuinfo."""
    have = set(flags)
    met = itertools.takewhile(lambda level: level[1] <= have, _LEVELS)
    return tuple(name for name, _ in met)[::-1]


def isa_is_enough(needed: int, levels: tuple[str, ...]) -> bool:
    """Tell whether a CPU of these levels may run code marked with a GNU_PROPERTY_X86_ISA_1_NEEDED mask."""
    return not needed & ~(1 | sum(_ISA_BITS.get(level, 0) for level in levels))


def subdirectories(levels: tuple[str, ...], machine: int, glibc_minor: int | None) -> tuple[str, ...]:
    """Return what to put between a directory and a name, each with a slash at the end; the last one is empty."""
    new = tuple(f"glibc-hwcaps/{level}/" for level in levels) if glibc_minor is None or glibc_minor >= 33 else ()
    legacy: tuple[str, ...] = ()
    if machine == _X86_64 and glibc_minor is not None and glibc_minor <= 36:
        legacy = _legacy(("tls", *(["haswell"] if "x86-64-v3" in levels else []), "x86_64"))
    return (*(new if machine == _X86_64 else ()), *legacy, "")


def _legacy(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return every combination, counting down from all parts to one, the first part being the highest digit."""
    masks = sorted(itertools.product((True, False), repeat=len(parts)), reverse=True)
    names = ("".join(f"{part}/" for part, there in zip(parts, mask, strict=True) if there) for mask in masks)
    return tuple(name for name in names if name)
