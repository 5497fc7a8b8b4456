"""Targets of GPU code, and which GPUs accept them.

A target is a processor with modes (LLVM `AMDGPUUsage.rst`, "Target ID"): `gfx90a` runs in each mode of the GPU,
`gfx90a:xnack-` only where retry of page faults is off. A code object has the same in its e_flags ("ELF Header").

The rule is that of the runtime (ROCm clr, hipamd/src/hip_code_object.cpp, isCodeObjectCompatibleWithDevice) and of LLVM
("Target Features", "Generic Processors"): the processor is the GPU's, or a generic one that lists it; a mode that the
code names is the GPU's mode. Similarity of instruction sets does not count.
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
"""Variable that makes the GPU retry page faults: it then accepts other code."""
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
"""Variable that makes the runtime treat a GPU as another one: `9.0.10` is gfx90a (ROCr, amd_gpu_agent.cpp)."""
_OVERRIDE = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})")
_SPIRV = "amdgcnspirv"
"""Code that the runtime compiles for the GPU at hand."""
_PROCESSOR = rf"gfx[0-9][0-9a-fx]{{2,3}}|gfx[0-9]{{1,2}}(?:-[0-9])?-generic|{_SPIRV}"
_TARGET = re.compile(rf"(?P<processor>{_PROCESSOR})(?::sramecc(?P<sramecc>[+-]))?(?::xnack(?P<xnack>[+-]))?")
_NAMED = re.compile(rf"(?<![0-9a-z])(?:{_PROCESSOR})(?![0-9a-z])(?:[:_-](?:sramecc|xnack)[+-])*")
_V4 = 2
"""EI_ABIVERSION of code objects V4; older ones have less in their flags, and no ROCm since 5.0 creates them."""


class GpuCodeError(BadInputError):
    """GPU code that cannot be read, or whose sizes contradict each other or the file."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A processor and two of its modes; None for a mode that code does not depend on, or that is not known of a GPU."""

    processor: str
    """`gfx90a`, `gfx9-4-generic`; `gfx11xx` for a family, only in file names."""
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
"""Targets of one piece of code: alternative objects, of which the runtime loads the one for its GPU."""


class GpuFit(StrEnum):
    """Whether a GPU accepts code."""

    RUNS = "runs"
    """It accepts the code."""
    XNACK = "xnack"
    """It accepts the code in a process that sets HSA_XNACK=1."""
    PART = "part"
    """It accepts some of the code: the rest fails when it is called."""
    NO = "no"
    """It accepts none of the code: "no kernel image is available", "invalid device function"."""
    UNKNOWN = "unknown"
    """This cannot be known from the files."""

    @property
    def in_words(self) -> str:
        """Whether code runs, as a table shows it."""
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
    """Return the target in the e_flags of a code object. Raises GpuCodeError for an unknown processor or version."""
    processor = next((name for name, mach in table()["processors"].items() if mach == flags & 0xFF), None)
    if processor is None:
        raise GpuCodeError(f"a code object for a GPU that is not known here: processor {flags & 0xFF:#x}")
    if abi_version < _V4:
        raise GpuCodeError(f"a code object of version {abi_version + 2}; only versions from 4 on are supported")
    on_off = {2: False, 3: True}
    return GpuTarget(processor, on_off.get(flags >> 10 & 3), on_off.get(flags >> 8 & 3))


def node_gpu(processor: str, xnack: str | None = None) -> GpuTarget:
    """Return a GPU as a process finds it with HSA_XNACK set to `xnack`, or not set; unknown modes are None.

    Raises GpuCodeError for anything but the name of a processor.
    """
    gpu = parse_target(table()["node"].get(processor, processor))
    return replace(gpu, xnack=True) if xnack == "1" and gpu.xnack is not None else gpu


def overridden_processor(processor: str, override: str | None) -> str | None:
    """Return the processor that HSA_OVERRIDE_GFX_VERSION names; None for the same one, or one that shares its code."""
    found = _OVERRIDE.fullmatch(override or "")
    if found is None:
        return None
    other = f"gfx{found[1]}{int(found[2]):x}{int(found[3]):x}"
    is_alike = any({processor, other} <= set(members) for members in table()["generic"].values())
    return None if other == processor or is_alike else other


def fit(bundles: Collection[Bundle], gpu: GpuTarget) -> GpuFit:
    """Return whether a GPU accepts all bundles of a file; UNKNOWN without any."""
    found = {_fit_of_bundle(bundle, gpu) for bundle in bundles}
    if len(found) == 1:
        return found.pop()
    if GpuFit.NO in found:
        return GpuFit.PART
    return GpuFit.XNACK if found == {GpuFit.RUNS, GpuFit.XNACK} else GpuFit.UNKNOWN


def _fit_of_bundle(bundle: Bundle, gpu: GpuTarget) -> GpuFit:
    found = {_fit_of_target(target, gpu) for target in bundle}
    return next((answer for answer in (GpuFit.RUNS, GpuFit.XNACK, GpuFit.UNKNOWN) if answer in found), GpuFit.NO)


def _fit_of_target(code: GpuTarget, gpu: GpuTarget) -> GpuFit:
    if code.processor == _SPIRV:
        return GpuFit.UNKNOWN  # depends on what this ROCm can compile
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
    # kernel libraries have one folder for several processors: gfx11xx
    return "x" in family[3:] and re.fullmatch("gfx" + family[3:].replace("x", "[0-9a-f]"), processor) is not None
