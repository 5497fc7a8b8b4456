"""Whether a machine's GPU accepts the code in an image, component by component, and the consequences if it does not.

If a component is in several places, those loaded by a job's process count; if none is known to be loaded, any of them
may be.
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from lumiimg.gpu import (
    OVERRIDE,
    XNACK,
    GpuCodeError,
    GpuFit,
    GpuTarget,
    component_of,
    fit,
    kernel_file,
    node_gpu,
    overridden_processor,
    role_of,
)
from lumiimg.image import ImageError
from lumiimg.inventory.gpu_code import CodeForm

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from lumiimg.inventory.components import Inventory
    from lumiimg.inventory.gpu_code import CodeFile, GpuCode

_WORST_FIRST = (GpuFit.NO, GpuFit.UNKNOWN, GpuFit.XNACK, GpuFit.PART, GpuFit.RUNS)
_NO_CODE = "no GPU code was found in it"
_MIN_ACCEPTED_SHARE = 0.5
"""Minimum share of accepted bundles in a component every job uses: some in torch and vLLM are only for newer GPUs."""
_WHICH = "there are several, for different GPUs; which one a job loads is not known"


@dataclass(frozen=True, slots=True)
class ComponentFit:
    """One component, and whether the GPU accepts its code."""

    component: str
    """Common name: `RCCL`, `vLLM _C`."""
    fit: GpuFit
    """Whether the GPU accepts its code."""
    needed: bool
    """Whether every job with that software uses it; if not, the overall result does not depend on it."""
    processors: tuple[str, ...]
    """Processors it has code for; if one matches the GPU only by name, with the mode that prevents its use."""
    paths: tuple[str, ...]
    """Paths in the image that count: those that a job loads, if known."""
    without: str
    """Consequence on a GPU that accepts none of its code."""
    why: str | None = None
    """Reason, if the fit is not known."""

    @property
    def blocks_jobs(self) -> bool:
        """Whether jobs fail because of it."""
        return self.needed and self.fit in {GpuFit.NO, GpuFit.XNACK}

    @property
    def has(self) -> str:
        """Processors it has code for, in words: `gfx942 only`, `gfx908 and gfx942 only`."""
        *others, last = self.processors or ("no GPU",)
        return f"{', '.join(others)} and {last} only" if others else f"{last} only"


@dataclass(frozen=True, slots=True)
class GpuAccount:
    """Whether the GPU of a machine accepts the code in an image."""

    gpu: str
    """The GPU as seen by a job's process: `gfx90a:sramecc+:xnack-`."""
    machine: str
    """The site or inspected node that has the GPU."""
    parts: tuple[ComponentFit, ...]
    """Results by component, first those that every job uses."""
    taken_for: str | None = None
    """Processor that a variable makes the runtime treat the GPU as, if different."""

    @property
    def processor(self) -> str:
        """Name of the GPU without modes."""
        return self.gpu.partition(":")[0]

    @property
    def title(self) -> str:
        """Name to be used in a sentence."""
        return f"{self.processor}, the GPU of {self.machine}"


class MachineGpu(NamedTuple):
    """The GPU type of a machine, and its source."""

    processor: str
    """Processor name, such as `gfx90a`."""
    machine: str
    """The site or inspected node."""


def account_of_gpu(
    contents: Inventory, machine_gpu: MachineGpu | None, variable: Callable[[str], str | None], loaded: Iterable[str]
) -> GpuAccount | None:
    """Return whether a GPU accepts the code in an image; None without a known AMD GPU.

    `variable` returns the value of a variable in a process in the container. `loaded`: the files of a job's process, as
    found by its loader.
    """
    if machine_gpu is None:
        return None
    try:
        gpu = node_gpu(machine_gpu.processor, variable(XNACK))
    except GpuCodeError:
        return None
    files: set[str] = set()
    for path in loaded:
        with contextlib.suppress(OSError, ImageError):  # a host file
            files.add(contents.image.root.resolve(path))
    parts = component_fits(contents.gpu_code, gpu, frozenset(files))
    processor = overridden_processor(machine_gpu.processor, variable(OVERRIDE))
    return GpuAccount(str(gpu), machine_gpu.machine, parts, processor)


def component_fits(code: GpuCode, gpu: GpuTarget, loaded: frozenset[str] = frozenset()) -> tuple[ComponentFit, ...]:
    """Return whether a GPU accepts each component; `loaded` are the resolved paths of a job process's files."""
    files: dict[str, list[CodeFile]] = {}
    for file in code.with_fit(gpu).files:
        files.setdefault(file.component, []).append(file)
    found = [_verdict(name, of, gpu, loaded) for name, of in files.items()]
    return tuple(sorted((*found, *_unknown(code, files, loaded)), key=lambda one: (not one.needed, one.component)))


def _verdict(component: str, files: Sequence[CodeFile], gpu: GpuTarget, loaded: frozenset[str]) -> ComponentFit:
    role = role_of(component)
    counting = [file for file in files if _is_loaded(file, component, loaded)]
    fits = {file.fit for file in counting or files if file.fit}
    fit = next(each for each in _WORST_FIRST if each in fits)
    why = None
    if not counting and len(fits) > 1 and fit is not GpuFit.PART:
        fit, why = (GpuFit.UNKNOWN, _WHICH) if role.needed else (GpuFit.PART, None)
    elif fit is GpuFit.PART and role.needed and (share := _share(counting or files, gpu)) < _MIN_ACCEPTED_SHARE:
        fit, why = GpuFit.UNKNOWN, f"only {share:.0%} of its code bundles are for this GPU"
    elif fit is GpuFit.UNKNOWN:
        why = "the files do not show whether the GPU accepts such code"
    counting = counting or list(files)
    paths = tuple(file.path for file in counting)
    return ComponentFit(component, fit, role.needed, _processors(counting, gpu), paths, role.without, why)


def _processors(files: Sequence[CodeFile], gpu: GpuTarget) -> tuple[str, ...]:
    """Return the processors that files have code for, by number; with modes if these prevent its use on the GPU."""
    names: dict[str, str] = {}
    for target in (target for file in files for target in file.targets):
        other = replace(
            target,
            sramecc=None if target.sramecc == gpu.sramecc else target.sramecc,
            xnack=None if target.xnack == gpu.xnack else target.xnack,
        )
        is_of_gpu = fit([[GpuTarget(target.processor)]], gpu) is GpuFit.RUNS
        names[str(other) if is_of_gpu else target.processor] = target.processor
    return tuple(sorted(names, key=lambda name: (len(names[name]), name)))


def _share(files: Sequence[CodeFile], gpu: GpuTarget) -> float:
    """Return the share of the files' bundles that a GPU accepts."""
    bundles = [each for file in files for each in file.bundles]
    taken = sum(each.count for each in bundles if fit([each.targets], gpu) is GpuFit.RUNS)
    return taken / sum(each.count for each in bundles)


def _is_loaded(file: CodeFile, component: str, loaded: frozenset[str]) -> bool:
    """Return whether a process loads a file, or kernels from a folder: below that of a library of the component."""
    if file.form is not CodeForm.KERNELS:
        return file.path in loaded
    own = (posixpath.dirname(path) for path in loaded if component_of(path) == component)
    return any(file.path.startswith(f"{folder}/") for folder in own)


def _unknown(code: GpuCode, files: Collection[str], loaded: frozenset[str]) -> Iterator[ComponentFit]:
    """Yield components with unknown fit: those that cannot be read, or that lack code although they should have it."""
    named: dict[str, list[tuple[str, str]]] = {}
    for lost in code.unreadable:
        kernels = kernel_file(lost.path)
        component = (kernels.component if kernels else "") or component_of(lost.path)
        named.setdefault(component, []).append((lost.path, lost.why))
    for path in loaded:
        component = component_of(path)
        if role_of(component).carries and component not in files and component not in named:
            named[component] = [(path, _NO_CODE)]
    for component, lost_files in named.items():
        role, paths = role_of(component), tuple(path for path, _ in lost_files)
        # if other files of the component can be read, an unreadable one counts only if a job loads it
        needed = role.needed and (component not in files or not loaded.isdisjoint(paths))
        yield ComponentFit(component, GpuFit.UNKNOWN, needed, (), paths, role.without, lost_files[0][1])
