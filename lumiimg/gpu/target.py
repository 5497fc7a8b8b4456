"""What GPU code is for, and which GPU takes it.

A target is a processor and modes of it (LLVM `AMDGPUUsage.rst`, "Target ID"): `gfx90a` runs in each mode of the GPU,
`gfx90a:xnack-` only where retry of page faults is off. A code object says the same in its e_flags ("ELF Header").

The rule is that of the runtime (ROCm clr, hipamd/src/hip_code_object.cpp, isCodeObjectCompatibleWithDevice) and of LLVM
("Target Features", "Generic Processors"): the processor is the GPU's, or a generic one that lists it; a mode that the
code names is the GPU's mode. What an instruction set shares with another's decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from lumiimg.core.errors import BadInputError
from lumiimg.core.toml import package_toml

XNACK = "HSA_XNACK"
"""The variable that has page faults retried: the GPU then takes other code."""
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
"""The variable that has the runtime take a GPU for another: `9.0.10` is gfx90a (ROCr, amd_gpu_agent.cpp)."""
_OVERRIDE = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})")
_SPIRV = "amdgcnspirv"
"""Code that the runtime compiles for the GPU at hand."""
_PROCESSOR = rf"gfx[0-9][0-9a-fx]{{2,3}}|gfx[0-9]{{1,2}}(?:-[0-9])?-generic|{_SPIRV}"
_TARGET = re.compile(rf"(?P<processor>{_PROCESSOR})(?::sramecc(?P<sramecc>[+-]))?(?::xnack(?P<xnack>[+-]))?")
_NAMED = re.compile(rf"(?<![0-9a-z])(?:{_PROCESSOR})(?![0-9a-z])(?:[:_-](?:sramecc|xnack)[+-])*")
_V4 = 2
"""EI_ABIVERSION of code objects V4; older ones say less in their flags, and no ROCm since 5.0 makes them."""


class GpuCodeError(BadInputError):
    """GPU code that cannot be read, or whose sizes contradict each other or the file."""


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


Bundle = Collection[GpuTarget]
"""What one piece of code is for: objects that stand for one another, of which the runtime takes the one for its GPU."""


class GpuFit(StrEnum):
    """Whether a GPU takes code."""

    RUNS = "runs"
    """It takes it."""
    XNACK = "xnack"
    """It takes it in a process that sets HSA_XNACK=1."""
    PART = "part"
    """It takes some of it: the rest fails when it is called."""
    NO = "no"
    """It takes none of it: "no kernel image is available", "invalid device function"."""
    UNKNOWN = "unknown"
    """It cannot be known from the files."""

    @property
    def in_words(self) -> str:
        """What a table says of whether code runs."""
        return {"runs": "yes", "xnack": "with HSA_XNACK=1", "part": "in part", "unknown": "not known"}.get(self, "no")


@cache
def table() -> dict[str, Any]:
    """Return the facts of targets.toml."""
    return package_toml(__package__, "targets.toml")


def parse_target(text: str) -> GpuTarget:
    """Return the target that a target ID names. Raises GpuCodeError for anything else."""
    found = _TARGET.fullmatch(text)
    if found is None:
        raise GpuCodeError(f"not a valid target of GPU code: {text[:64]!r}")
    on = {"+": True, "-": False}
    return GpuTarget(found["processor"], on.get(found["sramecc"]), on.get(found["xnack"]))


def target_in_name(name: str) -> GpuTarget | None:
    """Return the last target in a file's name, as kernel libraries write it (`…_gfx90a-xnack-.hsaco`)."""
    names = _NAMED.findall(name)
    return parse_target(re.sub(r"[_-](?=sramecc|xnack)", ":", names[-1])) if names else None


def target_of_flags(flags: int, abi_version: int) -> GpuTarget:
    """Return what the e_flags of a code object say. Raises GpuCodeError for a processor that is not known."""
    processor = next((name for name, mach in table()["processors"].items() if mach == flags & 0xFF), None)
    if processor is None:
        raise GpuCodeError(f"a code object for a GPU that is not known here: processor {flags & 0xFF:#x}")
    if abi_version < _V4:
        raise GpuCodeError(f"a code object of version {abi_version + 2}; from 4 on they are read")
    on_off = {2: False, 3: True}
    return GpuTarget(processor, on_off.get(flags >> 10 & 3), on_off.get(flags >> 8 & 3))


def node_gpu(processor: str, xnack: str | None = None) -> GpuTarget:
    """Return a GPU as a process finds it, where HSA_XNACK is set to `xnack`, or not at all; unknown modes are None.

    Raises GpuCodeError for what is not the name of a processor.
    """
    gpu = parse_target(table()["node"].get(processor, processor))
    return replace(gpu, xnack=True) if xnack == "1" and gpu.xnack is not None else gpu


def taken_for(processor: str, override: str | None) -> str | None:
    """Return the processor that HSA_OVERRIDE_GFX_VERSION names; None for the same, or one that shares its code."""
    found = _OVERRIDE.fullmatch(override or "")
    if found is None:
        return None
    other = f"gfx{found[1]}{int(found[2]):x}{int(found[3]):x}"
    is_alike = any({processor, other} <= set(members) for members in table()["generic"].values())
    return None if other == processor or is_alike else other


def fit(bundles: Collection[Bundle], gpu: GpuTarget) -> GpuFit:
    """Return whether a GPU takes each of the bundles of a file; UNKNOWN without any."""
    found = {_fit_of_bundle(bundle, gpu) for bundle in bundles}
    if len(found) == 1:
        return found.pop()
    if GpuFit.NO in found:
        return GpuFit.PART
    return GpuFit.XNACK if found == {GpuFit.RUNS, GpuFit.XNACK} else GpuFit.UNKNOWN


def _fit_of_bundle(bundle: Bundle, gpu: GpuTarget) -> GpuFit:
    found = {_fit_of_one(target, gpu) for target in bundle}
    return next((answer for answer in (GpuFit.RUNS, GpuFit.XNACK, GpuFit.UNKNOWN) if answer in found), GpuFit.NO)


def _fit_of_one(code: GpuTarget, gpu: GpuTarget) -> GpuFit:
    if code.processor == _SPIRV:
        return GpuFit.UNKNOWN  # of what this ROCm can compile
    if code.processor != gpu.processor and not _takes_family(code.processor, gpu.processor):
        return GpuFit.NO
    if code.sramecc is not None and code.sramecc != gpu.sramecc:
        return GpuFit.UNKNOWN if gpu.sramecc is None else GpuFit.NO
    if code.xnack is not None and code.xnack != gpu.xnack:
        if gpu.xnack is None:
            return GpuFit.UNKNOWN
        return GpuFit.XNACK if code.xnack else GpuFit.NO
    return GpuFit.RUNS


def _takes_family(family: str, processor: str) -> bool:
    members = table()["generic"].get(family)
    if members is not None:
        return processor in members
    # kernel libraries name one folder for several: gfx11xx
    return "x" in family[3:] and re.fullmatch("gfx" + family[3:].replace("x", "[0-9a-f]"), processor) is not None
