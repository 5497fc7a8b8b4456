"""What GPU code is for: a processor, and the modes of the GPU that it was compiled for.

LLVM `AMDGPUUsage.rst`, "Target ID": a processor, then features in alphabetic order. `gfx90a` runs in each mode of the
GPU, `gfx90a:xnack-` only where retry of page faults is off. A code object says the same in the e_flags of its ELF
header ("ELF Header"): V2 and V3 know on and off alone, V4 and later any, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from lumiimg.core.toml import package_toml
from lumiimg.gpu.source import GpuCodeError

SPIRV = "amdgcnspirv"
"""Code that the runtime compiles for the GPU at hand."""
_PROCESSOR = rf"gfx[0-9][0-9a-fx]{{2,3}}|gfx[0-9]{{1,2}}(?:-[0-9])?-generic|{SPIRV}"
_TARGET = re.compile(rf"(?P<processor>{_PROCESSOR})(?::sramecc(?P<sramecc>[+-]))?(?::xnack(?P<xnack>[+-]))?")
_OLD_TARGET = re.compile(rf"(?P<processor>{_PROCESSOR})(?P<features>(?:\+(?:xnack|sram-ecc))*)")
_NAMED = re.compile(rf"(?<![0-9a-z])(?:{_PROCESSOR})(?![0-9a-z])(?:[:_-](?:sramecc|xnack)[+-])*")
_ON = {"+": True, "-": False}
_V3, _V4 = 1, 2
"""EI_ABIVERSION of code objects V3 and V4; V2 has 0."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A processor and two modes of it; None for a mode that code does not depend on, or that is not known of a GPU."""

    processor: str
    """`gfx90a`, `gfx9-4-generic`; `gfx11xx` for a family, in names of files alone."""
    sramecc: bool | None = None
    """Whether the memory has error correction."""
    xnack: bool | None = None
    """Whether a page fault is retried."""

    def __str__(self) -> str:
        return self.processor + "".join(f":{mode}" for mode in self.modes)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that it names: `sramecc+`, `xnack-`."""
        known = (("sramecc", self.sramecc), ("xnack", self.xnack))
        return tuple(f"{name}{'+' if on else '-'}" for name, on in known if on is not None)


@cache
def table() -> dict[str, Any]:
    """Return the facts of targets.toml."""
    return package_toml(__package__, "targets.toml")


def parse_target(text: str) -> GpuTarget:
    """Return the target that a target ID names. Raises GpuCodeError for anything else."""
    if found := _TARGET.fullmatch(text):
        return GpuTarget(found["processor"], _ON.get(found["sramecc"]), _ON.get(found["xnack"]))
    if found := _OLD_TARGET.fullmatch(text):
        return _of_v3(found["processor"], sramecc="sram-ecc" in found[0], xnack="xnack" in found[0])
    raise GpuCodeError(f"not a valid target of GPU code: {text[:64]!r}")


def target_in_name(name: str) -> GpuTarget | None:
    """Return the last target in a file's name, as kernel libraries write it (`…_gfx90a-xnack-.hsaco`)."""
    names = _NAMED.findall(name)
    return parse_target(re.sub(r"[_-](?=sramecc|xnack)", ":", names[-1])) if names else None


def target_of_flags(flags: int, abi_version: int) -> GpuTarget:
    """Return what the e_flags of a code object say. Raises GpuCodeError for a processor that is not known."""
    names = {mach: name for name, mach in table()["processors"].items()}
    processor = names.get(flags & 0xFF)
    if processor is None:
        raise GpuCodeError(f"a code object for a GPU that is not known here: processor {flags & 0xFF:#x}")
    if abi_version >= _V4:
        on_off = {2: False, 3: True}
        return GpuTarget(processor, on_off.get(flags >> 10 & 3), on_off.get(flags >> 8 & 3))
    if abi_version == _V3:
        return _of_v3(processor, sramecc=bool(flags & 0x200), xnack=bool(flags & 0x100))
    raise GpuCodeError("a code object of version 2, which no ROCm since 4.0 loads")


def _of_v3(processor: str, *, sramecc: bool, xnack: bool) -> GpuTarget:
    """Return the target of a code object V3, in which a mode that is not named is off where the processor has it."""
    has = table()["modes"]
    return GpuTarget(
        processor, sramecc if processor in has["sramecc"] else None, xnack if processor in has["xnack"] else None
    )
