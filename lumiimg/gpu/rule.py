"""Which GPU takes which code.

The rule of the runtime (ROCm clr, hipamd/src/hip_code_object.cpp, isCodeObjectCompatibleWithDevice) and of LLVM
(AMDGPUUsage.rst, "Target Features", "Generic Processors"): the processor is the GPU's, or a generic one that lists it;
a mode that the code names is the GPU's mode. What an instruction set shares with another's decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum

from lumiimg.gpu.target import SPIRV, GpuTarget, parse_target, table

XNACK = "HSA_XNACK"
"""The variable that has page faults retried: the GPU then takes other code."""
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
"""The variable that has the runtime take a GPU for another: `9.0.10` is gfx90a (ROCr, amd_gpu_agent.cpp)."""
_OVERRIDE = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})")


class CodeForm(StrEnum):
    """How GPU code lies in an image."""

    BUNDLES = "bundles"
    """In a program or library, which needs each of its bundles."""
    KERNELS = "kernels"
    """In files of a folder, of which a library opens those of the GPU at hand."""


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
    """It cannot be said from the files."""

    @property
    def in_words(self) -> str:
        """What a table says of whether code runs."""
        return _WORDS[self]


_WORDS = {
    GpuFit.RUNS: "yes",
    GpuFit.XNACK: "with HSA_XNACK=1",
    GpuFit.PART: "in part",
    GpuFit.NO: "no",
    GpuFit.UNKNOWN: "not known",
}


def node_gpu(processor: str) -> GpuTarget:
    """Return a GPU as a process finds it that sets nothing; modes that are not known are None.

    Raises GpuCodeError for what is not the name of a processor.
    """
    return parse_target(table()["node"].get(processor, processor))


def gpu_of(processor: str, xnack: str | None) -> GpuTarget:
    """Return a GPU as the process of a job finds it, where HSA_XNACK is set to `xnack`, or not at all."""
    gpu = node_gpu(processor)
    return replace(gpu, xnack=True) if xnack == "1" and gpu.xnack is not None else gpu


def taken_for(processor: str, override: str | None) -> str | None:
    """Return the processor that HSA_OVERRIDE_GFX_VERSION names; None for the same, or one that shares its code."""
    found = _OVERRIDE.fullmatch(override or "")
    if found is None:
        return None
    other = f"gfx{found[1]}{int(found[2]):x}{int(found[3]):x}"
    is_alike = any({processor, other} <= set(members) for members in table()["generic"].values())
    return None if other == processor or is_alike else other


def fit(code: GpuTarget, gpu: GpuTarget) -> GpuFit:
    """Return whether a GPU takes code for a target."""
    if code.processor == SPIRV:
        return GpuFit.UNKNOWN  # as far as the ROCm at hand can compile it
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


def fit_of_any(targets: Iterable[GpuTarget], gpu: GpuTarget) -> GpuFit:
    """Return whether a GPU takes any of several objects that stand for one another; with none of them, NO."""
    found = {fit(target, gpu) for target in targets}
    return next((answer for answer in (GpuFit.RUNS, GpuFit.XNACK, GpuFit.UNKNOWN) if answer in found), GpuFit.NO)


def fit_of_all(bundles: Collection[Collection[GpuTarget]], gpu: GpuTarget) -> GpuFit:
    """Return whether a GPU takes each of the bundles of a file; UNKNOWN without any."""
    found = {fit_of_any(targets, gpu) for targets in bundles}
    if len(found) == 1:
        return found.pop()
    if GpuFit.NO in found:
        return GpuFit.PART
    return GpuFit.XNACK if found == {GpuFit.RUNS, GpuFit.XNACK} else GpuFit.UNKNOWN
