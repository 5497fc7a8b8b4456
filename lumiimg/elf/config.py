"""What reaches the loader from outside the root file system: environment, kernel, and what it makes of the CPU.

glibc 2.33 and newer tries `glibc-hwcaps/<level>/` below a folder first, best level first
(`sysdeps/x86_64/dl-hwcaps_subdirs.c`; levels: x86-64 psABI). Up to 2.36 also the legacy subdirectories
(`elf/dl-hwcaps.c:_dl_important_hwcaps`): no distribution of today fills them, so they are looked for, and not into.
Platform `haswell` is there on CPUs of Intel only (`sysdeps/x86/cpu-features.c`, 2.26 to 2.43); elsewhere the platform
is what the kernel says in AT_PLATFORM.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

X86_64 = 62
_LEVELS = (
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)
_ISA_BITS = {"x86-64-v2": 2, "x86-64-v3": 4, "x86-64-v4": 8}
_PLATFORM_OF_MACHINE = {X86_64: "x86_64", 183: "aarch64"}
_LEGACY = ("tls/", "haswell/", "avx512_1/", "x86_64/")
"""Each combination of these is searched; the first part of each is here."""


def since(minor: int | None, first: int) -> bool:
    """Return whether a rule holds that came with glibc 2.`first`; one of unknown version is taken for a new one."""
    return minor is None or minor >= first


@dataclass(frozen=True, slots=True)
class LoaderConfig:
    """What reaches the loader from outside the root file system."""

    library_path: str | None = None
    """LD_LIBRARY_PATH as the process gets it."""
    preload: tuple[str, ...] = ()
    """Names in LD_PRELOAD."""
    cwd: str = "/"
    hwcaps: tuple[str, ...] = ()
    """glibc-hwcaps levels of the CPU, best first."""
    intel: bool = False
    """Whether the CPU is one of Intel: only then is `$PLATFORM` `haswell`."""
    linux: tuple[int, int, int] | None = None
    """The running kernel; None for one that is newer than any file asks for."""
    bind_now: bool = False
    """Whether LD_BIND_NOW is set: then calls are bound at the load, too."""

    def absolute(self, path: str) -> str:
        """Return a path as the kernel takes it, from the current directory."""
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"

    def levels(self, glibc_minor: int | None) -> tuple[str, ...]:
        """Return the levels that this glibc knows: none before they came."""
        return self.hwcaps if since(glibc_minor, 33) else ()

    def subdirectories(self, machine: int, glibc_minor: int | None) -> tuple[str, ...]:
        """Return what to put between a directory and a name, each with a slash at the end; the last one is empty."""
        levels = self.levels(glibc_minor) if machine == X86_64 else ()
        return (*(f"glibc-hwcaps/{level}/" for level in levels), "")

    @property
    def isa(self) -> int:
        """The GNU_PROPERTY_X86_ISA_1 bits that the CPU has."""
        return 1 | sum(_ISA_BITS.get(level, 0) for level in self.hwcaps)

    def platform(self, machine: int) -> str | None:
        """Return `$PLATFORM`; None for a machine of which it is not known."""
        if machine == X86_64 and self.intel and "x86-64-v3" in self.hwcaps:
            return "haswell"
        return _PLATFORM_OF_MACHINE.get(machine)


def legacy_subdirectories(machine: int, glibc_minor: int | None) -> tuple[str, ...]:
    """Return the subdirectories that such a glibc may look into first, and lumiimg does not."""
    return _LEGACY if machine == X86_64 and not since(glibc_minor, 37) else ()


def cpu_levels(flags: Collection[str]) -> tuple[str, ...]:
    """Return the glibc-hwcaps names, best first, of an x86-64 CPU with these flags of /proc/cpuinfo."""
    have = set(flags)
    met = itertools.takewhile(lambda level: level[1] <= have, _LEVELS)
    return tuple(name for name, _ in met)[::-1]
